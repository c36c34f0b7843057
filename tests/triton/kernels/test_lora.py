# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: products of tokens with the matrices of each token's adapter."""

import pytest
import torch
from comparison import place
from torch import Tensor
from vllm.lora.ops.triton_ops import lora_shrink_op
from vllm.lora.ops.triton_ops.lora_expand_fp8_op import _lora_expand_fp8
from vllm.lora.ops.triton_ops.lora_expand_op import _lora_expand
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
from vllm.lora.ops.triton_ops.lora_shrink_fp8_op import _lora_shrink_fp8

SHRINK = "vllm.lora.ops.triton_ops.lora_shrink_op:_lora_shrink_kernel"
SHRINK_SUM = "vllm.lora.ops.triton_ops.lora_shrink_op:_lora_shrink_reduce_kernel"
EXPAND = "vllm.lora.ops.triton_ops.lora_expand_op:_lora_expand_kernel"

FP8 = torch.float8_e4m3fn
MAX_LORAS = 4
# Adapters of the tokens; -1 is none. Adapter 1 has no tokens.
MAPPINGS = [[2], [0, -1, 3, 3, -1, 2, 0, 3, 2, 2, -1], [3] * 70 + [0] * 5 + [-1] + [2, 3] * 9]


def metadata(mapping: list[int], device: torch.device) -> tuple[Tensor, ...]:
    meta = LoRAKernelMeta.make(MAX_LORAS, 128, device)
    meta.prepare_tensors(torch.tensor(mapping, dtype=torch.int32))
    return meta.meta_args(len(mapping), specialize_active_lora=False)


def assert_near(actual: Tensor, expected: Tensor, size: Tensor, epsilon: float) -> None:
    """Within `epsilon` of `size`, the sum of the magnitudes of what was added up."""
    error = (actual.cpu().double() - expected).abs()
    assert (error <= epsilon * size + 1e-30).all(), float((error / size.clamp(min=1e-30)).max())


@pytest.mark.parametrize(
    "invariant",
    [
        pytest.param(False, marks=pytest.mark.checks(SHRINK)),
        pytest.param(True, marks=pytest.mark.checks(SHRINK, SHRINK_SUM)),
    ],
)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=len)
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    ("hidden_size", "rank", "dtype"),
    [(256, 16, torch.bfloat16), (203, 8, torch.float16)],
)
def test_shrink(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    invariant: bool,
    mapping: list[int],
    slices: int,
    hidden_size: int,
    rank: int,
    dtype: torch.dtype,
) -> None:
    """`invariant`: the parts of the sum are added in an order of their own, by a second kernel."""
    monkeypatch.setattr(lora_shrink_op, "is_batch_invariant", invariant)
    torch.manual_seed(1)
    scaling = 0.75
    inputs = torch.randn(len(mapping), hidden_size).to(dtype)
    weights = [torch.randn(MAX_LORAS, rank, hidden_size).to(dtype) for _ in range(slices)]
    output = torch.full((slices, len(mapping), rank), 7.0, device=device)

    lora_shrink_op._lora_shrink(
        *place(device, inputs),
        place(device, *weights),
        output,
        *metadata(mapping, device),
        scaling,
    )

    expected, size = torch.zeros(2, slices, len(mapping), rank, dtype=torch.float64)
    for token, adapter in enumerate(mapping):
        if adapter < 0:
            continue
        for index, weight in enumerate(weights):
            terms = weight[adapter].double() * inputs[token].double() * scaling
            expected[index, token] = terms.sum(-1)
            size[index, token] = terms.abs().sum(-1)
    assert_near(output, expected, size, 1e-6)


