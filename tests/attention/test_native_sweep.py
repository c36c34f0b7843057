# SPDX-License-Identifier: Apache-2.0
"""The native attention in thousands of random calls, once per instruction set.

`native_sweep` runs them, in a process for each instruction set; here is what is asked of it, and
that it finds what it is to find.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_attention import Sketch, any_spec, dense_attention, sketches
from hypothesis import given, settings
from matrix_attention import matrix_attention
from native_sweep import sweep

from anvil_attention.contract import AttentionImplementation
from anvil_attention.reference_implementation import attend, reference_attention
from anvil_attention.verification import WrongAttentionError

# What ANVIL_ATTENTION_IMPL names.
IMPLEMENTATION = "native"
CASES = 2000
# The slowest first, so that the last to end is a quick one.
ISAS = tuple(reversed(torch.anvil.supported_isas()))
# Of which there must be many in every sweep: a strategy that never draws them would test nothing.
FEATURES = {
    100: [
        *("query torch.bfloat16", "query torch.float16", "query torch.float32"),
        *("cache torch.float8_e4m3fn", "cache torch.float8_e5m2", "cache torch.int8"),
        *("on cpu", "on anvil", "batch invariant", "heads before tokens", "unaligned rows"),
        *("causal", "not causal", "causal per request", "a window of less than the keys"),
        *("a soft cap", "large logits", "slopes", "sinks", "scales", "padding"),
        *("a cache of another type", "values of another size", "values that are parts of keys"),
        *("an odd head size", "heads of more than 256", "groups of more than 8 heads"),
        *("blocks of one token", "blocks of more than 64 tokens", "more than 8 requests"),
        *("requests without rows", "more than 64 keys", "more than 48 rows", "more than 512 keys"),
    ],
    20: [
        *("huge logits", "more than 48 rows of more than 64 keys", "more than 2048 keys"),
        *("requests without keys", "more rows than keys"),
    ],
}


def run_sweep(isa: str, number: int) -> dict[str, Any]:
    """What `native_sweep` prints. Several share the cores, so that their threads must not spin."""
    settings = {
        "ANVIL_ISA": isa,
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "passive",
        "OPENBLAS_NUM_THREADS": "1",
    }
    script = str(Path(__file__).with_name("native_sweep.py"))
    child = subprocess.run(
        [sys.executable, script, IMPLEMENTATION, "--cases", str(CASES), "--seed", str(number)],
        env=os.environ | settings | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def sweeps() -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The sweeps of all instruction sets, each with cases of its own, as many at once as there are
    cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {isa: pool.submit(run_sweep, isa, number) for number, isa in enumerate(ISAS)}


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str, sweeps: dict[str, Future[dict[str, Any]]]) -> None:
    found = sweeps[isa].result()
    assert found["isa"] == isa
    assert found["seen"]["cases"] == CASES
    for least, names in FEATURES.items():
        seen = {name: found["seen"].get(name, 0) for name in names}
        assert min(seen.values()) >= least, seen


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(sketch=sketches(any_spec()))
def test_expected_values_are_those_of_the_definition(sketch: Sketch) -> None:
    call = sketch.call()
    torch.testing.assert_close(
        matrix_attention(call).values, dense_attention(call), rtol=1e-11, atol=1e-12
    )


def test_a_right_implementation_passes() -> None:
    assert sweep(reference_attention, 80, 0)["cases"] == 80


def _one_percent_in_a_row(**a: Any) -> None:
    attend(**a)
    rows = int(a["query_start_loc"][-1])
    if rows:
        a["output"][rows - 1, -1] *= 1.01


def _one_element_is_missing(**a: Any) -> None:
    """The last of a query and a key, where their number is odd."""
    size = a["query"].shape[2]
    size -= size % 2 if size > 1 else 0
    attend(**a | {"query": a["query"][..., :size], "key_cache": a["key_cache"][..., :size]})


def _a_key_too_many(**a: Any) -> None:
    attend(**a | {"seq_lens": a["seq_lens"] + (a["seq_lens"] > 0)})


def _one_key_again_from_the_256th_on(**a: Any) -> None:
    """Where a range of keys is cut, as if the second part began one key too early."""
    keys = a["key_cache"].clone()
    size = keys.shape[1]
    for row, number in zip(a["block_table"].long(), a["seq_lens"].tolist(), strict=True):
        if number > 256:
            before = keys[row[255 // size], 255 % size]
            keys[row[256 // size], 256 % size].copy_(before)
    attend(**a | {"key_cache": keys})


def _without(name: str) -> Callable[..., None]:
    def spoiled(**a: Any) -> None:
        attend(**a | {name: 1.0})

    return spoiled


def _window_is_longer_from_afar(**a: Any) -> None:
    """A window of more than a block of keys has one key more at its far end."""
    window = a["sliding_window"]
    attend(**a | {"sliding_window": window + 1 if window is not None and window > 64 else window})


def _no_window_after_the_row(**a: Any) -> None:
    """Nobody but causal rows has an end."""
    attend(**a | {"sliding_window": a["sliding_window"] if a["causal"] is True else None})


def _blocks_after_the_64th_key(**a: Any) -> None:
    """They are in each other's places."""
    table = a["block_table"].clone()
    first = 64 // a["key_cache"].shape[1] + 1
    for row, keys in zip(table, a["seq_lens"].tolist(), strict=True):
        last = -(-keys // a["key_cache"].shape[1])
        row[first:last] = row[first:last].flip(0)
    attend(**a | {"block_table": table})


def _sinks_are_scaled(**a: Any) -> None:
    attend(**a | {"sinks": None if a["sinks"] is None else a["sinks"] * a["scale"]})


def _slopes_of_the_next_head(**a: Any) -> None:
    slopes = a["alibi_slopes"]
    attend(**a | {"alibi_slopes": None if slopes is None else slopes.roll(1)})


def _heads_of_the_next_group(**a: Any) -> None:
    """With groups of more than 8 heads."""
    kv_heads = a["key_cache"].shape[2]
    far = a["query"].shape[1] // kv_heads > 8
    attend(**a | {"key_cache": a["key_cache"].roll(1, 2) if far else a["key_cache"]})


def _padding_is_cleared(**a: Any) -> None:
    attend(**a)
    a["output"][int(a["query_start_loc"][-1]) :] = 0


def _writes_beside_a_row(**a: Any) -> None:
    attend(**a)
    out = a["output"]
    if out.stride(1) > out.shape[2]:
        out.as_strided((1,), (1,), out.storage_offset() + out.shape[2]).fill_(0)


@pytest.mark.parametrize(
    "spoiled",
    [
        _one_percent_in_a_row,
        _one_element_is_missing,
        _a_key_too_many,
        _one_key_again_from_the_256th_on,
        _without("k_scale"),
        _without("v_scale"),
        _window_is_longer_from_afar,
        _no_window_after_the_row,
        _blocks_after_the_64th_key,
        _sinks_are_scaled,
        _slopes_of_the_next_head,
        _heads_of_the_next_group,
        _padding_is_cleared,
        _writes_beside_a_row,
    ],
    ids=lambda spoiled: spoiled.__qualname__.partition(".")[0].strip("_"),
)
def test_planted_errors_are_found(spoiled: Callable[..., None]) -> None:
    """Each within the first cases of a sweep, many of which it leaves alone."""
    with pytest.raises(WrongAttentionError):
        sweep(AttentionImplementation("spoiled", spoiled), 300, 0, devices=("cpu",), shrink=False)
