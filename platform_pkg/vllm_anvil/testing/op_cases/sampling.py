# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.sampling.

Which token is the last within p depends on a sum of probabilities. The p of every row is put in the
middle between two such sums, far enough from both that float32 and float64 agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vllm_anvil.references import sampling
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance

# Distance from p of every sum of probabilities: many times what float32 sums are off by.
MARGIN = 1e-4

_TARGETS = (0.9, 0.5, 0.05, 0.75, 0.99, 0.3)


def between_sums(row: Tensor, k: int, target: float) -> float:
    """The p nearest to `target` that lies in the middle of two neighbouring sums of the row's
    probabilities, after top-k, and at least MARGIN from them. 1.0 where there is none."""
    logits = row.double()[row > -torch.inf].sort(descending=True).values[: max(k, 1)]
    sums = torch.softmax(logits, 0).cumsum(0)
    edges = torch.cat((torch.zeros(1, dtype=torch.float64), sums))
    middles, gaps = (edges[1:] + edges[:-1]) / 2, edges[1:] - edges[:-1]
    usable = middles[(gaps > 2.5 * MARGIN) & (middles < 1 - MARGIN)]
    if not len(usable):
        return 1.0
    return float(usable[(usable - target).abs().argmin()])


def _case(
    name: str,
    logits: Callable[[Inputs], Tensor],
    k: Sequence[int] | None,
    with_p: bool,
    *,
    mask_value: float = float("-inf"),
    kind: str = "ordinary",
) -> Case:
    """`k` goes round from row to row; None: no top-k."""

    def make(inputs: Inputs) -> Arguments:
        values = logits(inputs)
        rows, vocab_size = values.shape
        ks = None if k is None else [k[row % len(k)] for row in range(rows)]
        ps = None
        if with_p:
            of = [vocab_size] * rows if ks is None else ks
            ps = torch.tensor(
                [
                    between_sums(values[row], of[row], _TARGETS[row % len(_TARGETS)])
                    for row in range(rows)
                ]
            )
        return {
            "logits": values,
            "k": None if ks is None else torch.tensor(ks, dtype=torch.int32),
            "p": ps,
            "mask_value": mask_value,
        }

    return Case(name, make, kind)


def _normal(rows: int, vocab_size: int, scale: float = 3.0) -> Callable[[Inputs], Tensor]:
    return lambda inputs: inputs.normal(rows, vocab_size, scale=scale)


def _ties(inputs: Inputs) -> Tensor:
    """Few different values: the last place is among equal ones."""
    return inputs.integers(6, 1025, high=7).float() * 2.5


def _as_a_grammar_leaves_them(inputs: Inputs) -> Tensor:
    logits = torch.full((5, 700), -torch.inf)
    logits[0, 333] = -5.0
    logits[1, [5, 699]] = torch.tensor([1.0, 3.0])
    logits[2:4, 40:90] = inputs.normal(2, 50, scale=3.0)
    return logits


def _not_finite(inputs: Inputs) -> Tensor:
    logits = inputs.normal(6, 500, scale=3.0)
    logits[0, [3, 499]] = torch.nan
    logits[1] = torch.nan
    logits[2, 9] = torch.inf
    logits[3, [9, 10, 400]] = torch.inf
    logits[4] = -torch.inf
    logits[5, 1:], logits[5, 0] = -3.4e38, 3.4e38
    return logits


def _cases() -> list[Case]:
    cases = []
    for vocab_size in (1, 2, 15, 16, 17, 33, 1025, 32003):
        k = [min(n, vocab_size) for n in (1, 40, vocab_size, 2, 1000, 7)]
        cases += [
            _case(f"k-vocab{vocab_size}", _normal(6, vocab_size), k, False),
            _case(f"p-vocab{vocab_size}", _normal(6, vocab_size), None, True),
            _case(f"k-and-p-vocab{vocab_size}", _normal(6, vocab_size), k, True),
        ]
    for rows in (1, 2, 70):
        cases.append(_case(f"k-and-p-rows{rows}", _normal(rows, 999), (50, 3, 999, 20), True))
    limits = (0, -5, -(2**31), 2**31 - 1)
    return [
        *cases,
        _case("no-rows", _normal(0, 50), (5,), True, kind="empty"),
        _case("k-beyond-its-range", _normal(4, 100), limits, False),
        _case("k-ties", _ties, (10, 500, 1, 150, 600, 300), False),
        _case("k-and-p-ties", _ties, (10, 500, 1, 150, 600, 300), True),
        _case("finite-mask", _normal(5, 300), (5, 100, 300), True, mask_value=-1e4),
        _case("k-few-finite", _as_a_grammar_leaves_them, (1, 2, 50, 10, 7), False),
        _case("p-few-finite", _as_a_grammar_leaves_them, None, True),
        _case("k-and-p-few-finite", _as_a_grammar_leaves_them, (1, 2, 50, 10, 7), True),
        _case("k-small", _normal(4, 1001, 1e-30), (5, 700), False, kind="extreme"),
        _case("k-large", _normal(4, 1001, 1e30), (5, 700), False, kind="extreme"),
        _case("p-large", _normal(4, 1001, 1e30), None, True, kind="extreme"),
        _case("k-not-finite", _not_finite, (5,), False, kind="special"),
    ]


OPS = (
    Op(
        name="topk_topp",
        family="sampling",
        reference=sampling.topk_topp,
        cases=tuple(_cases()),
        batch={"logits": 0, "k": 0, "p": 0},
        views=("logits",),
        allowed=Tolerance(0.0),  # logits stay as they are or are masked
        moved_bytes=lambda a: 2 * a["logits"].nbytes,
        benchmarks=tuple(
            _case(f"k-and-p-{rows}x49152", _normal(rows, 49152), (50,), True) for rows in (1, 32)
        ),
    ),
)
