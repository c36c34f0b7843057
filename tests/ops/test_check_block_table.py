# SPDX-License-Identifier: Apache-2.0
"""Which batches check_block_table refuses, and in which words."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.ops import cache
from vllm_anvil.references import cache as reference

BLOCK_SIZE, NUM_BLOCKS = 4, 10


def make_arguments() -> dict[str, Any]:
    """Three requests of 5, 0 query and 12 tokens; the second is padding."""
    return {
        "block_table": torch.tensor(
            [[9, 3, -1, 99], [-5, 77, 10, 10], [0, 1, 2, 10]], dtype=torch.int32
        ),
        "query_start_loc": torch.tensor([0, 2, 2, 3], dtype=torch.int32),
        "seq_lens": torch.tensor([5, -3, 12], dtype=torch.int32),
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
    }


def on(arguments: dict[str, Any], device: str | torch.device) -> dict[str, Any]:
    return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in arguments.items()}


def check(arguments: dict[str, Any]) -> None:
    cache.check_block_table(**arguments)
    torch.anvil.synchronize()  # what depends on values is reported by the next wait


def message_of(function: Any, arguments: dict[str, Any]) -> str | None:
    try:
        function(**arguments)
        torch.anvil.synchronize()
    except IndexError as error:
        return str(error).split("\n")[0]
    return None


def test_unused_entries_and_padding_may_hold_anything(device: torch.device) -> None:
    check(on(make_arguments(), device))


WRONG_VALUES = {
    "entry past the end": (("block_table", (0, 1), 10), r"block_table\[0, 1\] is 10"),
    "negative entry": (("block_table", (2, 2), -1), r"block_table\[2, 2\] is -1"),
    "entry that a longer request uses": (("seq_lens", (0,), 9), r"block_table\[0, 2\] is -1"),
    "longer than a row": (
        ("seq_lens", (2,), 17),
        r"seq_lens\[2\] is 17, but a row of block_table holds 4 blocks of 4",
    ),
    "negative length": (("seq_lens", (0,), -1), r"seq_lens\[0\] is -1, but a row"),
    "padding that is none": (("query_start_loc", (2,), 3), r"seq_lens\[1\] is -3, but a row"),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_refuses_what_would_be_read_outside_of_the_cache(device: torch.device, case: str) -> None:
    (name, index, value), message = WRONG_VALUES[case]
    arguments = make_arguments()
    arguments[name][index] = value
    with pytest.raises(IndexError, match="anvil::check_block_table: " + message) as native:
        check(on(arguments, device))
    with pytest.raises(IndexError) as plain:
        reference.check_block_table(**arguments)
    assert str(plain.value) in str(native.value)


def test_no_blocks_at_all(device: torch.device) -> None:
    arguments = make_arguments() | {"num_blocks": 0}
    with pytest.raises(IndexError, match=r"block_table\[0, 0\] is 9, but the cache has blocks"):
        check(on(arguments, device))


def test_rows_beyond_the_requests_are_padding(device: torch.device) -> None:
    arguments = make_arguments()
    arguments["block_table"][2] = 100
    arguments["query_start_loc"] = arguments["query_start_loc"][:3]
    check(on(arguments, device))
    arguments = make_arguments()
    arguments["block_table"][2] = 100
    arguments["seq_lens"] = arguments["seq_lens"][:2]
    check(on(arguments, device))


def test_rows_of_a_wider_table(device: torch.device) -> None:
    arguments = on(make_arguments(), device)
    wide = torch.full((6, 9), 1000, dtype=torch.int32, device=device)
    wide[1::2, 3:7] = arguments["block_table"]
    arguments["block_table"] = wide[1::2, 3:7]
    check(arguments)
    wide[5, 5] = -9
    with pytest.raises(IndexError, match=r"block_table\[2, 2\] is -9"):
        check(arguments)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(data=st.data(), requests=st.integers(0, 5), columns=st.integers(1, 40))
def test_same_as_the_reference(data: st.DataObject, requests: int, columns: int) -> None:
    entries = st.one_of(st.integers(0, NUM_BLOCKS - 1), st.sampled_from([-1, 10, 2**31 - 1]))
    good = st.integers(0, NUM_BLOCKS - 1)
    rows = [
        data.draw(
            st.lists(
                data.draw(st.sampled_from([good, entries])), min_size=columns, max_size=columns
            )
        )
        for _ in range(requests)
    ]
    counts = data.draw(st.lists(st.integers(0, 2), min_size=requests, max_size=requests))
    lengths = st.integers(-1, columns * BLOCK_SIZE + 1)
    arguments = {
        "block_table": torch.tensor(rows, dtype=torch.int32).view(requests, columns),
        "query_start_loc": torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int(),
        "seq_lens": torch.tensor(
            data.draw(st.lists(lengths, min_size=requests, max_size=requests)), dtype=torch.int32
        ),
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
    }
    expected = message_of(reference.check_block_table, arguments)
    for device in ("cpu", "anvil"):
        assert (message_of(cache.check_block_table, on(arguments, device)) or "").endswith(
            expected or ""
        )
        assert (message_of(cache.check_block_table, on(arguments, device)) is None) == (
            expected is None
        )


def test_a_replayed_graph_checks_anew() -> None:
    arguments = on(make_arguments(), "anvil")
    check(arguments)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        cache.check_block_table(**arguments)
    graph.replay()
    torch.anvil.synchronize()
    arguments["block_table"][0, 0] = 10
    graph.replay()
    with pytest.raises(IndexError, match=r"block_table\[0, 0\] is 10"):
        torch.anvil.synchronize()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"block_table": torch.zeros(3, 4).long()}, TypeError, "block_table must be Int"),
        ({"seq_lens": torch.zeros(3).long()}, TypeError, "seq_lens must be Int, but is Long"),
        ({"query_start_loc": torch.zeros(4)}, TypeError, "query_start_loc must be Int"),
        ({"block_table": torch.zeros(12).int()}, ValueError, "block_table must have 2 dimension"),
        (
            {"block_table": torch.zeros(4, 3).int().T},
            ValueError,
            "the last dimension of block_table must be contiguous",
        ),
        ({"seq_lens": torch.zeros(6).int()[::2]}, ValueError, "seq_lens must be contiguous"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1, but is 0"),
        ({"num_blocks": -1}, ValueError, "num_blocks must be at least 0, but is -1"),
    ],
)
def test_refuses(
    device: torch.device, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = make_arguments() | change
    moved = {
        n: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=device)
        if isinstance(v, Tensor)
        else v
        for n, v in arguments.items()
    }
    with pytest.raises(error, match="anvil::check_block_table: .*" + message):
        cache.check_block_table(**moved)


@pytest.mark.parametrize("name", ["query_start_loc", "seq_lens"])
def test_refuses_mixed_devices(name: str) -> None:
    arguments = on(make_arguments(), "anvil")
    arguments[name] = arguments[name].cpu()
    with pytest.raises(ValueError, match=rf"{name} must be on anvil:0 .* but is on cpu"):
        cache.check_block_table(**arguments)


def test_opcheck(device: torch.device) -> None:
    torch.library.opcheck(
        torch.ops.anvil.check_block_table.default, (), on(make_arguments(), device)
    )
