# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule: token by token on a kept state, and whole prompts in chunks of 64."""

import pytest
import torch
import torch.nn.functional as F
from comparison import int32, offsets, place
from torch import Tensor
from triton.runtime.autotuner import Autotuner, Heuristics
from vllm.third_party.flash_linear_attention.ops import (
    chunk,
    chunk_delta_h,
    chunk_o,
    chunk_scaled_dot_kkt,
    cumsum,
    fused_recurrent,
    l2norm,
    solve_tril,
    wy_fast,
)

PACKAGE = "vllm.third_party.flash_linear_attention.ops"
MODULES = [chunk_delta_h, chunk_o, chunk_scaled_dot_kkt, cumsum, l2norm, solve_tril, wy_fast]


@pytest.fixture
def _one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to choose by time: the results must be the same anyway."""
    for module in MODULES:
        for kernel in list(vars(module).values()):
            while isinstance(kernel, Heuristics):
                kernel = kernel.fn
            if isinstance(kernel, Autotuner):
                monkeypatch.setattr(kernel, "configs", kernel.configs[:1])
                monkeypatch.setattr(kernel, "cache", {})


def recurrence(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs [tokens, heads, V] and the last state [heads, V, K], float64.

    Each token fades the state by e^g, then moves what the state has at its key towards its
    value by the share beta, and reads the state at its query.
    """
    outputs = []
    for token in range(len(q)):
        state = state * g[token].exp()[:, None, None]
        held = torch.einsum("hvk,hk->hv", state, k[token])
        change = beta[token][:, None] * (v[token] - held)
        state = state + change[..., None] * k[token][:, None]
        outputs.append(torch.einsum("hvk,hk->hv", state, q[token] * scale))
    return torch.stack(outputs), state


def inputs(
    tokens: int, heads: int, value_heads: int, width: int, value_width: int
) -> tuple[Tensor, ...]:
    """Random q, k [tokens, heads, width], v, log decays g and shares beta, of value heads."""
    q, k = torch.randn(2, tokens, heads, width).bfloat16()
    v = torch.randn(tokens, value_heads, value_width).bfloat16()
    g = F.logsigmoid(torch.randn(tokens, value_heads) + 2)
    return q, k, v, g, torch.rand(tokens, value_heads)


def prepared(parts: tuple[Tensor, ...]) -> list[Tensor]:
    """float64, with queries and keys of length one, for every value head."""
    q, k, v, g, beta = (part.double() for part in parts)
    group = v.shape[1] // q.shape[1]
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    return [q.repeat_interleave(group, 1), k.repeat_interleave(group, 1), v, g, beta]


def assert_near(actual: Tensor, expected: Tensor, epsilon: float) -> None:
    """Errors are small beside the result's root mean square: both on average and at most."""
    size = expected.pow(2).mean().sqrt()
    error = (actual.cpu().double() - expected).abs()
    assert error.pow(2).mean().sqrt() <= epsilon * size, float(error.pow(2).mean().sqrt() / size)
    assert error.max() <= 10 * epsilon * size, float(error.max() / size)


