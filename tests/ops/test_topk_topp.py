# SPDX-License-Identifier: Apache-2.0
"""Masks against a reference that sorts in float64.

Sums of float32 probabilities and the reference's may fall on different sides of p where they are
within EDGE of it; there either token may be the last.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.ops import sampling
from vllm_anvil.references import sampling as reference

from .row_independence import device_threads

EDGE = 1e-6
UNTOUCHED = -77.0


def expected_of(logits: Tensor, k: Tensor | None, p: Tensor | None, mask_value: float) -> Tensor:
    result = logits.clone()
    reference.topk_topp(result, k, p, mask_value)
    return result


def masked(
    logits: Tensor,
    k: list[int] | None,
    p: list[float] | None,
    device: torch.device,
    mask_value: float = -math.inf,
) -> Tensor:
    """The op's result for rows with gaps between them, after checking that nothing was written
    there and that k and p are as they were."""
    rows, vocab_size = logits.shape
    whole = torch.full((rows + 2, vocab_size + 7), UNTOUCHED).to(device)
    view = whole[1:-1, 3 : 3 + vocab_size]
    view.copy_(logits)
    ks = None if k is None else torch.tensor([9, *k], dtype=torch.int32).to(device)[1:]
    ps = None if p is None else torch.tensor([9, *p]).to(device)[1:]
    sampling.topk_topp(view, ks, ps, mask_value)
    result = view.clone().cpu()
    view.fill_(UNTOUCHED)
    assert (whole == UNTOUCHED).all(), "written outside of the rows"
    assert ks is None or ks.tolist() == k
    return result


def check(
    logits: Tensor,
    k: list[int] | None,
    p: list[float] | None,
    device: torch.device,
    mask_value: float = -math.inf,
) -> None:
    found = masked(logits, k, p, device, mask_value)
    fewest = most = expected_of(logits, as_int32(k), as_float32(p), mask_value)
    if p is not None:
        # Each on its own side of 1, where top-p ends.
        exact = torch.tensor(p).double()
        fewer = torch.where(exact < 1, exact * (1 - EDGE), exact)
        more = torch.where(exact < 1, (exact * (1 + EDGE)).clamp(max=1 - 1e-12), exact)
        fewest = expected_of(logits, as_int32(k), fewer, mask_value)
        most = expected_of(logits, as_int32(k), more, mask_value)
    counts = kept(logits, found)
    low, high = kept(logits, fewest), kept(logits, most)
    assert ((low <= counts) & (counts <= high)).all(), (low, counts, high)
    # So many, they are the greatest, the first of equal ones, and the others are masked.
    expected = expected_of(logits, counts, None, mask_value)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def as_int32(values: list[int] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.int32)


def as_float32(values: list[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32)


def kept(logits: Tensor, result: Tensor) -> Tensor:
    """How many tokens of each row a mask left."""
    return ((result == logits) & (logits > -math.inf)).sum(1)


def random_logits(rows: int, vocab_size: int, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + vocab_size)
    return torch.randn(rows, vocab_size, generator=generator) * scale


P = [0.9, 1.0, 0.5, 0.999, 0.1, 0.95, 0.0, 1e-6]


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 31, 33, 1025, 32003])
@pytest.mark.parametrize("mode", ["k", "p", "k and p"])
def test_masks(device: torch.device, vocab_size: int, mode: str) -> None:
    k = [min(n, vocab_size) for n in (1, 40, vocab_size, 2, 1000, 5, 50, 7)]
    check(
        random_logits(8, vocab_size),
        k if "k" in mode else None,
        P if "p" in mode else None,
        device,
    )


@pytest.mark.parametrize("scale", [1e-30, 0.01, 1.0, 30.0, 1e30])
def test_any_scale(device: torch.device, scale: float) -> None:
    check(random_logits(8, 3001, scale), [3000, 1, 100, 3001, 500, 33, 32, 31], P, device)
    check(random_logits(8, 3001, scale), None, P, device)


@pytest.mark.parametrize("vocab_size", [262144, 151936])
def test_large_vocabularies(device: torch.device, vocab_size: int) -> None:
    logits = random_logits(3, vocab_size)
    check(logits, [50, vocab_size - 1, 200_000], [0.9, 1.0, 0.9999], device)


@pytest.mark.parametrize("rows", [1, 2, 3, 256])
def test_any_number_of_rows(device: torch.device, rows: int) -> None:
    logits = random_logits(rows, 999)
    k, p = [1 + 3 * row for row in range(rows)], [(row % 11) / 10 for row in range(rows)]
    check(logits, k, p, device)
    # A row is the same by itself.
    together = masked(logits, k, p, device)
    for row in range(0, rows, 37):
        assert torch.equal(
            masked(logits[row : row + 1], [k[row]], [p[row]], device)[0], together[row]
        )


def test_ties_at_the_last_place(device: torch.device) -> None:
    logits = torch.zeros(6, 1025)
    logits[0, 700:900] = 1.0
    logits[1, ::2] = 2.0
    logits[1, 5] = 3.0
    logits[2, [1, 1000]] = 4.0
    logits[3] = torch.arange(1025).remainder(7)
    logits[4, ::3] = -0.0  # equal to 0
    logits[5] = random_logits(1, 1025)[0].bfloat16()
    k = [10, 500, 1, 150, 600, 300]
    check(logits, k, None, device)
    check(logits, k, [0.5, 0.9, 0.9, 0.3, 0.77, 0.6], device)
    check(logits, None, [0.5, 0.9, 0.9, 0.3, 0.77, 0.6], device)
    found = masked(logits, k, None, device)
    assert (found[0] == 1).nonzero().squeeze(1).tolist() == list(range(700, 710))


def test_probabilities_that_reach_p_exactly(device: torch.device) -> None:
    """Sums of powers of two are exact: the token with which they equal p is the last."""
    logits = torch.full((3, 40), -math.inf)
    logits[:, 7:11] = 2.5
    found = masked(logits, None, [0.5, 0.25, 0.75], device)
    assert [(row > -math.inf).nonzero().squeeze(1).tolist() for row in found] == [
        [7, 8],
        [7],
        [7, 8, 9],
    ]


@pytest.mark.parametrize("mask_value", [-math.inf, -1e4])
def test_few_finite_logits(device: torch.device, mask_value: float) -> None:
    """As a grammar leaves them."""
    logits = torch.full((6, 700), -math.inf)
    logits[0, 333] = -5.0
    logits[1, [5, 699]] = torch.tensor([1.0, 3.0])
    logits[2, 40:90] = torch.arange(50.0)
    logits[3, 40:90] = torch.arange(50.0)
    logits[4, 0] = 1e30
    for k in ([1, 2, 50, 10, 7, 3], [700] * 6, None):
        for p in (None, [0.9, 0.99, 0.5, 1.0, 0.5, 0.5]):
            if k or p:
                check(logits, k, p, device, mask_value)


def test_limits_that_do_nothing(device: torch.device) -> None:
    logits = random_logits(3, 100)
    logits[1, 5:50] = -math.inf
    logits[2, 7] = math.nan
    found = masked(logits, [100, 2**31 - 1, 100], [1.0, 2.0, math.nan], device, mask_value=-1e4)
    assert torch.equal(found.nan_to_num(5), logits.nan_to_num(5))


def test_limits_below_the_least(device: torch.device) -> None:
    found = masked(random_logits(3, 100), [0, -5, -(2**31)], None, device)
    assert (found > -math.inf).sum(1).tolist() == [1, 1, 1]
    found = masked(random_logits(2, 100), None, [-1.0, -math.inf], device)
    assert (found > -math.inf).sum(1).tolist() == [1, 1]


def test_nan_and_infinity(device: torch.device) -> None:
    logits = random_logits(6, 500)
    logits[0, [3, 499]] = math.nan
    logits[1] = math.nan
    logits[2, 9] = math.inf
    logits[3, [9, 10, 400]] = math.inf
    logits[4] = -math.inf
    logits[5, 1:] = -3.4e38
    logits[5, 0] = 3.4e38
    check(logits, [5] * 6, None, device)
    check(logits, [2] * 6, [0.9] * 6, device)
    check(logits, None, [0.9] * 6, device)


def test_the_same_whatever_the_number_of_threads() -> None:
    logits = random_logits(37, 5000, 1.0)
    p = [(row + 1) / 40 for row in range(37)]
    results = []
    for number in (1, 2, 3):
        with device_threads(number):
            results.append(masked(logits, [4000] * 37, p, torch.device("anvil")))
    results.append(masked(logits, [4000] * 37, p, torch.device("cpu")))
    assert all(torch.equal(result, results[0]) for result in results)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_any_row(data: st.DataObject) -> None:
    """Few distinct values, so that most boundaries are among equal ones."""
    values = st.sampled_from([-math.inf, -8.0, -1.5, -0.0, 0.0, 1e-40, 0.25, 2.0, 2.0000002, 9.0])
    row = data.draw(st.lists(values, min_size=1, max_size=200))
    k = data.draw(st.integers(1, len(row) + 1))
    p = data.draw(st.sampled_from([1.0, 0.05, 0.3, 0.71, 0.93, 0.9999]))
    mask_value = data.draw(st.sampled_from([-math.inf, -1e4]))
    check(torch.tensor([row]), [k], [p], torch.device("cpu"), mask_value)


def test_a_replayed_graph_reads_k_and_p_anew() -> None:
    logits = torch.zeros(2, 300, device="anvil")
    k = torch.tensor([3, 300], dtype=torch.int32, device="anvil")
    p = torch.ones(2, device="anvil")
    sampling.topk_topp(logits, k, p)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        sampling.topk_topp(logits, k, p)
    for ks, ps in (([1, 20], [1.0, 0.5]), ([7, 300], [0.3, 0.9])):
        fresh = random_logits(2, 300)
        logits.copy_(fresh)
        k.copy_(torch.tensor(ks, dtype=torch.int32))
        p.copy_(torch.tensor(ps))
        graph.replay()
        assert torch.equal(logits.cpu(), masked(fresh, ks, ps, torch.device("cpu")))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": torch.zeros(2, 8).bfloat16()}, TypeError, "logits must be Float"),
        ({"logits": torch.zeros(2, 8, 1)}, ValueError, "logits must have 2 dimension"),
        ({"logits": torch.zeros(8, 2).T}, ValueError, "the last dimension of logits"),
        ({"logits": torch.zeros(1, 8).expand(2, 8)}, ValueError, "elements of it share memory"),
        ({"k": torch.zeros(2, dtype=torch.int64)}, TypeError, "k must be Int, but is Long"),
        ({"k": torch.zeros(3, dtype=torch.int32)}, ValueError, "k has 3 elements for 2 rows"),
        ({"p": torch.zeros(2).double()}, TypeError, "p must be Float, but is Double"),
        ({"p": torch.zeros(4)[::2]}, ValueError, "p must be contiguous"),
        ({"p": torch.zeros(1)}, ValueError, "p has 1 elements for 2 rows"),
    ],
)
def test_refuses(
    device: torch.device, change: dict[str, Tensor], error: type[Exception], message: str
) -> None:
    arguments = {
        "logits": torch.zeros(2, 8),
        "k": torch.ones(2, dtype=torch.int32),
        "p": torch.ones(2),
    } | change
    moved = {
        name: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        for name, value in arguments.items()
    }
    with pytest.raises(error, match="anvil::topk_topp: .*" + message):
        sampling.topk_topp(**moved)


def test_refuses_mixed_devices() -> None:
    logits, k = torch.zeros(2, 8, device="anvil"), torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"k must be on anvil:0 .* but is on cpu"):
        sampling.topk_topp(logits, k)


def test_opcheck(device: torch.device) -> None:
    logits = random_logits(3, 40).to(device)
    k = torch.tensor([2, 40, 7], dtype=torch.int32, device=device)
    p = torch.tensor([0.9, 0.5, 1.0], device=device)
    for arguments in ((logits, k, p, -1e4), (logits, None, p, -math.inf)):
        torch.library.opcheck(torch.ops.anvil.topk_topp.default, arguments)
