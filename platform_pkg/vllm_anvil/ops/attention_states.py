# SPDX-License-Identifier: Apache-2.0
"""Partial results of attention."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fake below needs the op to exist


def merge_attn_states(
    prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over all keys, from attention over two parts of them (a shared prefix and the
    rest, for example).

    A part's *lse* is the logarithm of the sum of the exponentials of its scores, -inf where it had
    no keys: its output, which may then be anything, does not count. Where neither part had keys the
    result is 0, with an lse of -inf.

    Args:
        prefix_output: ``[num_tokens, num_heads, head_size]`` float32, bfloat16 or float16, any
            strides with the last dimension contiguous.
        prefix_lse: ``[num_heads, num_tokens]`` float32, any strides.
        suffix_output: like ``prefix_output``, of the same dtype.
        suffix_lse: like ``prefix_lse``.

    Returns:
        The output, in ``prefix_output``'s dtype, and its lse, float32; both contiguous.

    Raises:
        TypeError: a dtype is none of these, or the outputs' differ.
        ValueError: shapes contradict one another, or devices differ.
    """
    return torch.ops.anvil.merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse)


@torch.library.register_fake("anvil::merge_attn_states")
def _merge_attn_states(
    prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        prefix_output.new_empty(prefix_output.shape),
        prefix_lse.new_empty(prefix_lse.shape),
    )
