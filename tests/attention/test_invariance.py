# SPDX-License-Identifier: Apache-2.0
"""Results that do not depend on the batch: who promises them, and whether it is true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anvil_attention import serving
from anvil_attention.contract import AttentionImplementation, AttentionSpec
from anvil_attention.invariance import BATCH, rows_of, verify_invariance
from anvil_attention.reference_implementation import reference_attention
from anvil_attention.resolve import resolve
from anvil_attention.synthetic_batch import make_call
from anvil_attention.verification import WrongAttentionError, expected_output

SPEC = AttentionSpec(
    6, 2, 32, 32, 16, torch.float32, torch.float32, 0.2, device="cpu", batch_invariant=True
)
CPU = torch.device("cpu")


def row_by_row(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    **options: Any,
) -> None:
    """Causal attention that knows nothing but a row and its keys."""
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // num_kv_heads
    starts = query_start_loc.tolist()
    for request, length in enumerate(seq_lens.tolist()):
        for row in range(starts[request], starts[request + 1]):
            keys = length - (starts[request + 1] - 1 - row)
            blocks = block_table[request, : -(-keys // block_size)].long()
            key, value = (
                cache[blocks].flatten(0, 1)[:keys].repeat_interleave(group, dim=1)
                for cache in (key_cache, value_cache)
            )
            logits = (key * query[row] * scale).sum(-1)
            output[row] = (logits.softmax(0)[..., None] * value).sum(0)


def depends_on_its_neighbours(seq_lens: Tensor, output: Tensor, **arguments: Any) -> None:
    row_by_row(seq_lens=seq_lens, output=output, **arguments)
    output[:1] *= 1 + 1e-6 * len(seq_lens)


def depends_on_the_step(query: Tensor, output: Tensor, **arguments: Any) -> None:
    row_by_row(query=query, output=output, **arguments)
    output[0] *= 1 + 1e-6 * (len(query) == 1)


def test_one_that_does_not_depend_on_the_batch() -> None:
    verify_invariance(AttentionImplementation("it", row_by_row, batch_invariant=True), SPEC, CPU)


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (depends_on_its_neighbours, "1 rows and 2053 keys is not the same with the request alone"),
        (depends_on_the_step, "1 rows and 2053 keys is not the same with the request alone"),
        (reference_attention.function, "is not the same with the r"),
    ],
)
def test_what_depends_on_the_batch_is_found(function: Any, how: str) -> None:
    plain = lambda batch_invariant, **arguments: function(**arguments)  # noqa: E731
    found = AttentionImplementation("it", plain, batch_invariant=True)
    with pytest.raises(WrongAttentionError, match=f"results depend on the batch: .*{how}"):
        verify_invariance(found, SPEC, CPU)


def test_rows_of_a_request_are_its_rows() -> None:
    host = replace(make_call(SPEC, BATCH, seed=7, padding=3), spec=replace(SPEC))
    whole = expected_output(host)
    starts = host.query_start_loc.tolist()
    for request, rows in ((1, range(4)), (1, range(1, 3)), (2, range(5)), (4, range(2, 3))):
        part = expected_output(rows_of(host, request, rows))
        expected = whole[starts[request] + rows.start : starts[request] + rows.stop]
        torch.testing.assert_close(part, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 300])
def test_native_is_what_it_declares(
    dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    native = resolve("native")
    assert native.batch_invariant
    spec = replace(
        SPEC, dtype=dtype, kv_dtype=dtype, sliding_window=window, device=device.type, head_size=64
    )
    verify_invariance(native, replace(spec, value_head_size=64), device)


# ---------------------------------------------------------------------- when it is asked for


def test_only_who_declares_it_is_asked_and_told() -> None:
    call = make_call(SPEC, BATCH[2:4], seed=1)
    assert call.keywords()["batch_invariant"] is True
    plain = replace(call, spec=replace(SPEC, batch_invariant=False))
    assert "batch_invariant" not in plain.keywords()
    assert set(plain.keywords()) | {"batch_invariant"} == set(call.keywords())
    assert resolve("reference").refusal(plain.spec) is None
    assert "depend on the batch" in (resolve("reference").refusal(SPEC) or "")


def test_refusal_names_the_variable_that_asks() -> None:
    served = serving.Served("mine", AttentionImplementation("mine", row_by_row))
    with pytest.raises(ValueError, match=r"mine: it refuses.* Unset VLLM_BATCH_INVARIANT"):
        served.admit([SPEC], CPU, 8, 4)


def test_promise_is_checked_before_it_serves() -> None:
    honest = AttentionImplementation("honest", row_by_row, batch_invariant=True)
    serving.Served("honest", honest).admit([SPEC], CPU, 8, 4)
    false = AttentionImplementation("false", depends_on_its_neighbours, batch_invariant=True)
    with pytest.raises(ValueError, match="=false: results depend on the batch"):
        serving.Served("false", false).admit([SPEC], CPU, 8, 4)
