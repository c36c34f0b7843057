# SPDX-License-Identifier: Apache-2.0
"""A row's result is the same bits alone and in any batch: all of torch.ops.anvil that has rows.

Cases are the op tables', and products and norms of SmolLM2's sizes over every number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops.activation import gelu_and_mul, silu_and_mul
from vllm_anvil.ops.gemm import linear, pack_linear, packed_linear
from vllm_anvil.ops.norm import fused_add_rms_norm, layer_norm, rms_norm
from vllm_anvil.ops.sampling import topk_topp
from vllm_anvil.ops.softmax import log_softmax, softmax
from vllm_anvil.testing import registry
from vllm_anvil.testing.op_case import Arguments, Op

ANVIL = torch.device("anvil")
OPS = registry.load().ops

# What has no rows, or none whose results are numbers of a model.
WITHOUT_ROWS = {
    *("ceiling_arithmetic", "ceiling_read"),  # measure the machine
    *("pack_linear", "unpack_linear"),  # move weights
    *("copy_blocks", "swap_blocks", "check_block_table"),  # move or look
    # Its rows are requests: attention/test_native_invariance.py.
    "paged_attention",
    *("lora_shrink", "lora_expand"),  # rows and what says whose they are: ops/test_lora.py
}
# Without vector instructions a row takes 20 times as long; blocks of rows are cut alike.
SCALAR = torch.anvil.active_isa() == "scalar"
COUNTS = (1, 2, 3, 5, 8, 9, 17, 64, 65, 193) if SCALAR else (*range(1, 71), 127, 192, 193, 200)


def test_every_op_is_looked_at() -> None:
    names = {name.partition("::") for name in torch._C._dispatch_get_all_op_names()}
    ours = {name.partition(".")[0] for space, _, name in names if space == "anvil"}
    with_rows = {op.name for op in OPS.values() if op.namespace == "anvil" and op.batch}
    assert ours - with_rows == WITHOUT_ROWS


def chosen(tensor: Tensor, dim: int, rows: slice) -> Tensor:
    return tensor.movedim(dim, 0)[rows].movedim(0, dim)


def picked(op: Op, arguments: Arguments, rows: slice) -> Arguments:
    """The arguments with some rows, in memory of their own, on the device."""

    def place(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if name in op.batch:
            value = chosen(value, op.batch[name], rows).clone()
        return value.to(ANVIL, copy=True)

    return {name: place(name, value) for name, value in arguments.items()}


def results(op: Op, arguments: Arguments) -> dict[str, Tensor]:
    """Results by name, of those that follow the rows."""
    returned = op.run(arguments)
    found = {name: arguments[name] for name in op.written()}
    if isinstance(returned, Tensor):
        found["result"] = returned
    elif returned is not None:
        found |= {f"result{number}": one for number, one in enumerate(returned)}
    follow = {name: one for name, one in found.items() if name in op.batch and one is not None}
    return {name: one.cpu() for name, one in follow.items()}


# write_kv_cache moves rows to where they are told: its results are no rows.
WITH_ROWS = [
    pytest.param(op, id=op.name)
    for op in OPS.values()
    if op.namespace == "anvil" and op.batch and op.name not in WITHOUT_ROWS | {"write_kv_cache"}
]


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("op", WITH_ROWS)
def test_rows_of_the_op_tables(op: Op) -> None:
    """Each row alone, and the first half, against all."""
    looked_at = 0
    for case in op.cases:
        if case.raises is not None or case.kind not in ("ordinary", "extreme"):
            continue
        arguments = case.arguments()
        name = next(name for name in op.batch if isinstance(arguments.get(name), Tensor))
        count = arguments[name].shape[op.batch[name]]
        if count < 2:
            continue
        together = results(op, picked(op, arguments, slice(0, count)))
        parts = [slice(row, row + 1) for row in range(min(count, 8))]
        for part in (*parts, slice(0, count // 2)):
            alone = results(op, picked(op, arguments, part))
            for result, found in alone.items():
                expected = chosen(together[result], op.batch[result], part)
                assert torch.equal(bits(found), bits(expected)), (case.name, result, part)
        looked_at += 1
    assert looked_at > 0


def same_alone(call: Callable[..., Tensor], *rows: Tensor) -> None:
    """Batches of COUNTS rows against each row alone."""
    alone = torch.cat([call(*(one[i : i + 1].clone() for one in rows)) for i in range(COUNTS[-1])])
    alone = alone.cpu()
    for count in COUNTS:
        together = call(*(one[:count].clone() for one in rows)).cpu()
        assert torch.equal(bits(together), bits(alone[:count])), count


@pytest.mark.parametrize(
    ("depth", "columns"),
    [(576, 960), (576, 576), (576, 3072), (1536, 576), (100, 33), (65, 1), (577, 17), (64, 49152)],
)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products(depth: int, columns: int, weights: torch.dtype) -> None:
    """Packed and plain, of SmolLM2's sizes and odd ones, hidden states of both kinds."""
    generator = torch.Generator().manual_seed(depth)
    x = torch.randn(COUNTS[-1], depth, generator=generator).to(ANVIL)
    weight = torch.randn(columns, depth, generator=generator).to(ANVIL, weights)
    bias = torch.randn(columns, generator=generator).to(ANVIL)
    packed = pack_linear(weight)
    same_alone(lambda x: packed_linear(x, packed, columns, bias), x)
    if weights != torch.float32:
        same_alone(lambda x: packed_linear(x, packed, columns, None, None, weights), x)
        same_alone(lambda x: packed_linear(x, packed, columns), x.to(weights))
        if columns < 10_000:
            same_alone(lambda x: linear(x, weight, bias), x)


@pytest.mark.parametrize("size", [576, 64, 1000, 77])
def test_norms_and_activations(size: int) -> None:
    x, residual = torch.randn(2, COUNTS[-1], 2 * size, device=ANVIL)
    weight = torch.randn(2 * size, device=ANVIL)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, residual = x.to(dtype), residual.to(dtype)
        same_alone(lambda x: rms_norm(x, weight, 1e-5), x)
        same_alone(lambda *x: torch.cat(fused_add_rms_norm(*x, weight, 1e-5), -1), x, residual)
        same_alone(lambda x: layer_norm(x, weight, weight, 1e-5), x)
        same_alone(silu_and_mul, x)
        same_alone(lambda x: gelu_and_mul(x, "tanh"), x)
        same_alone(softmax, x)
        same_alone(log_softmax, x)


def test_choice_of_the_likeliest() -> None:
    logits = torch.randn(COUNTS[-1], 3000, device=ANVIL)
    k = torch.randint(1, 3000, (COUNTS[-1],), dtype=torch.int32, device=ANVIL)
    p = torch.rand(COUNTS[-1], device=ANVIL)

    def masked(logits: Tensor, k: Tensor, p: Tensor) -> Tensor:
        topk_topp(logits, k, p)
        return logits

    same_alone(masked, logits, k, p)
