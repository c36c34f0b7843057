# SPDX-License-Identifier: Apache-2.0
"""copy_blocks and swap_blocks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import cache
from vllm_anvil.references import cache as cache_reference

# Name -> view of a [11, 2, 6, 3, 20] buffer as a cache [num_blocks, ...] whose blocks are one
# piece of memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda b: b,
    "heads_then_tokens": lambda b: b.transpose(2, 3),
    "keys_of_a_block": lambda b: b[:, 0],
    "values_of_a_block": lambda b: b[:, 1].transpose(1, 2),
    "every_second_block": lambda b: b[1::2],
    "offset": lambda b: b[3:],
}
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.uint8,
    torch.int64,
]

# A block may be copied to several places, copied on, overwritten, or copied to itself.
PAIRS = [[0, 1], [4, 2], [0, 3], [3, 0], [2, 2], [1, 4], [4, 1]]


def buffer(dtype: torch.dtype, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    rows = (11, 2, 6, 3, 20 * dtype.itemsize)
    return torch.randint(256, rows, generator=random, dtype=torch.uint8).view(dtype)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_matches_reference(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    view, pairs = LAYOUTS[layout], torch.tensor(PAIRS)
    expected = buffer(dtype, 1)
    actual = expected.to(device, copy=True)
    cache_reference.copy_blocks(view(expected), pairs)
    cache.copy_blocks(view(actual), pairs.to(device))
    assert same_bytes(actual, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swap_matches_reference(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    view, pairs = LAYOUTS[layout], torch.tensor(PAIRS)
    source, expected = buffer(dtype, 1), buffer(dtype, 2)
    actual = expected.to(device, copy=True)
    cache_reference.swap_blocks(view(source), view(expected), pairs)
    cache.swap_blocks(view(source.to(device)), view(actual), pairs.to(device))
    assert same_bytes(actual, expected)


def test_swap_between_different_distances(device: torch.device) -> None:
    pairs = torch.tensor([[10, 0], [0, 4], [7, 2]])
    source, expected = buffer(torch.bfloat16, 1), buffer(torch.bfloat16, 2)
    actual = expected.to(device, copy=True)
    cache_reference.swap_blocks(source, expected[1::2], pairs)
    cache.swap_blocks(source.to(device), actual[1::2], pairs.to(device))
    assert same_bytes(actual, expected)


@pytest.mark.parametrize(("src", "dst"), [("anvil", "cpu"), ("cpu", "anvil")])
@pytest.mark.parametrize("pairs_on", ["anvil", "cpu"])
def test_swap_to_and_from_the_host(src: str, dst: str, pairs_on: str) -> None:
    pairs = torch.tensor([[10, 0], [0, 4], [7, 2]])
    source, expected = buffer(torch.bfloat16, 1), buffer(torch.bfloat16, 2)
    actual = expected.to(dst, copy=True)
    cache_reference.swap_blocks(source, expected, pairs)
    cache.swap_blocks(source.to(src), actual, pairs.to(pairs_on))
    assert actual.device.type == dst
    assert same_bytes(actual, expected)


def test_blocks_split_over_workers(device: torch.device) -> None:
    expected = torch.randint(256, (6, 300_001), dtype=torch.uint8)
    actual = expected.to(device, copy=True)
    pairs = torch.tensor([[0, 1], [1, 2], [5, 0], [2, 5]])
    cache_reference.copy_blocks(expected, pairs)
    cache.copy_blocks(actual, pairs.to(device))
    assert torch.equal(actual.cpu(), expected)


def test_no_pairs(device: torch.device) -> None:
    expected = buffer(torch.float32, 1)
    actual, none = (
        expected.to(device, copy=True),
        torch.empty(0, 2, dtype=torch.int64, device=device),
    )
    cache.copy_blocks(actual, none)
    cache.swap_blocks(buffer(torch.float32, 2).to(device), actual, none)
    assert same_bytes(actual, expected)


BAD_PAIRS = {
    "source past the end": (
        [[0, 1], [11, 2]],
        (IndexError, r"block_pairs\[:, 0\]\[1\] is 11, but must be below 11"),
    ),
    "negative source": (
        [[-1, 2]],
        (IndexError, r"block_pairs\[:, 0\]\[0\] is -1, but must be at least 0"),
    ),
    "destination past the end": (
        [[0, 1], [3, 2], [4, 99]],
        (IndexError, r"block_pairs\[:, 1\]\[2\] is 99, but must be below 11"),
    ),
    "negative destination": (
        [[3, -2]],
        (IndexError, r"block_pairs\[:, 1\]\[0\] is -2, but must be at least 0"),
    ),
    "triples": (
        [[3, 2, 1]],
        (ValueError, r"block_pairs must have shape \[n, 2\], but has \[1, 3\]"),
    ),
    "flat": (
        [3, 2],
        (ValueError, r"block_pairs must have shape \[n, 2\], but has \[2\]"),
    ),
    "fractions": (
        [[3.0, 2.0]],
        (TypeError, "block_pairs must be Long, but is Float"),
    ),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_refuses_pairs(device: torch.device, case: str) -> None:
    values, (error, message) = BAD_PAIRS[case]
    pairs = torch.tensor(values).to(device)
    expected = buffer(torch.float32, 1)
    actual = expected.to(device, copy=True)
    with pytest.raises(error, match="anvil::copy_blocks: " + message):
        cache.copy_blocks(actual, pairs)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait
    with pytest.raises(error, match="anvil::swap_blocks: " + message):
        cache.swap_blocks(buffer(torch.float32, 2).to(device), actual, pairs)
        torch.anvil.synchronize()
    assert same_bytes(actual, expected), "a refused call must not have copied anything"


def test_refuses_strided_pairs(device: torch.device) -> None:
    pairs = torch.tensor(PAIRS).to(device)[::2]
    with pytest.raises(ValueError, match=r"block_pairs must be contiguous.* \[4, 1\]"):
        cache.copy_blocks(buffer(torch.float32, 1).to(device), pairs)


def test_refuses_blocks_that_are_not_one_piece(device: torch.device) -> None:
    whole, pairs = buffer(torch.float32, 1).to(device), torch.tensor([[0, 1]]).to(device)
    for view in (whole[..., :7], whole.transpose(0, 1), whole[:, :, ::2]):
        with pytest.raises(ValueError, match="a block of cache must be one piece of memory"):
            cache.copy_blocks(view, pairs)
        with pytest.raises(ValueError, match="a block of dst must be one piece of memory"):
            cache.swap_blocks(view.contiguous(), view, pairs)
    with pytest.raises(ValueError, match="blocks of cache overlap"):
        cache.copy_blocks(whole[:1].expand(5, -1, -1, -1, -1), pairs)
    with pytest.raises(ValueError, match=r"cache must have shape \[num_blocks, \.\.\.\]"):
        cache.copy_blocks(whole.flatten(), pairs)


def test_swap_refuses_unlike_caches(device: torch.device) -> None:
    whole, pairs = buffer(torch.float32, 1).to(device), torch.tensor([[0, 1]]).to(device)
    with pytest.raises(TypeError, match="src is Float but dst is Half"):
        cache.swap_blocks(whole, whole.half(), pairs)
    for other in (whole[:, 0], whole.transpose(2, 3), whole.transpose(2, 3).contiguous()):
        with pytest.raises(
            ValueError, match="blocks of src and dst must have one shape and layout"
        ):
            cache.swap_blocks(whole, other.clone(), pairs)
    with pytest.raises(ValueError, match="src and dst share a part of their memory"):
        cache.swap_blocks(whole[1:], whole[:-1], pairs)


def test_opcheck(device: torch.device) -> None:
    pairs = torch.tensor(PAIRS).to(device)
    for layout in ("contiguous", "heads_then_tokens"):
        view = LAYOUTS[layout]
        src, dst = (view(buffer(torch.bfloat16, seed).to(device)) for seed in (1, 2))
        torch.library.opcheck(torch.ops.anvil.copy_blocks.default, (dst, pairs))
        torch.library.opcheck(torch.ops.anvil.swap_blocks.default, (src, dst, pairs))
