# SPDX-License-Identifier: Apache-2.0
"""The Triton attention on anvil and the CPU against attention by its definition."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dense_attention import Sketch, dense_attention, sketches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_geometries import GEOMETRIES, PER_REQUEST

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)
from anvil_attention import triton_kernels, triton_tiles, verification
from anvil_attention.contract import AttentionCall, AttentionSpec, Unsupported
from anvil_attention.triton_kernels import triton_attention

ANVIL = torch.device("anvil")


def check(sketch: Sketch, device: torch.device = ANVIL) -> None:
    spec = dataclasses.replace(sketch.spec, device=device.type)
    call = dataclasses.replace(sketch.call(), spec=spec)
    # Rows at a distance that keeps the output as aligned as it is.
    placed = verification.place_call(call, device, triton_attention, output_gap=16)
    verification.check(triton_attention, placed, dense_attention(call))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_any_batch(name: str) -> None:
    specs = st.just(GEOMETRIES[name])

    # Layouts whose strides are as aligned as each other's, which is one compilation.
    @settings(
        max_examples=18,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        sketch=sketches(
            specs, longest=200, per_request=name in PER_REQUEST, layouts=("LBHNC", "LBNHC")
        )
    )
    def run(sketch: Sketch) -> None:
        check(sketch)

    run()


SMOLLM2, MHA, EVERYTHING = (GEOMETRIES[name] for name in ("smollm2", "mha", "everything"))


@pytest.mark.parametrize(
    "sketch",
    [
        Sketch(SMOLLM2, [(1, 130), (70, 70), (65, 200), (1, 64)], name="several tiles"),
        Sketch(
            dataclasses.replace(MHA, sliding_window=5),
            [(150, 150), (1, 90)],
            name="rows that see nothing of their first keys",
        ),
        Sketch(MHA, [(3, 0), (2, 8), (1, 0)], name="no keys"),
        Sketch(EVERYTHING, [(3, 0), (1, 0)], causal=[True, False], name="nothing but sinks"),
        Sketch(MHA, [(30, 12), (5, 2)], causal=False, name="more queries than keys"),
        Sketch(MHA, [(0, 4), (0, 0)], padding=3, name="nothing but padding"),
        Sketch(MHA, [(0, 4)] * 20 + [(1, 9)] + [(0, 1)] * 5 + [(7, 7)], name="many are empty"),
        *(
            Sketch(MHA, [(1, 33), (9, 20)], layout=layout, name=layout)
            for layout in ("LHBNC", "BLHNC", "BLNHC", "BHLNC")
        ),
    ],
    ids=lambda sketch: sketch.name,
)
@pytest.mark.parametrize("device", ["anvil", "cpu"])
def test_named_batches(device: str, sketch: Sketch) -> None:
    check(sketch, torch.device(device))


def test_huge_logits_are_capped() -> None:
    call = Sketch(EVERYTHING, [(1, 40), (6, 6)]).call()
    call = dataclasses.replace(call, query=call.query * 1e30)
    placed = verification.place_call(call, ANVIL)
    verification.check(triton_attention, placed, dense_attention(call))


@pytest.mark.parametrize("stride", [1 << 31, 1 << 15], ids=["between_blocks", "of_many_blocks"])
def test_caches_beyond_32_bits(stride: int) -> None:
    """The last block lies 2**31 elements into the cache; nothing in between is touched."""
    spec = GEOMETRIES["float8_e5m2"]
    call = Sketch(spec, [(1, 13), (4, 16)]).call()
    blocks = (1 << 31) // stride + 1
    width = spec.head_size + spec.value_head_size
    strides = (stride, spec.num_kv_heads * width, width, 1)
    whole = torch.empty((blocks - 1) * stride + spec.block_size * strides[1], dtype=spec.kv_dtype)
    shape = (blocks, *call.key_cache.shape[1:])
    caches = [whole.as_strided(shape, strides, offset) for offset in (0, spec.head_size)]
    # Each request has one block: they go to the ends of the cache.
    for cache, original in zip(caches, (call.key_cache, call.value_cache), strict=True):
        for request, place in ((0, 0), (1, blocks - 1)):
            block = original[int(call.block_table[request, 0])]
            cache[place].view(torch.int8).copy_(block.view(torch.int8))
    expected = dense_attention(call)
    call.block_table[0, 0], call.block_table[1, 0] = 0, blocks - 1
    far = dataclasses.replace(
        call,
        spec=dataclasses.replace(spec, device="cpu"),
        key_cache=caches[0],
        value_cache=caches[1],
    )
    triton_attention(far)
    torch.testing.assert_close(far.output.double(), expected, rtol=1e-5, atol=1e-5)


def test_rows_do_not_depend_on_other_requests() -> None:
    lens = [(1, 40), (7, 30), (1, 3), (1, 40), (7, 7)]
    call = Sketch(SMOLLM2, lens).call()
    together = _output(call)
    for request in range(len(lens)):
        rows = slice(*call.query_start_loc[request : request + 2].tolist())
        alone = dataclasses.replace(
            call,
            query=call.query[rows],
            output=call.output[rows],
            block_table=call.block_table[request : request + 1],
            query_start_loc=torch.tensor([0, lens[request][0]], dtype=torch.int32),
            seq_lens=call.seq_lens[request : request + 1],
            max_query_len=lens[request][0],
        )
        assert torch.equal(_output(alone), together[rows])


def test_bounds_above_the_lengths_change_nothing() -> None:
    """They are bounds: in a recorded graph those of the largest batch."""
    call = Sketch(SMOLLM2, [(1, 40), (1, 3), (1, 70)]).call()
    wide = dataclasses.replace(call, max_query_len=100, max_seq_len=5000)
    assert torch.equal(_output(call), _output(wide))


def test_a_recorded_call_follows_its_tensors() -> None:
    import vllm_anvil.device as anvil

    first, second = (Sketch(SMOLLM2, [(1, 40), (1, 3)], seed=seed).call() for seed in (1, 2))
    placed = verification.place_call(first, ANVIL, triton_attention)
    graph = anvil.Graph()
    triton_attention(placed.call)
    with anvil.graph(graph):
        triton_attention(placed.call)
    seq_lens = torch.tensor([25, 2], dtype=torch.int32)
    later = dataclasses.replace(second, seq_lens=seq_lens)
    for name in ("query", "key_cache", "value_cache", "block_table", "seq_lens"):
        getattr(placed.call, name).copy_(getattr(later, name))
    graph.replay()
    verification.synchronise(ANVIL)
    assert verification.wrong_values(placed, dense_attention(later)) is None


def _output(call: AttentionCall) -> torch.Tensor:
    placed = verification.place_call(call, ANVIL)
    triton_attention(placed.call)
    return placed.call.output.cpu()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "meta"}, "does not know the device 'meta'"),
        ({"device": "cuda"}, "compiles for cpu in this process, not for cuda tensors"),
        ({"dtype": torch.float64}, "float16, bfloat16 or float32, not torch.float64"),
        ({"kv_dtype": torch.int32}, "cannot read a cache of torch.int32"),
    ],
)
def test_what_is_refused_and_why(change: dict[str, object], message: str) -> None:
    reason = triton_attention.refuses(dataclasses.replace(SMOLLM2, **change))
    assert reason is not None and message in reason
    assert triton_attention.refuses(SMOLLM2) is None


def test_a_call_is_refused_as_well() -> None:
    call = Sketch(dataclasses.replace(MHA, dtype=torch.float64), [(1, 3)]).call()
    with pytest.raises(Unsupported, match="not torch.float64"):
        triton_attention(call)


@pytest.mark.parametrize("name", ["query", "key_cache", "value_cache", "block_table", "output"])
def test_a_scattered_last_dimension_is_an_error(name: str) -> None:
    call = Sketch(MHA, [(1, 40)]).call()
    tensor = getattr(call, name)
    scattered = tensor.repeat_interleave(2, dim=-1)[..., ::2]
    with pytest.raises(ValueError, match=f"last dimension of {name} must be contiguous"):
        triton_attention(dataclasses.replace(call, **{name: scattered}))


def spec_of(head_size: int, group: int, dtype: torch.dtype) -> AttentionSpec:
    return AttentionSpec(group, 1, head_size, head_size, 16, dtype, dtype, 1.0)


@pytest.mark.parametrize("device", triton_tiles.TILES)
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("head_size", [1, 64, 80, 128, 256, 576])
@pytest.mark.parametrize("group", [1, 3, 71])
def test_tiles_hold_a_token_and_are_powers_of_two(
    device: str, decode: bool, head_size: int, group: int
) -> None:
    for dtype in triton_kernels.DTYPES:
        found = triton_tiles.constants(
            device, group, head_size, head_size, 16, dtype, decode=decode
        )
        for name in ("ROWS", "KEYS", "HEAD_TILE", "VALUE_TILE"):
            assert found[name].bit_count() == 1
            assert found[name] >= triton_tiles.TILES[device].least
        assert found["ROWS"] >= group and found["HEAD_TILE"] >= head_size
