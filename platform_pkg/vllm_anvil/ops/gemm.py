# SPDX-License-Identifier: Apache-2.0
"""Matrix products with weights."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist
from vllm_anvil.references.gemm import depth_unit, packed_shape


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias`` in float32 arithmetic, over half-precision weights as they are.

    A row of the result does not depend on the other rows of ``input``.

    Args:
        input: ``[..., depth]`` float32, bfloat16 or float16, any strides.
        weight: ``[columns, depth]`` bfloat16 or float16, rows contiguous.
        bias: ``[columns]`` of any floating dtype, or None.

    Returns:
        ``[..., columns]`` float32, contiguous.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, or devices differ.
    """
    return torch.ops.anvil.linear(input, weight, bias)


@torch.library.register_fake("anvil::linear")
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]), dtype=torch.float32)


def packed_linear(
    input: Tensor,
    packed: Tensor,
    columns: int,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    input_dtype: torch.dtype | None = None,
    rows_in_use: Tensor | None = None,
    keep_remainders: bool = False,
) -> Tensor:
    """``input @ weight.T + bias`` over a packed weight.

    Sums are float32 and go through the depth in one order, so that a row of the result is the same
    bits whatever the other rows of ``input`` are and however many. Products are float32, or those
    of the processor's bfloat16 dot products where ``input`` and ``packed`` are both bfloat16:
    exact, with subnormal numbers taken for zero.

    Args:
        input: ``[..., depth]`` float32, bfloat16 or float16, any strides.
        packed: `pack_linear` of a weight ``[columns, depth]``.
        columns: of the weight: the packed form is rounded up.
        bias: ``[columns]`` float32, bfloat16 or float16, or None.
        dtype: of the result, to which each sum is rounded once: float32, bfloat16 or float16;
            None: ``input``'s.
        input_dtype: ``packed``'s dtype, to round ``input`` to it before it is multiplied, or None.
            bfloat16 then brings the processor's dot products, at twice float32's rate.
        rows_in_use: int32 with one element, or None for all: how many of ``input``'s rows are
            multiplied, read when the product runs. A graph that was captured for many rows then
            costs no more than those in use.
        keep_remainders: with an ``input_dtype`` of bfloat16: of every four pairs along the depth
            the one that rounding takes most from keeps twice as many bits. A quarter more products
            leave less than half of the error of rounding (docs/design/precision.md).

    Returns:
        ``[..., columns]``, contiguous. Rows that are not in use hold anything.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, devices differ, or remainders are to be kept of
            an input that is not rounded to bfloat16.
    """
    return torch.ops.anvil.packed_linear(
        input, packed, columns, bias, dtype, input_dtype, rows_in_use, keep_remainders
    )


@torch.library.register_fake("anvil::packed_linear")
def _packed_linear(
    input: Tensor,
    packed: Tensor,
    columns: int,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    input_dtype: torch.dtype | None = None,
    rows_in_use: Tensor | None = None,
    keep_remainders: bool = False,
) -> Tensor:
    return input.new_empty((*input.shape[:-1], columns), dtype=dtype)


def pack_linear(weight: Tensor, unit: int | None = None) -> Tensor:
    """A weight in the order in which `packed_linear` reads it: strips of 16 columns.

    Args:
        weight: ``[columns, depth]`` float32, bfloat16 or float16, rows contiguous.
        unit: elements of the depth that lie side by side, 2 for bfloat16 and 1 otherwise: what is
            not so is refused. None: that.

    Returns:
        bfloat16: ``[strips, depth / 2, 16, 2]``, other dtypes: ``[strips, depth, 16]``; contiguous,
        with ``strips`` and an odd depth rounded up, and zeros there.

    Raises:
        TypeError: the dtype is none of these.
        ValueError: ``weight`` has other than two dimensions or rows that are not contiguous, or
            ``unit`` is another.
    """
    return torch.ops.anvil.pack_linear(weight, unit)


@torch.library.register_fake("anvil::pack_linear")
def _pack_linear(weight: Tensor, unit: int | None = None) -> Tensor:
    columns, depth = weight.shape
    return weight.new_empty(packed_shape(columns, depth, unit or depth_unit(weight.dtype)))


def unpack_linear(packed: Tensor, columns: int, depth: int) -> Tensor:
    """The weight ``[columns, depth]``, contiguous, of which `pack_linear` made ``packed``.

    Raises:
        TypeError: the dtype is none of `pack_linear`'s.
        ValueError: ``packed`` is no packed ``[columns, depth]``.
    """
    return torch.ops.anvil.unpack_linear(packed, columns, depth)


@torch.library.register_fake("anvil::unpack_linear")
def _unpack_linear(packed: Tensor, columns: int, depth: int) -> Tensor:
    return packed.new_empty((columns, depth))
