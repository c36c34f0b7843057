# SPDX-License-Identifier: Apache-2.0
"""State-space layers: a step of the state, whole prompts in chunks, and the gated norm after."""

import pytest
import torch
import torch.nn.functional as F
from comparison import int32, offsets, place
from torch import Tensor
from triton_wrappers import wrappers
from vllm.model_executor.layers.mamba.ops import (
    gather_initial_states,
    layernorm_gated,
    mamba_ssm,
    scatter_states,
    ssd_bmm,
    ssd_chunk_scan,
    ssd_chunk_state,
    ssd_state_passing,
)

PACKAGE = "vllm.model_executor.layers.mamba.ops"
ssd = wrappers(f"{PACKAGE}.ssd_combined")


def stepped(
    state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """The next state and what it shows, of one token, all float64.

    state [heads, dim, n]; x and dt [heads, dim]; a broadcasts to the state; b and c [heads, n].
    """
    grown = dt[..., None]
    state = state * torch.exp(grown * a) + grown * x[..., None] * b[:, None]
    return state, (state * c[:, None]).sum(-1)


def assert_near(actual: Tensor, expected: Tensor, size: Tensor, epsilon: float) -> None:
    error = (actual.cpu().double() - expected).abs()
    limit = epsilon * size
    assert (error <= limit).all(), float((error / limit.clamp(min=1e-30)).max())


@pytest.mark.checks(f"{PACKAGE}.mamba_ssm:_selective_scan_update_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("heads", "groups", "dim", "n"), [(4, 2, 24, 16), (1, 1, 70, 10)])
def test_step(
    device: torch.device,
    dtype: torch.dtype,
    tied: bool,
    heads: int,
    groups: int,
    dim: int,
    n: int,
) -> None:
    """`tied`: a head's A, dt and its bias are single numbers, as in the second Mamba."""
    torch.manual_seed(1)
    lines, count = [3, 0, 5], 7
    state = torch.randn(count, heads, dim, n)
    x, z = torch.randn(2, len(lines), heads, dim).to(dtype)
    b, c = torch.randn(2, len(lines), groups, n).to(dtype)
    d = torch.randn(heads, dim)
    if tied:
        a = -torch.rand(heads)[:, None, None].expand(heads, dim, n)
        dt = torch.randn(len(lines), heads).to(dtype)[..., None].expand(-1, -1, dim)
        bias = torch.randn(heads)[:, None].expand(heads, dim)
    else:
        a = -torch.rand(heads, dim, n)
        dt = torch.randn(len(lines), heads, dim).to(dtype)
        bias = torch.randn(heads, dim)
    placed = state.to(device)
    output = torch.full_like(x, 7, device=device)
    strided = []
    for tensor in (dt, a, bias):
        # A copy to the device would lose the strides of 0.
        core = tensor[..., :1] if tied else tensor
        core = core[..., :1, :] if tied and tensor is a else core
        strided.append(core.contiguous().to(device).expand(tensor.shape))

    mamba_ssm.selective_state_update(
        placed,
        x.to(device),
        *strided[:2],
        *place(device, b, c, d),
        strided[2],
        z=z.to(device),
        dt_softplus=True,
        state_batch_indices=int32(lines, device),
        out=output,
    )

    expected = state.double()
    for row, line in enumerate(lines):
        if not line:
            continue
        spread = [part[row].double().repeat_interleave(heads // groups, 0) for part in (b, c)]
        step = F.softplus(dt[row].double() + bias.double())
        inputs = x[row].double()
        expected[line], shown = stepped(expected[line], inputs, step, a.double(), *spread)
        gate = F.silu(z[row].double())
        _, size = stepped(
            state[line].double().abs(), inputs.abs(), step, a.double(), *(p.abs() for p in spread)
        )
        whole, whole_size = shown + d * inputs, size + (d * inputs).abs()
        epsilon = max(torch.finfo(dtype).eps, 4e-6)
        assert_near(output[row], whole * gate, whole_size * gate.abs(), epsilon)
    torch.testing.assert_close(placed.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def _one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to choose by time: the results must be the same anyway."""
    for kernel in (
        ssd_bmm._bmm_chunk_fwd_kernel,
        ssd_chunk_scan._chunk_scan_fwd_kernel,
        ssd_chunk_state._chunk_cumsum_fwd_kernel,
        ssd_chunk_state._chunk_state_fwd_kernel,
        ssd_state_passing._state_passing_fwd_kernel,
    ):
        monkeypatch.setattr(kernel, "configs", kernel.configs[-1:])
        monkeypatch.setattr(kernel, "cache", {})


@pytest.mark.usefixtures("_one_configuration")
@pytest.mark.checks(
    f"{PACKAGE}.ssd_bmm:_bmm_chunk_fwd_kernel",
    f"{PACKAGE}.ssd_chunk_scan:_chunk_scan_fwd_kernel",
    f"{PACKAGE}.ssd_chunk_state:_chunk_cumsum_fwd_kernel",
    f"{PACKAGE}.ssd_chunk_state:_chunk_state_fwd_kernel",
    f"{PACKAGE}.ssd_state_passing:_state_passing_fwd_kernel",
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("with_initial", "with_gate"), [(True, True), (False, False)])
def test_prompts_in_chunks(
    device: torch.device, dtype: torch.dtype, with_initial: bool, with_gate: bool
) -> None:
    torch.manual_seed(2)
    lengths, chunk, heads, groups, dim, n = [5, 40, 16, 1], 16, 4, 2, 24, 20
    total = sum(lengths)
    x, z = torch.randn(2, total, heads, dim).to(dtype)
    b, c = torch.randn(2, total, groups, n).to(dtype)
    dt, bias = torch.randn(total, heads).to(dtype), torch.randn(heads) - 1
    a, d = -torch.rand(heads) - 0.1, torch.randn(heads)
    initial = torch.randn(len(lengths), heads, dim, n) if with_initial else None
    # A chunk ends where its sequence does.
    pieces, owners, last = [], [], []
    for row, length in enumerate(lengths):
        pieces += [chunk] * (length // chunk) + [length % chunk] * (length % chunk > 0)
        owners += [row] * (len(pieces) - len(owners))
        last.append(len(pieces) - 1)
    output = torch.empty_like(x, device=device)

    states = ssd.mamba_chunk_scan_combined_varlen(
        *place(device, x, dt, a, b, c),
        chunk,
        offsets(lengths).to(device),
        offsets(pieces).to(device),
        int32(last, device),
        int32(owners, device),
        output,
        D=d.to(device),
        z=z.to(device) if with_gate else None,
        dt_bias=bias.to(device),
        initial_states=None if initial is None else initial.to(device),
        dt_softplus=True,
        state_dtype=torch.float32,
    )

    wide = [part.double().repeat_interleave(heads // groups, 1) for part in (b, c)]
    rate = a.double()[:, None, None]
    epsilon = 1e-5 if dtype == torch.float32 else 1.5 * torch.finfo(dtype).eps
    start = 0
    for row, length in enumerate(lengths):
        state = torch.zeros(heads, dim, n).double() if initial is None else initial[row].double()
        size = state.abs()
        for token in range(start, start + length):
            step = F.softplus(dt[token].double() + bias)[:, None].expand(heads, dim)
            inputs, vectors = x[token].double(), [part[token] for part in wide]
            state, shown = stepped(state, inputs, step, rate, *vectors)
            size, shown_size = stepped(
                size, inputs.abs(), step, rate, *(part.abs() for part in vectors)
            )
            direct = d.double()[:, None] * inputs
            gate = F.silu(z[token].double()) if with_gate else torch.ones(())
            assert_near(
                output[token],
                (shown + direct) * gate,
                (shown_size + direct.abs()) * gate.abs(),
                epsilon,
            )
        assert_near(states[row], state, size, epsilon)
        start += length


@pytest.mark.checks(f"{PACKAGE}.layernorm_gated:_layer_norm_fwd_1pass_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("width", "group"), [(60, None), (96, 32)])
def test_gated_norm(
    device: torch.device, dtype: torch.dtype, norm_first: bool, width: int, group: int | None
) -> None:
    torch.manual_seed(3)
    x, z = torch.randn(2, 7, width).to(dtype)
    weight = torch.randn(width).to(dtype)

    result = layernorm_gated.rms_norm_gated(
        *place(device, x, weight),
        None,
        z=z.to(device),
        group_size=group,
        norm_before_gate=norm_first,
    )

    gate = F.silu(z.double())
    values = x.double() if norm_first else x.double() * gate
    groups = values.unflatten(-1, (-1, group or width))
    normed = groups / (groups.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = normed.flatten(-2) * weight.double()
    expected = expected * gate if norm_first else expected
    rounding = max(torch.finfo(dtype).eps / 2 * 1.001, 2e-6)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=rounding, atol=0)


@pytest.mark.checks(f"{PACKAGE}.layernorm_gated:_layer_norm_fwd_1pass_kernel")
def test_layer_norm(device: torch.device) -> None:
    torch.manual_seed(4)
    x, (weight, bias) = torch.randn(5, 60) * 3 + 1, torch.randn(2, 60)

    result, mean, reciprocal = layernorm_gated._layer_norm_fwd(
        *place(device, x, weight, bias), 1e-5
    )

    expected = F.layer_norm(x.double(), (60,), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean.cpu(), x.mean(-1), rtol=1e-5, atol=1e-6)
    deviation = (x.var(-1, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(reciprocal.cpu(), deviation, rtol=1e-5, atol=0)


@pytest.mark.checks(
    f"{PACKAGE}.gather_initial_states:_gather_initial_states_kernel",
    f"{PACKAGE}.scatter_states:_scatter_states_kernel",
)
def test_states_in_and_out(device: torch.device) -> None:
    """Rows of the states and back; the functions want CUDA's tensors."""
    torch.manual_seed(5)
    states, lines = torch.randn(6, 150).bfloat16(), [4, 0, 3]
    states[0] = torch.nan
    had = torch.tensor([True, False, True], device=device)
    gathered = torch.full((3, 150), 7, dtype=torch.bfloat16, device=device)
    padded = torch.full((6, 160), 7, dtype=torch.bfloat16, device=device)
    padded[:, :150] = states.to(device)
    sizes = {"row_size": 150, "BLOCK_SIZE": 64, "launch_pdl": False}

    gather_initial_states._gather_initial_states_kernel[(3, 3)](
        padded, int32(lines, device), had, gathered, 160, 1, 1, **sizes
    )
    scatter_states._scatter_states_kernel[(3, 3)](
        padded, gathered, int32([1, 5, 0], device), 160, 150, 1, **sizes
    )

    expected = states[lines]
    expected[1] = 0
    assert torch.equal(gathered.cpu(), expected)
    after = states.clone()
    after[[1, 5, 0]] = expected
    assert torch.equal(padded.cpu()[:, :150], after) and (padded.cpu()[:, 150:] == 7).all()
