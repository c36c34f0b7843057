# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by number."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fake below needs the op to exist


def embedding(ids: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The table's row of each id, as it is or converted in the same pass.

    Args:
        ids: any shape and strides, int64 or int32, each of ``[0, rows)``.
        weight: ``[rows, hidden]`` float32, bfloat16 or float16, rows contiguous and at any
            distance.
        dtype: float32, bfloat16 or float16: what the result is made of; None: ``weight``'s.

    Returns:
        ``[*ids.shape, hidden]``, contiguous. Bit for bit ``weight``'s rows where the dtype is
        the same, rounded to the nearest otherwise.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: ``weight`` has other than two dimensions or rows that are not contiguous, or
            devices differ.
        IndexError: an id is outside of the table.
    """
    return torch.ops.anvil.embedding(ids, weight, dtype)


@torch.library.register_fake("anvil::embedding")
def _embedding(ids: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]), dtype=dtype)


def packed_embedding(
    ids: Tensor, packed: Tensor, rows: int, hidden: int, dtype: torch.dtype | None = None
) -> Tensor:
    """The same with a packed table: the token embedding of a model whose head has its weight.

    Args:
        ids: any shape and strides, int64 or int32, each of ``[0, rows)``.
        packed: `vllm_anvil.ops.gemm.pack_linear` of a table ``[rows, hidden]``.
        rows: of the table.
        hidden: elements of a row.
        dtype: float32, bfloat16 or float16: what the result is made of; None: ``packed``'s.

    Returns:
        ``[*ids.shape, hidden]``, contiguous.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: ``packed`` is no packed ``[rows, hidden]``, or devices differ.
        IndexError: an id is outside of the table.
    """
    return torch.ops.anvil.packed_embedding(ids, packed, rows, hidden, dtype)


@torch.library.register_fake("anvil::packed_embedding")
def _packed_embedding(
    ids: Tensor, packed: Tensor, rows: int, hidden: int, dtype: torch.dtype | None = None
) -> Tensor:
    return packed.new_empty((*ids.shape, hidden), dtype=dtype)
