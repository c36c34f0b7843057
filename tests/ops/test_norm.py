# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.ops import norm
from vllm_anvil.references import norm as reference

from .row_independence import check_rows_are_independent


@settings(deadline=None, max_examples=80, derandomize=True)
@given(data=st.data())
def test_any_strides_are_read(data: st.DataObject) -> None:
    """Views of up to six dimensions in any order in memory, with gaps, expanded, of one row."""
    shape = data.draw(st.lists(st.integers(1, 3), max_size=5))
    shape.append(data.draw(st.sampled_from([1, 2, 7, 16, 33])))
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    whole = torch.randn([shape[d] * step + 1 for d, step in zip(order, steps, strict=True)])
    view = whole.permute([order.index(d) for d in range(len(shape))])
    for d, size in enumerate(shape):
        step = steps[order.index(d)]
        view = view[(slice(None),) * d + (slice(1, 1 + size * step, step),)]
    if len(shape) > 1 and data.draw(st.booleans()):
        view = view[:1].expand(3, *view.shape[1:])
    weight = torch.randn(2 * shape[-1])[::2]
    result = norm.rms_norm(view, weight, 1e-6)
    assert result.is_contiguous()
    torch.testing.assert_close(result, reference.rms_norm(view, weight, 1e-6))


def test_a_row_without_other_dimensions(device: torch.device) -> None:
    x = torch.randn(33)
    expected = reference.layer_norm(x, None, None, 1e-6)
    torch.testing.assert_close(norm.layer_norm(x.to(device), None, None, 1e-6).cpu(), expected)


