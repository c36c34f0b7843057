# SPDX-License-Identifier: Apache-2.0
"""Top-k and top-p masks, and the pipeline that splits a row for top-p alone.

The whole-row kernel's tests run with the native kernel that stands in for it as well.

Of tokens that tie for the last place, any may be kept, as many as fit. The kernels compute with
float32 sums, so tokens at the edge of p may differ where their sum is within 1e-5 of it.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from comparison import Rows, assert_equal, float32, int32
from torch import Tensor
from vllm.v1.sample.ops import topk_topp_triton
from vllm.v1.sample.ops.topk_topp_triton import _apply_topp_split, apply_top_k_top_p_triton

MODULE = "vllm.v1.sample.ops.topk_topp_triton"
WHOLE = f"{MODULE}:_topk_topp_kernel"
SPLIT = [f"{MODULE}:_topp_sb_{part}_kernel" for part in ("stats", "step", "mask")]
EDGE = 1e-5


@pytest.fixture(params=["compiled", "native"])
def implementation(
    request: pytest.FixtureRequest,
    device: torch.device,
    launched: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Routes launches to the native kernel, which then counts as the one that is checked."""
    if request.param == "compiled":
        yield
        return
    if device.type != "anvil":
        pytest.skip("native kernels are for the anvil device")
    from vllm_anvil.ops import sampling
    from vllm_anvil.plugin import triton_overrides

    native = sampling.topk_topp

    def recorded(*args: Any) -> None:
        launched.add(WHOLE)
        native(*args)

    monkeypatch.setattr(sampling, "topk_topp", recorded)
    triton_overrides.register()
    yield
    triton_overrides.unregister()


def check_row(
    logits: Tensor, found: Tensor, k: int | None, p: float | None, blur: float = 2.0**-17
) -> None:
    """Checks one row: nothing but a mask of the less likely tokens, of the right size.

    `blur` is how much of the greatest probability the search for the last place may leave over.
    """
    kept = found > -math.inf
    assert_equal(found[kept], logits[kept])
    finite = int((logits > -math.inf).sum())
    limit = finite if k is None else min(k, finite)
    fewest = most = limit
    if p is not None and p < 1.0:
        # The likeliest of the `limit` tokens, up to the one with which their sum reaches p.
        best = torch.softmax(torch.sort(logits.double(), descending=True).values[:limit], 0)
        running = best.cumsum(0)
        first, last = (min(int((running < p + e).sum()), limit - 1) for e in (-EDGE, EDGE))
        fewest = min(first + 1, max(int((best > best[first] + blur * best[0]).sum()), 1))
        most = max(last + 1, int((best >= best[last] - blur * best[0]).sum()))
    count = int(kept.sum())
    assert fewest <= count <= most, (fewest, count, most)
    if 0 < count < len(logits):
        # All that is likelier than the least likely one is kept.
        assert logits[~kept].max() <= logits[kept].min()


def random_logits(rows: int, vocab_size: int) -> Tensor:
    torch.manual_seed(vocab_size)
    return torch.randn(rows, vocab_size) * 3


@pytest.mark.checks(WHOLE)
@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    ("vocab_size", "mode"),
    [(1, "k and p"), (1025, "k"), (1025, "p"), (1025, "k and p"), (32003, "p"), (32003, "k and p")],
)
def test_masks(device: torch.device, vocab_size: int, mode: str) -> None:
    k = [1, 40, vocab_size, 2, 1000, 5, 50, 7]
    k = [min(n, vocab_size) for n in k]
    p = [0.9, 1.0, 0.5, 0.999, 0.1, 0.95, 0.7, 1e-6]
    logits = random_logits(len(k), vocab_size)
    if vocab_size > 1:
        logits[4] *= 3  # one token with nearly everything
        logits[5, 3:] = -math.inf  # as a grammar leaves it: fewer tokens than k
        logits[6] *= 0.01  # nearly uniform
    rows = Rows(logits, device)
    found = apply_top_k_top_p_triton(
        rows.view,
        int32(k, device) if "k" in mode else None,
        float32(p, device) if "p" in mode else None,
    )
    assert_equal(found, rows.cpu())
    for row in range(len(k)):
        check_row(
            logits[row],
            found[row].cpu(),
            k[row] if "k" in mode else None,
            float(float32(p)[row]) if "p" in mode else None,
        )


@pytest.mark.checks(WHOLE)
@pytest.mark.usefixtures("implementation")
def test_ties_at_the_last_place(device: torch.device) -> None:
    logits = torch.zeros(4, 1025)
    logits[0, 700:900] = 1.0  # 200 share the first places, of which 10 are to be kept
    logits[1, ::2] = 2.0
    logits[1, 5] = 3.0
    logits[2, [1, 1000]] = 4.0
    logits[3] = torch.arange(1025).remainder(7).float()
    k = [10, 500, 1, 150]
    found = apply_top_k_top_p_triton(logits.to(device), int32(k, device), None).cpu()
    for row in range(4):
        check_row(logits[row], found[row], k[row], None)


@pytest.mark.checks(WHOLE)
@pytest.mark.usefixtures("implementation")
def test_more_rows_than_programs_and_another_mask(device: torch.device) -> None:
    logits = random_logits(70, 1025)
    columns = logits.T.contiguous().to(device).T  # not contiguous along the vocabulary
    k = [1 + row * 14 for row in range(70)]
    found = apply_top_k_top_p_triton(columns, int32(k, device), None, mask_value=-1e4).cpu()
    for row in range(70):
        assert (found[row] == -1e4).sum() == 1025 - k[row]
        check_row(logits[row], found[row].masked_fill(found[row] == -1e4, -math.inf), k[row], None)


@pytest.mark.checks(*SPLIT)
@pytest.mark.parametrize(
    ("vocab_size", "units", "with_k"), [(1025, 16, False), (32003, 64, True), (9000, 1, False)]
)
def test_split_rows(device: torch.device, vocab_size: int, units: int, with_k: bool) -> None:
    """The pipeline runs on CUDA alone in the engine, with as many slices as `units` allow."""
    p = [0.9, 1.0, 0.5, 0.999, 0.1, 0.95, 0.7, 0.3]
    logits = random_logits(8, vocab_size)
    logits[4] *= 10
    logits[5, 3:] = -math.inf
    logits[6] = 1.5  # uniform: kept whole
    logits[7, 100:] = logits[7, 100:].round()  # many ties
    logits[7, :100] = -20.0
    k = [vocab_size] * 8
    k[2] = 3  # the other kernel's row
    rows = Rows(logits, device)
    topk_topp_triton._TRITON_SPLIT_CACHE.clear()
    _apply_topp_split(
        rows.view,
        int32(k, device) if with_k else None,
        float32(p, device),
        -math.inf,
        units,
    )
    found = rows.cpu()
    for row in range(8):
        untouched = row in (1, 6) or (row == 2 and with_k)
        # Five rounds of nine intervals each, from the least probability to the greatest.
        check_row(logits[row], found[row], None, 1.0 if untouched else float(float32(p)[row]), 1e-6)
