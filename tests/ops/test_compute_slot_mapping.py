# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
import torch

from vllm_anvil.ops import cache
from vllm_anvil.testing import cache_reference

UNTOUCHED = -77
BLOCKS_PER_ROW = 24


def make_batch(
    device: torch.device,
    lengths: list[int],
    block_size: int = 16,
    cp_world_size: int = 1,
    padding: int = 5,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Arguments for requests of `lengths` new tokens at random positions, as views with offsets."""
    random = torch.Generator().manual_seed(seed)
    capacity = BLOCKS_PER_ROW * block_size * cp_world_size
    starts = [int(torch.randint(capacity - n + 1, (), generator=random)) for n in lengths]
    starts[0] = capacity - lengths[0]  # the last position of a row comes up
    positions = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    num_tokens = len(positions)
    # A view in the middle of something larger: rows have a gap between them and nothing starts at
    # zero.
    table = torch.randint(
        2**31 - 1, (len(lengths) + 3, BLOCKS_PER_ROW + 7), generator=random, dtype=torch.int32
    )
    whole = torch.full((num_tokens + padding + 8,), UNTOUCHED)
    return dict(
        query_start_loc=torch.tensor([9, 0, *lengths]).cumsum(0).sub(9)[1:].int().to(device),
        positions=torch.cat([torch.tensor([-5, -5]), positions]).to(device)[2:],
        block_table=table.to(device)[2:, 3 : 3 + BLOCKS_PER_ROW],
        slot_mapping=whole.to(device)[3 : 3 + num_tokens + padding],
        num_tokens=num_tokens,
        block_size=block_size,
        cp_world_size=cp_world_size,
        **options,
    )


def on_cpu(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def check(arguments: dict[str, Any]) -> None:
    expected = on_cpu(arguments)
    cache_reference.compute_slot_mapping(**expected)
    cache.compute_slot_mapping(**arguments)
    actual = arguments["slot_mapping"]
    torch.testing.assert_close(actual.cpu(), expected["slot_mapping"], rtol=0, atol=0)
    # Not an element beside the view was written.
    whole = actual.as_strided((len(actual) + 8,), (1,), 0).cpu()
    assert (whole[:3] == UNTOUCHED).all()
    assert (whole[3 + len(actual) :] == UNTOUCHED).all()


@pytest.mark.parametrize("block_size", [1, 2, 12, 16, 48, 128])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1, 1, 1, 1, 1], [17, 1, 0, 24, 3], [24]])
def test_matches_reference(device: torch.device, block_size: int, lengths: list[int]) -> None:
    check(make_batch(device, lengths, block_size))


@pytest.mark.parametrize("padding", [0, 1, 1000])
def test_pads_with_pad_id(device: torch.device, padding: int) -> None:
    arguments = make_batch(device, [3, 2], padding=padding, pad_id=-9)
    check(arguments)
    assert (arguments["slot_mapping"][5:] == -9).all()


def test_no_tokens(device: torch.device) -> None:
    arguments = make_batch(device, [0], padding=4)
    check(arguments)
    assert (arguments["slot_mapping"] == -1).all()


def test_no_requests(device: torch.device) -> None:
    arguments = make_batch(device, [4])
    arguments |= {"query_start_loc": arguments["query_start_loc"][:1], "num_tokens": 0}
    cache.compute_slot_mapping(**arguments)
    assert (arguments["slot_mapping"] == -1).all()


def test_batch_split_over_workers(device: torch.device) -> None:
    check(make_batch(device, [3000, 5000, 1, 6000, 4000, 1], block_size=256, padding=9000))


@pytest.mark.parametrize(("cp_world_size", "cp_interleave"), [(2, 1), (2, 16), (3, 4), (4, 8)])
def test_context_parallel(device: torch.device, cp_world_size: int, cp_interleave: int) -> None:
    owners = torch.zeros(60, dtype=torch.int64)
    for rank in range(cp_world_size):
        arguments = make_batch(
            device,
            [40, 1, 19],
            cp_world_size=cp_world_size,
            cp_rank=rank,
            cp_interleave=cp_interleave,
        )
        check(arguments)
        owners += arguments["slot_mapping"][:60].cpu() >= 0
    assert (owners == 1).all(), "each token lives on exactly one rank"


def test_tokens_of_no_request_keep_their_slot(device: torch.device) -> None:
    arguments = make_batch(device, [4, 4], padding=2)
    arguments["query_start_loc"] = torch.tensor([1, 4, 6], dtype=torch.int32).to(device)
    check(arguments)
    assert arguments["slot_mapping"][[0, 6, 7]].tolist() == [UNTOUCHED] * 3


def with_element(values: torch.Tensor, index: int, value: int) -> torch.Tensor:
    changed = values.clone()
    changed[index] = value
    return changed


REFUSALS = {
    "positions of the wrong type": (
        lambda a: a | {"positions": a["positions"].int()},
        (TypeError, "positions must be Long, but is Int"),
    ),
    "block table of the wrong type": (
        lambda a: a | {"block_table": a["block_table"].long()},
        (TypeError, "block_table must be Int, but is Long"),
    ),
    "one-dimensional block table": (
        lambda a: a | {"block_table": a["block_table"][0]},
        (ValueError, r"block_table must have 2 dimension\(s\), but its shape is \[24\]"),
    ),
    "transposed block table": (
        lambda a: a | {"block_table": a["block_table"].t()},
        (ValueError, "the last dimension of block_table must be contiguous"),
    ),
    "strided slots": (
        lambda a: a | {"slot_mapping": a["slot_mapping"][::2]},
        (ValueError, "slot_mapping must be contiguous, but its stride is 2"),
    ),
    "too few slots": (
        lambda a: a | {"slot_mapping": a["slot_mapping"][:8]},
        (ValueError, "the length of slot_mapping must be at least 9, but is 8"),
    ),
    "too few positions": (
        lambda a: a | {"positions": a["positions"][:8]},
        (ValueError, "the length of positions must be at least 9, but is 8"),
    ),
    "too few rows": (
        lambda a: a | {"block_table": a["block_table"][:1]},
        (ValueError, "the number of rows of block_table must be at least 2, but is 1"),
    ),
    "slots over positions": (
        lambda a: a | {"slot_mapping": a["positions"]},
        (ValueError, "slot_mapping is written and must not share memory with positions"),
    ),
    "negative num_tokens": (
        lambda a: a | {"num_tokens": -1},
        (ValueError, "num_tokens must be at least 0, but is -1"),
    ),
    "no block size": (
        lambda a: a | {"block_size": 0},
        (ValueError, "block_size must be at least 1, but is 0"),
    ),
    "huge block size": (
        lambda a: a | {"block_size": 2**40},
        (ValueError, "block_size 1099511627776 and cp_world_size 1 must fit in 32 bits"),
    ),
    "rank outside the world": (
        lambda a: a | {"cp_world_size": 2, "cp_rank": 2},
        (ValueError, r"cp_rank must be in \[0, 2\), but is 2"),
    ),
    "interleave that does not divide": (
        lambda a: a | {"cp_world_size": 2, "cp_interleave": 3},
        (ValueError, "cp_interleave must divide block_size 16, but is 3"),
    ),
    "decreasing query_start_loc": (
        lambda a: a | {"query_start_loc": a["query_start_loc"].flip(0)},
        (IndexError, r"query_start_loc\[1\] is 4, but must be in \[9, 9\]"),
    ),
    "tokens beyond num_tokens": (
        lambda a: a | {"num_tokens": 8},
        (IndexError, r"query_start_loc\[2\] is 9, but must be in \[4, 8\]"),
    ),
    "position beyond the block table": (
        lambda a: a | {"positions": with_element(a["positions"], 4, 384)},
        (IndexError, r"positions\[4\] is 384, but must be below 384"),
    ),
    "negative position": (
        lambda a: a | {"positions": with_element(a["positions"], 4, -1)},
        (IndexError, r"positions\[4\] is -1, but must be at least 0"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, (error, message) = REFUSALS[case]
    arguments = change(make_batch(device, [4, 5]))
    before = arguments["slot_mapping"].cpu()
    with pytest.raises(error, match="anvil::compute_slot_mapping: " + message):
        cache.compute_slot_mapping(**arguments)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait
    assert torch.equal(arguments["slot_mapping"].cpu(), before)


def test_refuses_mixed_devices() -> None:
    arguments = make_batch(torch.device("anvil"), [4, 5])
    arguments["positions"] = arguments["positions"].cpu()
    with pytest.raises(ValueError, match=r"positions must be on anvil:0 .* but is on cpu"):
        cache.compute_slot_mapping(**arguments)


def test_opcheck(device: torch.device) -> None:
    for options in ({}, {"cp_world_size": 2, "cp_rank": 1, "cp_interleave": 4}):
        arguments = make_batch(device, [4, 5], **options)
        # Aliasing is judged per storage, so what is written has one of its own.
        arguments["slot_mapping"] = arguments["slot_mapping"].clone()
        torch.library.opcheck(torch.ops.anvil.compute_slot_mapping.default, (), arguments)