@pytest.mark.checks(f"{PACKAGE}.fused_recurrent:fused_recurrent_gated_delta_rule_fwd_kernel")
@pytest.mark.parametrize(("heads", "value_heads", "width", "value_width"), [(2, 4, 40, 48)])
def test_tokens(
    device: torch.device, heads: int, value_heads: int, width: int, value_width: int
) -> None:
    """Sequences with a state for each of their tokens; the first has none and is left out."""
    torch.manual_seed(1)
    lengths = [2, 1, 3]
    lines = int32([[0, 0, 0], [4, 0, 0], [2, 7, 5]])
    parts = inputs(sum(lengths), heads, value_heads, width, value_width)
    states = torch.randn(8, value_heads, value_width, width)
    placed = states.to(device)

    output, _ = fused_recurrent.fused_recurrent_gated_delta_rule(
        *(part[None].to(device) for part in parts),
        initial_state=placed,
        cu_seqlens=offsets(lengths).to(device),
        ssm_state_indices=lines.to(device),
        use_qk_l2norm_in_kernel=True,
    )

    expected = states.double()
    start = 0
    for row, length in enumerate(lengths):
        state = expected[lines[row, 0]].clone()
        for token in range(length if row else 0):
            one = [part[start + token][None] for part in prepared(parts)]
            shown, state = recurrence(state, *one, width**-0.5)
            assert_near(output[0, start + token][None], shown, 2**-8)
            expected[lines[row, token]] = state
        start += length
    torch.testing.assert_close(placed.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.checks(
    f"{PACKAGE}.fused_recurrent:fused_recurrent_gated_delta_rule_packed_decode_kernel"
)
def test_packed_step(device: torch.device) -> None:
    torch.manual_seed(2)
    heads, value_heads, width, value_width, lines = 2, 4, 24, 40, [3, 0, 1]
    q, k, v, *_ = inputs(len(lines), heads, value_heads, width, value_width)
    a, b = torch.randn(2, len(lines), value_heads).bfloat16()
    log_rate, bias = torch.randn(2, value_heads)
    states = torch.randn(5, value_heads, value_width, width)
    placed = states.to(device)
    output = torch.empty(
        len(lines), 1, value_heads, value_width, dtype=torch.bfloat16, device=device
    )

    fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode(
        torch.cat([part.flatten(1) for part in (q, k, v)], -1).to(device),
        *place(device, a, b, log_rate, bias),
        width**-0.5,
        placed,
        output,
        int32(lines, device),
        use_qk_l2norm_in_kernel=True,
    )

    g = -log_rate.double().exp() * F.softplus(a.double() + bias)
    parts = prepared((q, k, v, g, torch.sigmoid(b.double())))
    expected = states.double()
    for row, line in enumerate(lines):
        if not line:
            assert (output[row].cpu() == 0).all()
            continue
        one = [part[row][None] for part in parts]
        shown, expected[line] = recurrence(expected[line], *one, width**-0.5)
        assert_near(output[row], shown, 2**-8)
    torch.testing.assert_close(placed.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_one_configuration")
@pytest.mark.checks(
    f"{PACKAGE}.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    f"{PACKAGE}.chunk_o:chunk_fwd_kernel_o",
    f"{PACKAGE}.chunk_scaled_dot_kkt:chunk_scaled_dot_kkt_fwd_kernel",
    f"{PACKAGE}.cumsum:chunk_local_cumsum_scalar_kernel",
    f"{PACKAGE}.l2norm:l2norm_fwd_kernel2",
    f"{PACKAGE}.solve_tril:merge_16x16_to_64x64_inverse_kernel",
    f"{PACKAGE}.wy_fast:recompute_w_u_fwd_kernel",
)
def test_prompts_in_chunks(device: torch.device) -> None:
    torch.manual_seed(3)
    lengths, heads, value_heads, width, value_width = [3, 150, 64], 1, 2, 64, 32
    parts = inputs(sum(lengths), heads, value_heads, width, value_width)
    initial = torch.randn(len(lengths), value_heads, value_width, width)

    output, final = chunk.chunk_gated_delta_rule(
        *(part[None].to(device) for part in parts),
        initial_state=initial.to(device),
        output_final_state=True,
        cu_seqlens=offsets(lengths).to(device),
        use_qk_l2norm_in_kernel=True,
    )

    start = 0
    for row, length in enumerate(lengths):
        rows = slice(start, start + length)
        one = [part[rows] for part in prepared(parts)]
        shown, state = recurrence(initial[row].double(), *one, width**-0.5)
        # Everything between the steps is of bfloat16.
        assert_near(output[0, rows], shown, 2**-6)
        assert_near(final[row], state, 2**-6)
        start += length
