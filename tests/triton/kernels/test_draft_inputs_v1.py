# SPDX-License-Identifier: Apache-2.0
"""The inputs of draft models in the first runner."""

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from vllm.v1.spec_decode.utils import (
    PADDING_SLOT_ID,
    _copy_and_expand_dflash_inputs,
    _copy_and_expand_eagle_inputs,
    _eagle_prepare_inputs_padded,
    _eagle_prepare_next_token_padded,
    eagle_step_update_slot_mapping_and_metadata,
)

MODULE = "vllm.v1.spec_decode.utils"


@pytest.mark.checks(f"{MODULE}:eagle_step_slot_mapping_metadata_kernel")
@pytest.mark.parametrize("padded", [None, 9])
def test_step(device: torch.device, padded: int | None) -> None:
    block_size, max_len = 16, 1000
    table = int32(np.random.default_rng(0).integers(0, 9999, (6, 62)))
    positions, lengths = int64([0, 15, 998, 999, 500, 47]), int32([1, 16, 999, 1000, 501, 1000])
    count = padded or 6
    clamped = torch.full((6,), -9, dtype=torch.int64, device=device)
    slots = torch.full((count + 2,), -9, dtype=torch.int64, device=device)
    found_lengths = lengths.to(device, copy=True)
    eagle_step_update_slot_mapping_and_metadata(
        positions.to(device),
        Rows(table, device).view,
        found_lengths,
        block_size,
        max_len,
        clamped,
        slots,
        padded,
    )
    beyond = positions + 1 >= max_len
    after = (positions + 1).masked_fill(beyond, 0)
    blocks = table.gather(1, (after // block_size).clamp(max=61)[:, None])[:, 0].long()
    expected = (blocks * block_size + after % block_size).masked_fill(beyond, PADDING_SLOT_ID)
    padding = [PADDING_SLOT_ID] * (count - 6)
    assert_equal(clamped, after)
    assert_equal(slots, torch.cat([expected, int64([*padding, -9, -9])]))
    assert_equal(found_lengths, (lengths + 1).masked_fill(beyond, 1).clamp(max=max_len))


@pytest.mark.checks(f"{MODULE}:eagle_prepare_inputs_padded_kernel")
@pytest.mark.parametrize("drafts", [[3, 0, 5, 1], [0], [4]], ids=str)
def test_rejected_tokens(device: torch.device, drafts: list[int]) -> None:
    valid, queries = [2, 1, 6, 1][: len(drafts)], [n + 1 for n in drafts]
    indices, rejected = (torch.full((len(drafts),), -9, device=device).int() for _ in range(2))
    _eagle_prepare_inputs_padded(
        offsets(drafts)[1:].to(device),
        int32(valid, device),
        offsets(queries).to(device),
        indices,
        rejected,
        len(drafts),
    )
    lost = [n + 1 - v if n else 0 for n, v in zip(drafts, valid, strict=True)]
    assert_equal(rejected, int32(lost))
    assert_equal(indices, offsets(queries)[1:] - 1 - int32(lost))


@pytest.mark.checks(f"{MODULE}:eagle_prepare_next_token_padded_kernel")
@pytest.mark.parametrize("width", [1, 6])
def test_next_tokens(device: torch.device, width: int) -> None:
    vocab_size = 1000
    sampled = np.random.default_rng(width).integers(0, vocab_size, (7, width))
    for row, kept in enumerate([0, 1, 2, width, 3, width, 1]):
        sampled[row, kept:] = -1
    sampled[3, -1] = vocab_size  # no token of the vocabulary: as good as rejected
    discarded, backup = [False] * 5 + [True, False], list(range(5000, 5007))
    tokens, counts = (torch.full((7,), -9, device=device).int() for _ in range(2))
    sampled_on = Rows(int32(sampled), device).view
    _eagle_prepare_next_token_padded(
        sampled_on,
        torch.tensor(discarded).to(device),
        int32(backup, device),
        tokens,
        counts,
        vocab_size,
        width,
        7,
        sampled_on.stride(0),
        BLOCK_SIZE_TOKENS=1 << (width - 1).bit_length(),
    )
    valid = (sampled >= 0) & (sampled < vocab_size) & ~np.array(discarded)[:, None]
    expected = [
        row[mask][-1] if mask.any() else b
        for row, mask, b in zip(sampled, valid, backup, strict=True)
    ]
    assert_equal(tokens, int32(expected))
    assert_equal(counts, int32(valid.sum(axis=1)))


@pytest.mark.checks(f"{MODULE}:copy_and_expand_eagle_inputs_kernel")
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("slots", [1, 3])
def test_expanded_inputs(device: torch.device, shifted: bool, slots: int) -> None:
    random = np.random.default_rng(slots)
    lengths, rejected, mask_token, pad = [5, 300, 1, 4], [2, 0, 0, 3], 777, 42
    starts, total = offsets(lengths).tolist(), sum(lengths)
    tokens, following = random.integers(0, 500, total), [91, 92, 93, 94]
    first = random.integers(0, 900, 4)
    positions = np.concatenate([np.arange(f, f + n) for f, n in zip(first, lengths, strict=True)])
    kept = [n - r for n, r in zip(lengths, rejected, strict=True)]
    ids, where, lost, masked, new, mapping = [], [], [], [], [], []
    for row in range(4):
        copied = tokens[starts[row] + shifted : starts[row] + kept[row]].tolist()
        body = [*copied, following[row], *[mask_token] * (slots - 1)]
        begin = len(ids)
        new += range(begin + len(copied), begin + len(body))
        ids += body + [pad] * rejected[row]
        where += [*range(first[row], first[row] + len(body)), *[0] * rejected[row]]
        lost += [False] * len(body) + [True] * rejected[row]
        masked += [False] * (len(copied) + 1) + [True] * (slots - 1) + [False] * rejected[row]
        mapping += range(begin, begin + lengths[row])
    size = len(ids)

    def filled(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count + 3,), 1, dtype=dtype, device=device)

    out = [filled(size, torch.int32), filled(size, torch.int64)]
    out += [filled(size, torch.bool), filled(size, torch.bool)]
    out += [filled(4 * slots, torch.int32), filled(total, torch.int32)]
    _copy_and_expand_eagle_inputs(
        int32(tokens, device),
        int64(positions, device),
        int32(following, device),
        *out,
        offsets(lengths).to(device),
        int32([s + k - 1 for s, k in zip(starts, kept, strict=False)], device),
        pad,
        mask_token,
        total,
        slots,
        shifted,
        BLOCK_SIZE_TOKENS=256,
        batch_size=4,
        num_blocks=2,
    )
    assert_equal(out[0], int32([*ids, 1, 1, 1]))
    assert_equal(out[1], int64([*where, 1, 1, 1]))
    assert_equal(out[2], torch.tensor([*lost, True, True, True]))
    assert_equal(out[3], torch.tensor([*masked, True, True, True]))
    assert_equal(out[4], int32([*new, 1, 1, 1]))
    assert_equal(out[5], int32([*mapping, 1, 1, 1]) if shifted else out[5].cpu() * 0 + 1)


@pytest.mark.checks(f"{MODULE}:copy_and_expand_dflash_inputs_kernel")
@pytest.mark.parametrize("padded", [True, False])
def test_expanded_dflash_inputs(device: torch.device, padded: bool) -> None:
    random = np.random.default_rng(1)
    lengths, rejected, steps, block_size, mask_token = [3, 290, 1], [1, 4, 0], 4, 16, 777
    queries, total, first = steps + 1, sum([3, 290, 1]), [40, 100, 500]
    positions = np.concatenate([np.arange(f, f + n) for f, n in zip(first, lengths, strict=True)])
    table, following = int32(random.integers(0, 9999, (3, 33))), [91, 92, 93]
    contexts = [torch.full((total,), -7, device=device) for _ in range(2)]
    ids = torch.full((3 * queries,), -7, device=device).int()
    query_positions, query_slots = (torch.full((3 * queries,), -7, device=device) for _ in range(2))
    indices = torch.full((3 * steps,), -7, device=device).int()
    _copy_and_expand_dflash_inputs(
        next_token_ids_ptr=int32(following, device),
        target_positions_ptr=int64(positions, device),
        out_input_ids_ptr=ids,
        out_context_positions_ptr=contexts[0],
        out_query_positions_ptr=query_positions,
        out_context_slot_mapping_ptr=contexts[1],
        out_query_slot_mapping_ptr=query_slots,
        out_token_indices_ptr=indices,
        block_table_ptr=table.to(device),
        query_start_loc_ptr=offsets(lengths).to(device),
        num_rejected_tokens_ptr=int32(rejected, device) if padded else 0,
        block_table_stride=33,
        parallel_drafting_token_id=mask_token,
        block_size=block_size,
        num_query_per_req=queries,
        num_speculative_tokens=steps,
        total_input_tokens=total,
        max_tokens_per_req=max(lengths) + queries,
        triton_block_size=256,
        has_num_rejected=padded,
    )

    def slot(row: int, position: int) -> int:
        block = table[row, min(position // block_size, 32)]
        return int(block) * block_size + position % block_size

    rows = np.repeat(np.arange(3), lengths)
    assert_equal(contexts[0], int64(positions))
    assert_equal(
        contexts[1], int64([slot(r, int(p)) for r, p in zip(rows, positions, strict=True)])
    )
    last = [
        f + n - 1 - (r if padded else 0) for f, n, r in zip(first, lengths, rejected, strict=True)
    ]
    behind = [(row, last[row] + 1 + query) for row in range(3) for query in range(queries)]
    assert_equal(query_positions, int64([position for _, position in behind]))
    assert_equal(query_slots, int64([slot(*place) for place in behind]))
    assert_equal(ids, int32([t for token in following for t in (token, *[mask_token] * steps)]))
    assert_equal(indices, int32([i for i in range(3 * queries) if i % queries]))
