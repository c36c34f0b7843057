# SPDX-License-Identifier: Apache-2.0
"""What an implementation can do wrong, and that each of it is noticed and named."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import vllm_anvil.device  # noqa: F401  before the references complete `torch.ops.anvil`
from anvil_attention.contract import AttentionImplementation, AttentionSpec, Unsupported
from anvil_attention.reference_implementation import attend, reference_attention
from anvil_attention.synthetic_batch import Request, make_call
from anvil_attention.verification import (
    WrongAttentionError,
    check,
    check_block_table,
    difference,
    place_call,
    verify,
)

SPEC = AttentionSpec(4, 2, 16, 16, 8, torch.float32, torch.float32, 0.25)
SPECS = [
    SPEC,
    dataclasses.replace(SPEC, dtype=torch.bfloat16, kv_dtype=torch.bfloat16),
    dataclasses.replace(SPEC, dtype=torch.float16, kv_dtype=torch.float8_e5m2),
    dataclasses.replace(SPEC, dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn),
    dataclasses.replace(SPEC, dtype=torch.bfloat16, kv_dtype=torch.int8),
    dataclasses.replace(SPEC, num_heads=9, num_kv_heads=3, head_size=12, value_head_size=7),
    dataclasses.replace(SPEC, sliding_window=11, has_sinks=True),
    dataclasses.replace(SPEC, logits_soft_cap=3.0, has_alibi=True),
    dataclasses.replace(SPEC, block_size=1, num_kv_heads=1),
    dataclasses.replace(SPEC, causal=False, sliding_window=3),
    dataclasses.replace(SPEC, causal=False, block_size=1),
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_the_reference_passes(spec: AttentionSpec, device: torch.device) -> None:
    verify(reference_attention, dataclasses.replace(spec, device=device.type), device)


def _spoiled(spoil: Callable[..., Any]) -> AttentionImplementation:
    return AttentionImplementation(name="spoiled", function=spoil)


def _one_percent(**a: Any) -> None:
    attend(**a)
    a["output"][: int(a["query_start_loc"][-1])] *= 1.01


def _one_row_one_percent(**a: Any) -> None:
    attend(**a)
    a["output"][0, 1] *= 0.99


def _scale(**a: Any) -> None:
    attend(**a | {"scale": a["scale"] * 1.03})


def _table_off_by_one(**a: Any) -> None:
    table = a["block_table"].roll(1, 1)
    attend(**a | {"block_table": torch.where(table == a["block_table"][:, -1:], 0, table)})


def _closer_heads(cache: Tensor) -> Tensor:
    steps = list(cache.stride())
    steps[2] -= 1
    return cache.as_strided(cache.shape, steps, cache.storage_offset())


def _head_stride_off_by_one(**a: Any) -> None:
    attend(**a | {"value_cache": _closer_heads(a["value_cache"])})


def _query_stride_off_by_one(**a: Any) -> None:
    q = a["query"]
    steps = (q.stride(0), q.stride(1) - 1, 1)
    attend(**a | {"query": q.as_strided(q.shape, steps, q.storage_offset())})


def _not_causal(**a: Any) -> None:
    attend(**a | {"causal": False})


def _one_key_too_many(**a: Any) -> None:
    attend(**a | {"seq_lens": a["seq_lens"] + (a["seq_lens"] > 0)})


def _all_rows_of_a_head_swapped(**a: Any) -> None:
    attend(**a)
    rows = a["output"][: int(a["query_start_loc"][-1])]
    rows.copy_(rows.flip(1))


def _writes_padding(**a: Any) -> None:
    attend(**a)
    a["output"][int(a["query_start_loc"][-1]) :] = 0


def _writes_before(**a: Any) -> None:
    attend(**a)
    o = a["output"]
    o.as_strided((1,), (1,), o.storage_offset() - 1).fill_(0)


def _writes_between_rows(**a: Any) -> None:
    attend(**a)
    o = a["output"]
    o.as_strided((1,), (1,), o.storage_offset() + o.shape[1] * o.shape[2]).fill_(0)


def _changes_cache(**a: Any) -> None:
    attend(**a)
    a["value_cache"][int(a["block_table"][0, 0]), 0] *= 2


def _changes_query(**a: Any) -> None:
    a["query"].mul_(a["scale"])
    attend(**a | {"scale": 1.0})


def _changes_table(**a: Any) -> None:
    attend(**a)
    a["block_table"][:, -1] = 0


def _changes_lengths(**a: Any) -> None:
    attend(**a)
    a["seq_lens"].add_(1)


def _writes_nothing(**a: Any) -> None:
    pass


def _returns(**a: Any) -> Tensor:
    attend(**a)
    return a["output"]


def _other_dtype(**a: Any) -> None:
    attend(**a)
    a["output"].data = a["output"].to(torch.float64)


def _other_shape(**a: Any) -> None:
    attend(**a)
    o = a["output"]
    o.data = o.reshape(o.shape[0], -1)


def _other_memory(**a: Any) -> None:
    attend(**a)
    a["output"].data = a["output"].clone()


def _transposed(**a: Any) -> None:
    attend(**a)
    rows = a["output"][: int(a["query_start_loc"][-1])]
    heads = rows.transpose(0, 1).reshape(-1)
    rows.copy_(heads.view(rows.shape))


MISTAKES: list[tuple[Callable[..., Any], str]] = [
    (_one_percent, "wrong values: output"),
    (_one_row_one_percent, r"wrong values: output\[0, 1"),
    (_scale, "wrong values"),
    (_table_off_by_one, "wrong values|NaN"),
    (_head_stride_off_by_one, "wrong values|NaN"),
    (_query_stride_off_by_one, "wrong values|NaN"),
    (_not_causal, "wrong values"),
    (_one_key_too_many, "wrong values|NaN"),
    (_all_rows_of_a_head_swapped, "wrong values"),
    (_transposed, "wrong values"),
    (_writes_nothing, "output was not written"),
    (_writes_padding, "mixed.*rows of padding were written"),
    (_writes_before, "memory around output was written"),
    (_writes_between_rows, "memory around output was written"),
    (_changes_cache, "(key|value)_cache was changed"),
    (_changes_query, "query was changed"),
    (_changes_table, "block_table was changed"),
    (_changes_lengths, "seq_lens was changed"),
    (_other_dtype, "output became .* torch.float64; it was given as .* torch.float32"),
    (_other_shape, r"output became \[4, 64\]"),
    (_other_memory, "output got other memory"),
]


@pytest.mark.parametrize(
    ("function", "message"), MISTAKES, ids=[function.__name__ for function, _ in MISTAKES]
)
def test_mistakes(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(WrongAttentionError, match=message):
        verify(_spoiled(function), dataclasses.replace(SPEC, device="cpu"), "cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_one_part_in_a_hundred_is_noticed_in_every_dtype(dtype: torch.dtype) -> None:
    spec = dataclasses.replace(SPEC, dtype=dtype, kv_dtype=dtype, head_size=64, value_head_size=64)
    with pytest.raises(WrongAttentionError, match="wrong values"):
        verify(_spoiled(_one_percent), spec, "cpu")
    with pytest.raises(WrongAttentionError, match="wrong values"):
        verify(_spoiled(_one_row_one_percent), spec, "cpu")


@pytest.mark.parametrize("function", [_one_percent, _writes_padding, _changes_cache])
def test_mistakes_on_the_device(function: Callable[..., Any]) -> None:
    with pytest.raises(WrongAttentionError):
        verify(_spoiled(function), SPEC, "anvil")


def _always_causal(**a: Any) -> None:
    attend(**a | {"causal": True})


def _one_for_all(**a: Any) -> None:
    causal = a["causal"]
    attend(**a | {"causal": causal if isinstance(causal, bool) else bool(causal[0])})


def _strides_of_keys_for_values(**a: Any) -> None:
    keys, values = a["key_cache"], a["value_cache"]
    same = values.as_strided(values.shape, keys.stride(), values.storage_offset())
    attend(**a | {"value_cache": same})


@pytest.mark.parametrize(
    ("function", "change", "batch"),
    [
        (_always_causal, {"causal": False}, "not causal, cache LBHNC"),
        (_one_for_all, {"causal": False}, "causal or not, cache LBHNC"),
        (_strides_of_keys_for_values, {"block_size": 1}, "cache apart"),
    ],
)
def test_what_shows_in_encoders_and_cross_attention_only(
    function: Callable[..., Any], change: dict[str, Any], batch: str
) -> None:
    verify(_spoiled(function), SPEC, "cpu")
    with pytest.raises(WrongAttentionError, match=rf"{batch}: (wrong values|.*NaN)"):
        verify(_spoiled(function), dataclasses.replace(SPEC, **change), "cpu")


def test_lengths_that_cannot_be() -> None:
    for request in (Request(3, 2), Request(-1, 2)):
        with pytest.raises(ValueError, match="a request cannot have"):
            make_call(SPEC, [request], seed=0)
    with pytest.raises(ValueError, match="a request cannot have"):
        make_call(SPEC, [Request(3, 2), Request(3, 2)], seed=0, causal=[False, True])
    assert make_call(SPEC, [Request(3, 2)], seed=0, causal=False).max_query_len == 3


def test_returning_something_is_an_error() -> None:
    with pytest.raises(TypeError, match="returned Tensor; it must write `output`"):
        verify(_spoiled(_returns), SPEC, "cpu")


def test_its_own_exceptions_come_through() -> None:
    def fails(**arguments: Any) -> None:
        raise ZeroDivisionError("no heads")

    with pytest.raises(ZeroDivisionError, match="no heads"):
        verify(_spoiled(fails), SPEC, "cpu")


def test_refusing_is_no_mistake() -> None:
    refusing = AttentionImplementation(
        name="refusing", function=attend, refuses=lambda spec: "no float32"
    )
    with pytest.raises(Unsupported, match="no float32"):
        verify(refusing, SPEC, "cpu")


@pytest.mark.parametrize(("size", "passes"), [(64, True), (60, False)])
def test_workspace(size: int, passes: bool) -> None:
    def uses_64(**a: Any) -> None:
        space = a["workspace"]
        space.as_strided((64,), (1,), space.storage_offset()).fill_(1)
        attend(**a)

    implementation = AttentionImplementation(
        name="uses_64", function=uses_64, workspace_bytes=lambda spec, tokens, requests: size
    )
    if passes:
        verify(implementation, SPEC, "cpu")
    else:
        with pytest.raises(WrongAttentionError, match="workspace_bytes is too small"):
            verify(implementation, SPEC, "cpu")


@pytest.mark.parametrize("block", [-1, 10_000, 2**31 - 1])
def test_a_block_table_that_leads_out_of_the_cache_is_refused(
    device: torch.device, block: int
) -> None:
    called = []
    host = make_call(SPEC, [Request(1, 20), Request(3, 3)], seed=0)
    host.block_table[0, 2] = block
    placed = place_call(host, device)
    implementation = _spoiled(lambda **arguments: called.append(arguments))
    expected = torch.zeros(4, 4, 16, dtype=torch.float64)
    with pytest.raises(IndexError, match=rf"block_table\[0, 2\] is {block}"):
        check(implementation, placed, expected)
    assert not called
    # Beyond a request's length entries may be anything.
    host.block_table[0, 2] = 1
    host.block_table[0, 3] = block
    check_block_table(place_call(host, device).call)


def test_running_again_gives_the_same_after_a_reset() -> None:
    host = make_call(SPEC, [Request(2, 9)], seed=0, padding=1)
    placed = place_call(host, "cpu")
    run = check(reference_attention, placed)
    first = placed.output.view.clone()
    placed.reset()
    assert bool(placed.output.view.isnan().all())
    run()
    torch.testing.assert_close(placed.output.view, first, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rounding_is_allowed(dtype: torch.dtype) -> None:
    expected = torch.randn(300, 4, 64, dtype=torch.float64)
    expected[5] = 0
    assert difference(expected.to(dtype), expected) is None
    wrong = expected.to(dtype)
    wrong[5, 1, 3] = 1e-3
    assert "output[5, 1, 3] is" in str(difference(wrong, expected))
    wrong[5, 1, 3] = torch.nan
    assert "(1 of 76800 elements are too far off)" in str(difference(wrong, expected))
