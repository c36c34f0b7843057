# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
import torch.nn.functional as F

from vllm_anvil.ops import activation

from .row_independence import check_rows_are_independent


def test_gates_and_factors_are_the_right_halves(device: torch.device) -> None:
    x = torch.tensor([[1.0, -2.0, 10.0, 100.0]], device=device)
    expected = F.silu(x[:, :2]) * x[:, 2:]
    torch.testing.assert_close(activation.silu_and_mul(x), expected)


def test_the_two_forms_of_gelu_differ(device: torch.device) -> None:
    x = torch.linspace(-3, 3, 40, device=device)
    x = torch.cat((x, torch.ones_like(x)))
    exact, tanh = activation.gelu_and_mul(x), activation.gelu_and_mul(x, "tanh")
    torch.testing.assert_close(exact.cpu(), F.gelu(x[:40].cpu()))
    torch.testing.assert_close(tanh.cpu(), F.gelu(x[:40].cpu(), approximate="tanh"))
    assert 1e-4 < float((exact - tanh).abs().max()) < 1e-3


def test_gelu_far_below_0_is_not_rounded_to_0(device: torch.device) -> None:
    gate = -torch.linspace(5, 12, 50, dtype=torch.float64)
    x = torch.cat((gate, torch.ones(50))).float().to(device)
    expected = gate.float().double() * torch.special.erfc(-gate.float().double() / 2**0.5) / 2
    result = activation.gelu_and_mul(x).cpu().double()
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_independent(dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.randn(64, 2 * 555, device=device).to(dtype)
    check_rows_are_independent(activation.silu_and_mul, rows)
    check_rows_are_independent(activation.gelu_and_mul, rows)


def test_refusals_name_the_argument(device: torch.device) -> None:
    x = torch.ones(3, 8, device=device)
    with pytest.raises(TypeError, match="silu_and_mul: x must be float32, bfloat16 or float16"):
        activation.silu_and_mul(x.double())
    with pytest.raises(ValueError, match="gelu_and_mul: .* two halves, but has 7 elements"):
        activation.gelu_and_mul(x[:, :7])
    with pytest.raises(ValueError, match="silu_and_mul: x must have at least one dimension"):
        activation.silu_and_mul(x[0, 0])
    with pytest.raises(ValueError, match='must be "none" or "tanh", but is "sigmoid"'):
        activation.gelu_and_mul(x, "sigmoid")


def test_a_captured_graph_reads_its_input_anew() -> None:
    x = torch.zeros(3, 80, device="anvil")
    result = activation.silu_and_mul(x)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        result = activation.silu_and_mul(x)
    for seed in range(3):
        values = torch.randn(3, 80, generator=torch.Generator().manual_seed(seed))
        x.copy_(values)
        graph.replay()
        expected = F.silu(values[:, :40]) * values[:, 40:]
        torch.testing.assert_close(result.cpu(), expected)


def test_opcheck(device: torch.device) -> None:
    x = torch.randn(3, 4, 66, device=device).bfloat16().transpose(0, 1)
    ops = torch.ops.anvil
    torch.library.opcheck(ops.silu_and_mul, (x,))
    torch.library.opcheck(ops.gelu_and_mul, (x,))
    torch.library.opcheck(ops.gelu_and_mul, (x, "tanh"))
