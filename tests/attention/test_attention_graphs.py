# SPDX-License-Identifier: Apache-2.0
"""Steps that are captured into a graph, with an attention that says it may be."""

from dataclasses import replace

import pytest
import torch
from layer_steps import (
    HEAD_SIZE,
    HEADS,
    NUM_BLOCKS,
    Sequences,
    builder,
    causal,
    common_metadata,
    dense,
    layer,
)

from anvil_attention import serving


@pytest.mark.parametrize("implementation", ["native", "triton"], indirect=True)
@pytest.mark.parametrize("rounds", [False, True])
def test_a_captured_step_replays_with_other_lengths(
    implementation: str, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode of 4 requests is captured as the engine captures it: at the longest length, with
    nothing in the block table. Replays have fewer requests, the others are padding."""
    device = torch.device("anvil")
    kv_dtype = torch.bfloat16 if rounds else torch.float32
    if rounds:
        one_dtype = replace(
            serving.served().implementation,
            refuses=lambda spec: None if spec.dtype == spec.kv_dtype else "one dtype only",
        )
        monkeypatch.setattr(serving, "_served", {implementation: serving.Served("it", one_dtype)})
    capacity, longest = 4, 33
    lens = [29, 8, 17, 33]
    sequences = Sequences(lens, device, torch.float32)
    sequences.cache = sequences.cache.to(kv_dtype)
    impl = layer()
    for request, length in enumerate(lens):
        slots = torch.tensor(sequences.slots(request, range(length)), device=device)
        key, value = (t[request].to(device) for t in (sequences.key, sequences.value))
        impl.do_kv_cache_update(None, key, value, sequences.cache, slots)

    # The engine's own buffers, which it fills anew before each step.
    common = common_metadata(
        [(1, longest)] * capacity,
        torch.zeros((capacity, NUM_BLOCKS), dtype=torch.int32),
        torch.full((capacity,), -1),
        device,
    )
    query = torch.zeros(capacity, HEADS, HEAD_SIZE, device=device)
    output = torch.zeros_like(query)
    metadata = builder(device).build_for_cudagraph_capture(common)

    def step() -> None:
        impl.forward(None, query, None, None, sequences.cache, metadata, output)

    step()
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        step()
    for requests in ([0, 1, 2, 3], [2, 1], [3]):
        padding = capacity - len(requests)
        starts = [*range(len(requests) + 1), *[len(requests)] * padding]
        common.query_start_loc.copy_(torch.tensor(starts, dtype=torch.int32))
        common.seq_lens.copy_(
            torch.tensor([*(lens[r] for r in requests), *[0] * padding], dtype=torch.int32)
        )
        table = torch.cat([sequences.block_table[requests], torch.zeros(padding, NUM_BLOCKS)])
        common.block_table_tensor.copy_(table.int())
        last = torch.stack([sequences.query[r][-1] for r in requests])
        query[: len(requests)].copy_(last)
        output.fill_(7.0)
        graph.replay()
        expected = torch.cat(
            [
                dense(
                    sequences.query[r][-1:].to(kv_dtype),
                    sequences.key[r].to(kv_dtype),
                    sequences.value[r].to(kv_dtype),
                    causal,
                )
                for r in requests
            ]
        )
        tolerance = 2**-7 if rounds else 1e-5
        actual = output.cpu().double()
        torch.testing.assert_close(
            actual[: len(requests)], expected, rtol=tolerance, atol=tolerance
        )
        if not rounds:
            assert bool((actual[len(requests) :] == 7.0).all())


@pytest.mark.parametrize("implementation", ["native", "triton"], indirect=True)
def test_a_block_outside_of_the_cache_in_a_replay_is_told(implementation: str) -> None:
    device = torch.device("anvil")
    sequences = Sequences([8], device, torch.float32)
    sequences.cache.zero_()
    common = common_metadata([(1, 8)], sequences.block_table, torch.full((1,), -1), device)
    metadata = builder(device).build_for_cudagraph_capture(common)
    query = torch.zeros(1, HEADS, HEAD_SIZE, device=device)
    output, impl = torch.zeros_like(query), layer()

    def step() -> None:
        impl.forward(None, query, None, None, sequences.cache, metadata, output)

    step()
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        step()
    # The first block behind the end, which is still mapped memory for an implementation that reads
    # blindly.
    sequences.block_table[0, 0] = NUM_BLOCKS
    common.block_table_tensor.copy_(sequences.block_table)
    graph.replay()
    with pytest.raises(IndexError, match=rf"block_table\[0, 0\] is {NUM_BLOCKS}"):
        torch.anvil.synchronize()