@pytest.mark.checks(EXPAND)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=len)
@pytest.mark.parametrize("add_inputs", [False, True])
@pytest.mark.parametrize(
    ("sizes", "rank", "offset", "dtype"),
    [
        ([96, 40, 33], 8, 5, torch.bfloat16),
        ([48, 48], 32, 16, torch.float16),
    ],
)
def test_expand(
    device: torch.device,
    mapping: list[int],
    add_inputs: bool,
    sizes: list[int],
    rank: int,
    offset: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(2)
    inputs = torch.randn(len(sizes), len(mapping), rank)
    weights = [torch.randn(MAX_LORAS, size, rank).to(dtype) for size in sizes]
    before = torch.randn(len(mapping), offset + sum(sizes) + 3).to(dtype)
    output = before.clone().to(device)

    _lora_expand(
        *place(device, inputs),
        place(device, *weights),
        output,
        *metadata(mapping, device),
        offset_start=offset,
        add_inputs=add_inputs,
    )

    expected, size = before.double(), torch.zeros(before.shape, dtype=torch.float64)
    for token, adapter in enumerate(mapping):
        if adapter < 0:
            continue
        start = offset
        for index, weight in enumerate(weights):
            # The products are of the weights' dtype.
            terms = weight[adapter].double() * inputs[index, token].to(dtype).double()
            columns = slice(start, start + sizes[index])
            base = expected[token, columns] if add_inputs else 0
            size[token, columns] = terms.abs().sum(-1) + expected[token, columns].abs()
            expected[token, columns] = base + terms.sum(-1)
            start += sizes[index]
    untouched = size == 0
    assert torch.equal(output.cpu()[untouched], before[untouched])
    # The sum is rounded to the output's dtype before it is added, and the total again.
    assert_near(output, expected, size, torch.finfo(dtype).eps)


def fp8_scales(
    kind: str, tokens: int, columns: int, slices: int
) -> tuple[Tensor, list[Tensor], Tensor, list[Tensor]]:
    """Scales of the inputs and of each slice's weights, and both as factors of the products."""
    if kind == "tensor":
        inputs = torch.rand(1) + 0.5
        weights = [torch.rand(MAX_LORAS) + 0.5 for _ in range(slices)]
        return inputs, weights, inputs.expand(tokens), [w[:, None] for w in weights]
    inputs = torch.rand(tokens, 1) + 0.5
    weights = [torch.rand(MAX_LORAS, columns) + 0.5 for _ in range(slices)]
    return inputs, weights, inputs[:, 0], weights


@pytest.mark.checks("vllm.lora.ops.triton_ops.lora_shrink_fp8_op:_lora_shrink_kernel_fp8")
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_shrink_fp8(device: torch.device, slices: int, kind: str) -> None:
    torch.manual_seed(3)
    mapping, hidden_size, rank = MAPPINGS[1], 203, 16
    inputs = torch.randn(len(mapping), hidden_size).to(FP8)
    weights = [torch.randn(MAX_LORAS, rank, hidden_size).to(FP8) for _ in range(slices)]
    a_scale, b_scale, by_token, by_column = fp8_scales(kind, len(mapping), rank, slices)
    output = torch.full((slices, len(mapping), rank), 7.0, device=device)
    *meta, active = metadata(mapping, device)

    _lora_shrink_fp8(
        *place(device, inputs),
        place(device, *weights),
        output,
        *meta,
        int(active),
        0.75,
        place(device, *b_scale),
        *place(device, a_scale),
        use_fp8_w8a8=True,
        per_channel_quant=kind == "channel",
    )

    expected, size = torch.zeros(2, slices, len(mapping), rank, dtype=torch.float64)
    for token, adapter in enumerate(mapping):
        if adapter < 0:
            continue
        for index, weight in enumerate(weights):
            terms = weight[adapter].double() * inputs[token].double() * 0.75 * by_token[token]
            terms = terms * by_column[index][adapter].double()[:, None]
            expected[index, token] = terms.sum(-1)
            size[index, token] = terms.abs().sum(-1)
    assert_near(output, expected, size, 1e-6)


@pytest.mark.checks("vllm.lora.ops.triton_ops.lora_expand_fp8_op:_lora_expand_kernel_fp8")
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_expand_fp8(device: torch.device, slices: int, kind: str) -> None:
    torch.manual_seed(4)
    mapping, columns, rank = MAPPINGS[1], 72, 16
    inputs = torch.randn(slices, len(mapping), rank).to(FP8)
    weights = [torch.randn(MAX_LORAS, columns, rank).to(FP8) for _ in range(slices)]
    a_scale, b_scale, by_token, by_column = fp8_scales(kind, len(mapping), columns, slices)
    before = torch.randn(len(mapping), slices * columns).bfloat16()
    output = before.clone().to(device)
    *meta, active = metadata(mapping, device)

    _lora_expand_fp8(
        *place(device, inputs),
        place(device, *weights),
        output,
        *meta,
        int(active),
        place(device, *b_scale),
        *place(device, a_scale),
        add_inputs=True,
        use_fp8_w8a8=True,
        per_channel_quant=kind == "channel",
    )

    expected, size = before.double(), torch.zeros(before.shape, dtype=torch.float64)
    for token, adapter in enumerate(mapping):
        if adapter < 0:
            continue
        for index, weight in enumerate(weights):
            terms = weight[adapter].double() * inputs[index, token].double() * by_token[token]
            terms = terms * by_column[index][adapter].double()[:, None]
            part = slice(index * columns, (index + 1) * columns)
            size[token, part] = terms.abs().sum(-1) + expected[token, part].abs()
            expected[token, part] += terms.sum(-1)
    assert_near(output, expected, size, torch.finfo(torch.bfloat16).eps)
