# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: products with each token's experts, and what surrounds them."""

import pytest
import torch
from comparison import assert_equal, int32, int64, place
from torch import Tensor
from vllm.model_executor.layers.fused_moe import fused_moe, moe_fused_mul_sum
from vllm.model_executor.layers.fused_moe import utils as moe_rows
from vllm.model_executor.layers.fused_moe.experts import fused_batched_moe
from vllm.triton_utils import tl

PACKAGE = "vllm.model_executor.layers.fused_moe"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 2}
ELEMENT = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
EXPERTS, TOP_K = 5, 2


def aligned(chosen: Tensor, block: int, absent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Assignments sorted by expert and padded to whole blocks, as the kernel wants them.

    Returns the assignments' numbers, the blocks' experts (-1 for `absent`, which is another
    rank's) and the padded count. Behind it there are blocks that nobody may touch.
    """
    flat = chosen.flatten().tolist()
    order: list[int] = []
    experts: list[int] = []
    for expert in range(EXPERTS):
        mine = [row for row, e in enumerate(flat) if e == expert]
        blocks = -(-len(mine) // block)
        order += mine + [len(flat)] * (blocks * block - len(mine))
        experts += [-1 if expert == absent else expert] * blocks
    count = len(order)
    return int32(order + [0] * block), int32([*experts, 0]), int32([count])


def assert_product(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Within rounding to the dtype and float32 errors of the sum; `size` sums magnitudes."""
    limit = torch.finfo(actual.dtype).eps * expected.abs() + 2e-6 * size
    error = (actual.cpu().double() - expected).abs()
    assert (error <= limit).all(), float((error / limit.clamp(min=1e-30)).max())


def blocks_of(scale: Tensor, rows: int, columns: int, block: int) -> Tensor:
    """[..., rows, columns]: each block's scale at each of its elements."""
    wide = scale.repeat_interleave(block, -2).repeat_interleave(block, -1)
    return wide[..., :rows, :columns]


@pytest.mark.checks(f"{PACKAGE}.fused_moe:fused_moe_kernel")
@pytest.mark.parametrize("tokens", [3, 45])
@pytest.mark.parametrize(
    "kind",
    ["bfloat16", "float32", "naive", "int8_weights", "int8_channel", "fp8_tensor", "fp8_block"],
)
def test_fused_moe(device: torch.device, tokens: int, kind: str) -> None:
    torch.manual_seed(1)
    inner, columns, block = 72, 50, 32
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    inputs = torch.randn(tokens, inner).to(dtype)
    weights = torch.randn(EXPERTS, columns, inner).to(dtype)
    bias = torch.randn(EXPERTS, columns).to(dtype)
    input_scale: Tensor | None = None
    weight_scale: Tensor | None = None
    true_inputs, true_weights = inputs.double(), weights.double()
    if kind == "int8_weights":
        weights = torch.randint(-127, 128, weights.shape).to(torch.int8)
        weight_scale = torch.rand(EXPERTS, columns) / 64
        true_weights = weights.double() * weight_scale[..., None]
    elif kind == "int8_channel":
        inputs = torch.randint(-127, 128, inputs.shape).to(torch.int8)
        weights = torch.randint(-127, 128, weights.shape).to(torch.int8)
        input_scale = torch.rand(tokens, 1) / 64
        weight_scale = torch.rand(EXPERTS, columns, 1) / 64
        true_inputs, true_weights = inputs.double() * input_scale, weights.double() * weight_scale
    elif kind.startswith("fp8"):
        inputs, weights = inputs.to(torch.float8_e4m3fn), weights.to(torch.float8_e4m3fn)
        if kind == "fp8_tensor":
            input_scale, weight_scale = torch.rand(1) + 0.5, torch.rand(EXPERTS) + 0.5
            by_row, by_block = input_scale, weight_scale[:, None, None]
        else:
            input_scale = torch.rand(tokens, -(-inner // block)) + 0.5
            weight_scale = torch.rand(EXPERTS, -(-columns // block), -(-inner // block)) + 0.5
            by_row = input_scale.repeat_interleave(block, -1)[:, :inner]
            by_block = blocks_of(weight_scale, columns, inner, block)
        true_inputs, true_weights = inputs.double() * by_row, weights.double() * by_block
    # Different experts for a token; expert 2 is somebody else's.
    chosen = torch.rand(tokens, EXPERTS).argsort(-1)[:, :TOP_K].int()
    routed = torch.rand(tokens, TOP_K)
    absent = -1 if kind == "naive" else 2
    order, experts, count = aligned(chosen, CONFIG["BLOCK_SIZE_M"], absent)
    output = torch.full((tokens, TOP_K, columns), 7, dtype=dtype, device=device)
    on_device = [None if t is None else t.to(device) for t in (input_scale, weight_scale)]
    if kind == "naive":
        # Each block is one assignment.
        order, experts = None, chosen.flatten()
        count = int32([chosen.numel() * CONFIG["BLOCK_SIZE_M"]])

    fused_moe.invoke_fused_moe_triton_kernel(
        *place(device, inputs, weights),
        output,
        *on_device,
        routed.to(device),
        None if order is None else order.to(device),
        experts.to(device),
        count.to(device),
        True,
        TOP_K,
        CONFIG,
        ELEMENT[dtype],
        use_fp8_w8a8=kind.startswith("fp8"),
        use_int8_w8a8=kind == "int8_channel",
        use_int8_w8a16=kind == "int8_weights",
        use_int4_w4a16=False,
        per_channel_quant=kind == "int8_channel",
        block_shape=[block, block] if kind == "fp8_block" else None,
        B_bias=bias.to(device),
    )

    picked = true_weights[chosen.long()]
    factor = routed.double()[..., None] * (chosen != absent)[..., None]
    terms = picked * true_inputs[:, None, None]
    extra = bias.double()[chosen.long()]
    expected = (terms.sum(-1) + extra) * factor
    assert_product(output, expected, (terms.abs().sum(-1) + extra.abs()) * factor)


@pytest.mark.checks(f"{PACKAGE}.fused_moe:fused_moe_kernel_gptq_awq")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_grouped_integer_weights(device: torch.device, bits: int, with_zeros: bool) -> None:
    """Weights of 4 or 8 bits with a scale, and perhaps a zero, for every 32 of a column."""
    torch.manual_seed(8)
    tokens, inner, columns, group = 11, 96, 48, 32
    inputs = torch.randn(tokens, inner).bfloat16()
    weights = torch.randint(0, 1 << bits, (EXPERTS, columns, inner)).to(torch.uint8)
    scales = (torch.rand(EXPERTS, columns, inner // group) / (1 << bits)).bfloat16()
    zeros = torch.randint(0, 1 << bits, (EXPERTS, columns, inner // group)).to(torch.uint8)
    if not with_zeros:
        zeros[:] = 1 << (bits - 1)
    chosen = torch.rand(tokens, EXPERTS).argsort(-1)[:, :TOP_K].int()
    routed = torch.rand(tokens, TOP_K)
    output = torch.full((tokens, TOP_K, columns), 7, dtype=torch.bfloat16, device=device)
    stored, stored_zeros = weights, zeros
    if bits == 4:
        # Two neighbours share a byte: along a column's elements, and along the zeros' columns.
        stored = weights[..., ::2] | weights[..., 1::2] << 4
        stored_zeros = zeros[:, ::2] | zeros[:, 1::2] << 4

    fused_moe.invoke_fused_moe_wna16_triton_kernel(
        *place(device, inputs, stored),
        output,
        scales.to(device),
        stored_zeros.contiguous().to(device) if with_zeros else None,
        routed.to(device),
        *place(device, *aligned(chosen, CONFIG["BLOCK_SIZE_M"], -1)),
        True,
        TOP_K,
        {**CONFIG, "SPLIT_K": 1},
        tl.bfloat16,
        use_int8_w8a16=bits == 8,
        use_int4_w4a16=bits == 4,
        block_shape=[0, group],
    )

    wide = [part.double().repeat_interleave(group, -1) for part in (zeros, scales)]
    true_weights = ((weights - wide[0]) * wide[1]).bfloat16().double()
    terms = true_weights[chosen.long()] * inputs.double()[:, None, None]
    factor = routed.double()[..., None]
    assert_product(output, terms.sum(-1) * factor, terms.abs().sum(-1) * factor)


@pytest.mark.checks(f"{PACKAGE}.experts.fused_batched_moe:batched_triton_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_batched_experts(device: torch.device, dtype: torch.dtype) -> None:
    """Each expert has a matrix of its own tokens, of which only the first are there."""
    torch.manual_seed(2)
    counts, room, inner, columns = [0, 20, 1, 33], 33, 72, 50
    inputs = torch.randn(len(counts), room, inner).to(dtype)
    weights = torch.randn(len(counts), columns, inner).to(dtype)
    output = torch.full((len(counts), room, columns), 7, dtype=dtype, device=device)

    fused_batched_moe.invoke_moe_batched_triton_kernel(
        *place(device, inputs, weights),
        output,
        int32(counts, device),
        ELEMENT[dtype],
        None,
        None,
        None,
        use_fp8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        config=CONFIG,
        per_act_token_quant=False,
    )

    expected = inputs.double() @ weights.double().mT
    size = inputs.double().abs() @ weights.double().abs().mT
    for expert, count in enumerate(counts):
        rows = slice(0, count)
        assert_product(output[expert, rows], expected[expert, rows], size[expert, rows])
        assert (output[expert, count:].cpu() == 7).all()


@pytest.mark.checks(f"{PACKAGE}.moe_fused_mul_sum:moe_fused_mul_sum_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_map", [False, True])
def test_weighted_sum(device: torch.device, dtype: torch.dtype, with_map: bool) -> None:
    torch.manual_seed(3)
    tokens, top_k, width = 9, 3, 300
    inputs = torch.randn(tokens, top_k, width).to(dtype)
    weights = torch.rand(tokens, top_k)
    ids = torch.randint(0, 6, (tokens, top_k)).int()
    ids[2, 1], ids[4] = -1, -1
    expert_map = int32([0, 1, -1, 2, -1, 3])
    taken = ids >= 0
    if with_map:
        taken &= expert_map[ids.clamp(min=0).long()] >= 0
    inputs[~taken] = torch.nan
    output = torch.full((tokens, width), 7, dtype=dtype, device=device)

    moe_fused_mul_sum.moe_fused_mul_sum(
        *place(device, inputs, weights),
        output,
        ids.to(device),
        expert_map.to(device) if with_map else None,
        int32([tokens - 1], device),
    )

    terms = (inputs.double() * weights.double()[..., None]).where(taken[..., None], 0)
    there = (ids >= 0).any(-1)
    there[-1] = False
    assert_product(output[there.to(device)], terms.sum(1)[there], terms.abs().sum(1)[there])
    assert (output.cpu()[~there] == 7).all()


@pytest.mark.checks(f"{PACKAGE}.utils:_count_expert_num_tokens")
@pytest.mark.parametrize("with_map", [False, True])
def test_token_counts(device: torch.device, with_map: bool) -> None:
    torch.manual_seed(4)
    ids = torch.randint(-1, 6, (600, 3)).int()
    expert_map = int32([2, -1, 0, 1, -1, 3])

    result = moe_rows.count_expert_num_tokens(
        ids.to(device), 4, expert_map.to(device) if with_map else None
    )

    local = torch.where(ids >= 0, expert_map[ids.clamp(min=0).long()], -1) if with_map else ids
    assert_equal(result, int32([int((local == expert).sum()) for expert in range(4)]))


@pytest.mark.checks(f"{PACKAGE}.utils:_remap_topk_to_local_kernel")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_local_experts(device: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    ids = torch.randint(-1, 6, (401, 3)).int()
    expert_map = int32([2, -1, 0, 1, -1, 3])

    result = moe_rows.remap_topk_to_local(*place(device, ids, expert_map), out_dtype=dtype)

    expected = [int(expert_map[i]) if i >= 0 else -1 for i in ids.flatten().tolist()]
    assert_equal(result, int64(expected).to(dtype).view(ids.shape))


@pytest.mark.checks(f"{PACKAGE}.utils:_swiglu_limit_pad_aware_kernel")
@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_swiglu_of_the_present(device: torch.device, limit: float) -> None:
    torch.manual_seed(6)
    rows, width = 300, 40
    values = torch.randn(rows, 2 * width) * 3
    ids = torch.randint(-1, 3, (rows, 1)).int()
    expert_map = int32([0, -1, 1])
    output = torch.full((rows, width), 7.0, device=device)

    moe_rows._swiglu_limit_pad_aware(
        output, *place(device, values, ids), limit, expert_map.to(device)
    )

    gate, up = values.double().split(width, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    there = (ids[:, 0] == 0) | (ids[:, 0] == 2)
    expected = torch.where(there[:, None], gate * torch.sigmoid(gate) * up, 7.0)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.checks(f"{PACKAGE}.fused_moe:compute_identity_kernel")
def test_experts_that_do_nothing(device: torch.device) -> None:
    """The experts from number 3 on give their token back."""
    torch.manual_seed(7)
    hidden = torch.randn(11, 512).bfloat16()
    ids, scales = torch.randint(0, 6, (11, 3)), torch.rand(11, 3)

    result = fused_moe.zero_experts_compute_triton(
        *place(device, ids, scales), 3, "identity", hidden.to(device)
    )

    expected = hidden.double() * (scales * (ids >= 3)).double().sum(-1, keepdim=True)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=2**-8 * 1.001, atol=0)
