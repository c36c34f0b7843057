# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_anvil.ops import softmax

from .row_independence import check_rows_are_independent


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, -3.5, 80.0, -200.0, 3e38, -3e38, 1e-40])
        | st.sampled_from([math.inf, -math.inf, math.nan, -math.inf]),
        min_size=1,
        max_size=40,
    )
)
def test_any_row_is_as_torch_has_it(values: list[float]) -> None:
    row = torch.tensor(values)
    expected = torch.softmax(row.double(), -1)
    torch.testing.assert_close(softmax.softmax(row).double(), expected, equal_nan=True)
    expected = torch.log_softmax(row.double(), -1).float()
    torch.testing.assert_close(softmax.log_softmax(row), expected, equal_nan=True)


def test_large_vocabularies(device: torch.device) -> None:
    logits = torch.randn(2, 151_936, device=device).bfloat16() * 4
    shares = softmax.softmax(logits).cpu()
    torch.testing.assert_close(shares.double().sum(1), torch.ones(2).double(), rtol=1e-6, atol=0)
    expected = torch.log_softmax(logits.cpu().double(), -1)
    torch.testing.assert_close(softmax.log_softmax(logits).cpu().double(), expected)


def test_the_logarithm_of_what_is_all_but_certain(device: torch.device) -> None:
    logits = torch.tensor([[20.0, 0.0, 0.0]], device=device)
    found = float(softmax.log_softmax(logits)[0, 0])
    assert found == pytest.approx(-math.log1p(2 * math.exp(-20)), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_independent(dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.randn(64, 1111, device=device).to(dtype)
    check_rows_are_independent(softmax.softmax, rows)
    check_rows_are_independent(softmax.log_softmax, rows)


def test_refusals_name_the_argument(device: torch.device) -> None:
    x = torch.ones(3, 8, device=device)
    with pytest.raises(TypeError, match="softmax: x must be float32, bfloat16 or float16, but is"):
        softmax.softmax(x.long())
    with pytest.raises(TypeError, match="log_softmax: x must be float32"):
        softmax.log_softmax(x.double())
    with pytest.raises(ValueError, match="log_softmax: x must have at least one dimension"):
        softmax.log_softmax(x[0, 0])


def test_a_captured_graph_reads_its_input_anew() -> None:
    x = torch.zeros(3, 80, device="anvil")
    result = softmax.softmax(x)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        result = softmax.softmax(x)
    for seed in range(3):
        values = torch.randn(3, 80, generator=torch.Generator().manual_seed(seed))
        x.copy_(values)
        graph.replay()
        torch.testing.assert_close(result.cpu(), torch.softmax(values, -1))


def test_opcheck(device: torch.device) -> None:
    x = torch.randn(3, 4, 33, device=device).bfloat16().transpose(0, 1)
    torch.library.opcheck(torch.ops.anvil.softmax, (x,))
    torch.library.opcheck(torch.ops.anvil.log_softmax, (x,))
