# SPDX-License-Identifier: Apache-2.0
"""What a step's metadata says of its lengths, and what of it layers and cache groups share."""

import pytest
import torch
from layer_steps import (
    BLOCK_SIZE,
    HEAD_SIZE,
    HEADS,
    KV_HEADS,
    Sequences,
    builder,
    causal,
    common_metadata,
    dense,
    layer,
    small_batch,
    vars_of,
)

from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.metadata import (
    AnvilAttentionMetadata,
    LayerGeometry,
)

GEOMETRY = LayerGeometry(HEADS, KV_HEADS, HEAD_SIZE, None, BLOCK_SIZE)


class Unread:
    """Stands for a tensor on the host, of which nothing but its shape may be looked at."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape


def test_building_looks_at_no_lengths(device: torch.device) -> None:
    common = small_batch(device)
    host = {
        name: Unread(getattr(common, name))
        for name in ("query_start_loc_cpu", "seq_lens_cpu_upper_bound")
    }
    metadata = builder(device).build(0, common.replace(**host))
    assert metadata.seq_lens is common.seq_lens
    with pytest.raises(AttributeError):
        metadata.seq_lens_host  # noqa: B018


def test_lengths_come_from_the_host_where_those_are_exact(device: torch.device) -> None:
    # A device copy that disagrees would show that it was read.
    common = small_batch(device, seq_lens=torch.zeros(2, dtype=torch.int32, device=device))
    assert builder(device).build(0, common).seq_lens_host == [6, 4]


@pytest.mark.parametrize(
    ("changes", "speculative"),
    [
        ({}, object()),
        ({"seq_lens_cpu_upper_bound": None}, None),
        # What a wrapping builder leaves that adds keys to every sequence on the device.
        ({"max_seq_len": 7}, None),
    ],
)
def test_lengths_come_from_the_device_where_the_host_has_bounds(
    device: torch.device, changes: dict[str, object], speculative: object
) -> None:
    seq_lens = torch.tensor([5, 4], dtype=torch.int32, device=device)
    common = small_batch(device, seq_lens=seq_lens, **changes)
    metadata = builder(device, speculative=speculative).build(0, common)
    assert metadata.seq_lens_host == [5, 4]


@pytest.mark.parametrize("implementation", ["native"], indirect=True)
def test_what_the_device_says_counts_where_the_host_shares_out_evenly(
    device: torch.device, implementation: str
) -> None:
    """As in adaptive verification, which decides on the device how many drafts a request gets: on
    the host the total is right, and `max_query_len` is a bound."""
    assert AnvilAttentionBackend.supports_device_cpu_query_lens_mismatch()
    lens = [(1, 9), (5, 21), (0, 4)]
    sequences = Sequences([s for _, s in lens], device, torch.float32)
    impl = layer()
    for request, (_, seq_len) in enumerate(lens):
        slots = torch.tensor(sequences.slots(request, range(seq_len)), device=device)
        key, value = (t[request].to(device) for t in (sequences.key, sequences.value))
        impl.do_kv_cache_update(None, key, value, sequences.cache, slots)
    common = common_metadata(lens, sequences.block_table, torch.full((6,), -1), device)
    evenly = {
        "query_start_loc_cpu": torch.tensor([0, 2, 4, 6], dtype=torch.int32),
        "seq_lens_cpu_upper_bound": torch.tensor([14, 21, 9], dtype=torch.int32),
        "max_seq_len": 21,
    }
    metadata = builder(device).build(0, common.replace(**evenly))
    query = torch.cat([t[len(t) - q :] for t, (q, _) in zip(sequences.query, lens, strict=True)])
    output = torch.full(query.shape, 7.0, device=device)
    impl.forward(None, query.to(device), None, None, sequences.cache, metadata, output)
    expected = torch.cat(
        [
            dense(q[len(q) - n :], k, v, causal)
            for q, k, v, (n, _) in zip(*vars_of(sequences), lens, strict=True)
        ]
    )
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_layers_of_one_geometry_share_a_plan(device: torch.device) -> None:
    metadata = builder(device).build(0, small_batch(device))
    assert metadata.plan(GEOMETRY) is metadata.plan(GEOMETRY)
    other = LayerGeometry(HEADS, KV_HEADS, HEAD_SIZE, 2, BLOCK_SIZE)
    assert metadata.plan(other) is not metadata.plan(GEOMETRY)


def blocks_read(metadata: AnvilAttentionMetadata) -> set[int]:
    plan = metadata.plan(GEOMETRY)
    return {
        int(block) for tile in plan.tiles for keys in tile.keys for block in keys.block.flatten()
    }


def test_another_group_uses_its_own_blocks(device: torch.device) -> None:
    make = builder(device)
    metadata = make.build(0, small_batch(device))
    assert blocks_read(metadata) == {1, 2, 3}
    table = torch.tensor([[7, 5], [9, 0]], dtype=torch.int32, device=device)
    slots = torch.tensor([1, 2, 3], device=device)
    other = make.update_block_table(metadata, table, slots)
    assert blocks_read(other) == {7, 5, 9}
    assert other.slot_mapping is slots
    assert blocks_read(metadata) == {1, 2, 3}


def test_a_drafts_next_step_reads_its_lengths_anew(device: torch.device) -> None:
    seq_lens = torch.tensor([5, 4], dtype=torch.int32, device=device)
    ours = builder(device, speculative=object())
    metadata = ours.build(0, small_batch(device, seq_lens=seq_lens))
    plan = metadata.plan(GEOMETRY)
    seq_lens += 1
    ours.update_draft_decode_metadata(metadata)
    assert metadata.seq_lens_host == [6, 5]
    assert metadata.plan(GEOMETRY) is not plan
