# SPDX-License-Identifier: Apache-2.0
"""Seam: the matrix product of layers without quantisation.

What vLLM does
    `vllm.model_executor.layers.utils.dispatch_unquantized_gemm`, which linear layers and the
    language-model head call, knows a function for ROCm, CUDA and the CPU; any other platform gets
    `default_unquantized_gemm`, which is `torch.nn.functional.linear`.
What is changed
    That default means a function that runs packed weights (plugin/seams/weight_packing.py) through
    `torch.ops.anvil.packed_linear`, and other half-precision weights of the device through
    `torch.ops.anvil.linear`. Both accumulate in float32. A layer's output is rounded to the dtype
    of its input; logits stay in float32, where the sampler wants them: rounded to bfloat16, the
    best two tokens are often the same number. What packed weights are multiplied with is rounded
    to their dtype as plugin/input_rounding.py says. In a step that is captured for more tokens than
    a batch may have, products are made for the tokens that are there when it is replayed; in a step
    that is run for the memory it takes, none are.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform for the product.
Test that fails then
    tests/plugin/test_seams.py::test_unquantized_gemm_is_needed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.model_executor.layers import utils

import vllm_anvil.device as anvil
from vllm_anvil.ops.gemm import linear, packed_linear
from vllm_anvil.ops.packed_weight import PackedWeight
from vllm_anvil.plugin import input_rounding

HALF = (torch.bfloat16, torch.float16)

_only_shapes = False


@contextlib.contextmanager
def only_shapes() -> Iterator[None]:
    """Inside, results of products with packed weights hold anything: only their memory counts."""
    global _only_shapes
    _only_shapes = True
    try:
        yield
    finally:
        _only_shapes = False


def unquantized_gemm(
    layer: torch.nn.Module,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [..., depth] times weight [columns, depth], transposed, plus bias [columns]."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    is_head = isinstance(layer, VocabParallelEmbedding)
    if isinstance(weight, PackedWeight):
        input_dtype, keep_remainders = input_rounding.of(x.dtype, weight.dtype)
        return packed_linear(
            x,
            weight.packed,
            weight.shape[0],
            bias,
            torch.float32 if is_head else None,
            input_dtype,
            rows_in_use(x),
            keep_remainders,
        )
    if weight.dtype not in HALF or weight.device.type != "anvil" or weight.stride(-1) != 1:
        return torch.nn.functional.linear(x, weight, bias)
    result = linear(x, weight, bias)
    return result if is_head else result.to(x.dtype)


def rows_in_use(x: torch.Tensor) -> torch.Tensor | None:
    """int32 [1] on the device, or None for all rows of x."""
    if _only_shapes:
        return torch.zeros(1, dtype=torch.int32, device=x.device)
    return _tokens_in_use(x) if anvil.is_current_stream_capturing() else None


def _tokens_in_use(x: torch.Tensor) -> torch.Tensor | None:
    """How many of a captured step's tokens a replay has: what its attention goes by, too.

    int32 [1] on the device, or None where the rows of x are not the step's tokens: those of a
    language-model head that a draft's graph calls after its model, for one.
    """
    if not is_forward_context_available():
        return None
    context = get_forward_context()
    slots, layers = context.slot_mapping, context.attn_metadata
    if not isinstance(slots, dict) or not isinstance(layers, dict):
        return None
    for name, metadata in layers.items():
        starts = getattr(metadata, "query_start_loc", None)
        if starts is not None and name in slots:
            return starts[-1:] if len(slots[name]) == x.shape[0] else None
    return None


def apply() -> None:
    utils.default_unquantized_gemm = unquantized_gemm