def test_heads_of_a_fused_projection_are_read_where_they_lie(device: torch.device) -> None:
    """The norm of queries and keys inside the result of one projection."""
    qkv = torch.randn(5, 6 * 32, device=device).bfloat16()
    keys = qkv[:, 4 * 32 : 5 * 32].view(5, 1, 32)
    queries = qkv[:, : 4 * 32].view(5, 4, 32)
    weight = torch.randn(32, device=device).bfloat16()
    for x in (queries, keys):
        expected = norm.rms_norm(x.contiguous(), weight, 1e-6)
        assert torch.equal(norm.rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_independent(dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.randn(64, 1111, device=device).to(dtype)
    weight = torch.randn(1111, device=device).to(dtype)
    check_rows_are_independent(lambda x: norm.rms_norm(x, weight, 1e-6), rows)
    check_rows_are_independent(lambda x: norm.layer_norm(x, weight, weight, 1e-6), rows)
    check_rows_are_independent(
        lambda x: torch.cat(norm.fused_add_rms_norm(x, x, weight, 1e-6), dim=1), rows
    )


@pytest.mark.parametrize("scale", [1e38, 1e25, 1e-25])
def test_squares_need_not_fit_float32(scale: float, device: torch.device) -> None:
    x = torch.linspace(-1, 1, 50) * scale
    expected = x.double() * x.double().square().mean().rsqrt()
    result = norm.rms_norm(x.to(device), None, 0.0).cpu().double()
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_in_place_equals_functional(device: torch.device) -> None:
    x, residual = torch.randn(2, 7, 130, device=device).bfloat16()
    weight = torch.randn(130, device=device)
    normed, total = norm.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert norm.fused_add_rms_norm_(x, residual, weight, 1e-6) is None
    assert torch.equal(x, normed) and torch.equal(residual, total)


def test_the_norm_is_of_the_sum_before_it_is_rounded(device: torch.device) -> None:
    """256 and 0.5 are one number in bfloat16, but two in the norm of their sum."""
    x = torch.full((1, 4), 0.5, dtype=torch.bfloat16, device=device)
    residual = torch.tensor([[256.0, 1.0, 1.0, 1.0]], dtype=torch.bfloat16, device=device)
    total = torch.tensor([[256.5, 1.5, 1.5, 1.5]], dtype=torch.float64)
    weight = torch.full((4,), 2.0**12, device=device)
    float32_x = x.float()
    norm.fused_add_rms_norm_(float32_x, residual, weight, 0.0)
    expected = total * (total.square().mean() ** -0.5) * 2.0**12
    torch.testing.assert_close(float32_x.cpu().double(), expected, rtol=1e-6, atol=0)
    assert residual[0, 0] == 256


def test_refusals_name_the_argument(device: torch.device) -> None:
    x, weight = torch.ones(3, 8, device=device), torch.ones(8, device=device)
    with pytest.raises(TypeError, match="rms_norm: x must be float32, bfloat16 or float16, but is"):
        norm.rms_norm(x.double(), weight, 1e-6)
    with pytest.raises(TypeError, match="weight must be float32, bfloat16 or float16"):
        norm.rms_norm(x, weight.int(), 1e-6)
    with pytest.raises(ValueError, match="weight has 7 elements, but rows of x have 8"):
        norm.rms_norm(x, weight[:7], 1e-6)
    with pytest.raises(ValueError, match="weight must have 1 dimension"):
        norm.rms_norm(x, weight.view(1, 8), 1e-6)
    for size in (0, 9, -1):
        with pytest.raises(ValueError, match=f"variance_size must be from 1 to .*, but is {size}"):
            norm.rms_norm(x, weight, 1e-6, variance_size=size)
    with pytest.raises(ValueError, match="x must have at least one dimension"):
        norm.rms_norm(x[0, 0], None, 1e-6)
    with pytest.raises(ValueError, match=r"residual has shape \[2, 8\], but x has \[3, 8\]"):
        norm.fused_add_rms_norm(x, x[:2], weight, 1e-6)
    with pytest.raises(TypeError, match="fused_add_rms_norm: residual must be float32"):
        norm.fused_add_rms_norm(x, x.double(), weight, 1e-6)
    with pytest.raises(ValueError, match="layer_norm: bias has 7 elements"):
        norm.layer_norm(x, weight, weight[:7], 1e-6)


def test_refusals_in_place(device: torch.device) -> None:
    x, weight = torch.ones(3, 8, device=device), torch.ones(8, device=device)
    other = torch.ones(3, 8, device=device)

    def refuse(match: str, x: Tensor, residual: Tensor, weight: Tensor | None = weight) -> None:
        with pytest.raises(ValueError, match=match):
            norm.fused_add_rms_norm_(x, residual, weight, 1e-6)

    refuse("x is written and must not share memory with residual", x, x)
    refuse("x is written and must not share memory with weight", x, other, x[0])
    refuse("residual is written and must not share memory with weight", x, other, other[1])
    refuse("residual is written, but elements of it share memory", x, weight.expand(3, 8))
    refuse("x is written, but elements of it share memory", weight.expand(3, 8), x)
    refuse("the last dimension of x must be contiguous", torch.ones(8, 3, device=device).T, x)
    crosswise = torch.ones(2, 2, 2, 2, 2, 8, device=device).permute(4, 3, 2, 1, 0, 5)
    refuse("x is written, and its shape .* more than 4 dimensions", crosswise, crosswise.clone())
    assert (x == 1).all() and (other == 1).all() and (crosswise == 1).all()


def test_a_captured_graph_reads_its_inputs_anew() -> None:
    x, residual = torch.zeros(2, 3, 40, device="anvil")
    weight = torch.randn(40, device="anvil")
    normed = norm.rms_norm(x, weight, 1e-6)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        norm.fused_add_rms_norm_(x, residual, weight, 1e-6)
        normed = norm.rms_norm(residual, weight, 1e-6)
    for seed in range(3):
        inputs = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(seed))
        x.copy_(inputs[0])
        residual.copy_(inputs[1])
        graph.replay()
        expected = reference.rms_norm(inputs.sum(0), weight.cpu(), 1e-6)
        torch.testing.assert_close(x.cpu(), expected)
        torch.testing.assert_close(normed.cpu(), expected)
        assert torch.equal(residual.cpu(), inputs.sum(0))


def test_opcheck(device: torch.device) -> None:
    x = torch.randn(3, 4, 33, device=device).bfloat16().transpose(0, 1)
    residual = torch.randn(4, 3, 33, device=device)
    weight = torch.randn(33, device=device)
    ops = torch.ops.anvil
    torch.library.opcheck(ops.rms_norm, (x, weight, 1e-6))
    torch.library.opcheck(ops.rms_norm, (x, None, 1e-6, 20, 1.0))
    torch.library.opcheck(ops.fused_add_rms_norm, (x, residual, weight, 1e-6))
    torch.library.opcheck(ops.fused_add_rms_norm_, (x.contiguous(), residual, weight, 1e-6))
    torch.library.opcheck(ops.layer_norm, (x, weight, weight.half(), 1e-6))
    torch.library.opcheck(ops.layer_norm, (x, None, None, 1e-6))
