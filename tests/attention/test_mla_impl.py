# SPDX-License-Identifier: Apache-2.0
"""The engine's MLA layer over several steps, against keys and values expanded in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from mla_layer import DEEPSEEK, SMALL, Batch, Layer, Sizes, difference
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType

from anvil_attention import serving
from anvil_attention.mla_impl import AnvilMLAImpl
from anvil_attention.mla_metadata import AnvilMLAMetadataBuilder, least_query_worth_expanding

FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
# Error of a row: float32 sums; or roundings to half precision between the products (query over
# latents, its output, expanded keys), which float32 hidden states do without.
ALLOWED = {FLOAT32: 1e-5, FLOAT16: 3e-3, BFLOAT16: 2.5e-2}
THRESHOLD = {SMALL: 49, DEEPSEEK: 170}

pytestmark = pytest.mark.usefixtures("platform_of_this_process")


@pytest.fixture(scope="module")
def platform_of_this_process() -> None:
    from vllm.platforms import current_platform

    assert current_platform.device_type == "anvil"


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(
    ("sizes", "dtype", "hidden"),
    [
        (SMALL, FLOAT32, FLOAT32),
        (SMALL, BFLOAT16, BFLOAT16),
        (SMALL, FLOAT16, FLOAT16),
        (SMALL, BFLOAT16, FLOAT32),
        (DEEPSEEK, BFLOAT16, FLOAT32),
        (DEEPSEEK, FLOAT32, FLOAT32),
    ],
)
def test_prompts_chunks_and_decodes(
    device: torch.device, sizes: Sizes, dtype: torch.dtype, hidden: torch.dtype
) -> None:
    layer = Layer(sizes, device, dtype, hidden)
    builder = layer.builder()
    long, chunk = THRESHOLD[sizes] + 13, THRESHOLD[sizes] + 1
    batch = Batch(layer, [long, long + 30, 9, 20])
    steps = [
        # A prompt to be expanded; the same with the shortest chunk that is, and a short prompt.
        [(0, 0, long - 2)],
        [(2, 0, 7), (1, 0, chunk)],
        # Decodes; and what follows a cached prefix: a few tokens, and a chunk.
        [(0, long - 2, long - 1), (2, 7, 8)],
        [(2, 8, 9), (0, long - 1, long), (3, 0, 20), (1, chunk, long + 29)],
        [(1, long + 29, long + 30)],
    ]
    expanded = []
    for number, pieces in enumerate(steps):
        step = batch.step(pieces, padding=number % 3)
        metadata = builder.build(0, step.common)
        expanded += [request.batch.max_query_len for request in metadata.expanded]
        rows = sum(last - first for _, first, last in pieces)
        output = step.run(layer, metadata)
        assert difference(output[:rows], batch.expected(pieces)) < ALLOWED[hidden], pieces
    assert expanded == [long - 2, chunk]


def test_a_chunk_after_a_prefix_is_expanded_with_it(device: torch.device) -> None:
    layer = Layer(SMALL, device, FLOAT32, layers_in_block=2)
    builder = layer.builder()
    batch = Batch(layer, [130, 200])
    for pieces in ([(0, 0, 60), (1, 0, 70)], [(0, 60, 130), (1, 70, 200)]):
        step = batch.step(pieces, padding=2)
        metadata = builder.build(0, step.common)
        assert metadata.decode is None
        first = pieces[0][2] - pieces[0][1]
        assert [request.rows.start for request in metadata.expanded] == [0, first]
        output = step.run(layer, metadata)
        assert difference(output[:-2], batch.expected(pieces)) < ALLOWED[FLOAT32]
        assert bool((output[-2:] == 7).all())


@pytest.mark.parametrize("heads_at_a_time", [1, 3])
def test_few_heads_are_expanded_at_a_time(device: torch.device, heads_at_a_time: int) -> None:
    layer = Layer(SMALL, device, FLOAT32)
    batch = Batch(layer, [100])
    step = batch.step([(0, 0, 100)])
    metadata = layer.builder().build(0, step.common)
    bytes_of_a_head = 104 * 4 * (2 * (SMALL.nope + SMALL.value) + SMALL.rope)
    most = heads_at_a_time * bytes_of_a_head + 1
    seen = []
    expand = layer.layer.impl._expand
    layer.layer.impl._expand = lambda latents, heads, dtype: (
        seen.append(heads.stop - heads.start),
        expand(latents, heads, dtype),
    )[1]
    output = step.run(layer, dataclasses.replace(metadata, expanded_bytes=most))
    assert seen == {1: [1, 1, 1, 1], 3: [3, 1]}[heads_at_a_time]
    assert difference(output, batch.expected([(0, 0, 100)])) < ALLOWED[FLOAT32]


def test_what_the_engine_sets_aside_is_enough_for_common_prompts() -> None:
    layer = Layer(SMALL, torch.device("cpu"), FLOAT32)
    elements = SMALL.heads * (SMALL.nope + SMALL.value)
    # 8 sequences of the longest, of which one is expanded at a time.
    assert layer.builder()._expanded_bytes == 8 * 1024 * elements * 4


@pytest.mark.parametrize("window", [1, 20])
def test_sliding_window(device: torch.device, window: int) -> None:
    layer = Layer(SMALL, device, FLOAT32, window=window)
    builder = layer.builder()
    batch = Batch(layer, [121])
    for pieces in ([(0, 0, 60)], [(0, 60, 120)], [(0, 120, 121)]):
        step = batch.step(pieces)
        metadata = builder.build(0, step.common)
        assert bool(metadata.expanded) == (pieces[0][2] < 121)
        output = step.run(layer, metadata)
        assert difference(output, batch.expected(pieces)) < ALLOWED[FLOAT32]
        # The engine puts another's block where one has slid out of the window.
        if pieces[0][2] == 120:
            batch.blocks[0][: (120 - window) // layer.block_size] = [0] * (
                (120 - window) // layer.block_size
            )


def test_requests_in_any_order_are_right(device: torch.device) -> None:
    """The engine puts those with few query tokens first; others, if it did not, are expanded."""
    layer = Layer(SMALL, device, FLOAT32)
    batch = Batch(layer, [80, 10])
    pieces = [(0, 0, 80), (1, 0, 10)]
    step = batch.step(pieces)
    metadata = layer.builder().build(0, step.common)
    assert len(metadata.expanded) == 2
    assert difference(step.run(layer, metadata), batch.expected(pieces)) < ALLOWED[FLOAT32]


@pytest.mark.parametrize(
    ("rank", "nope", "value", "least"),
    [(512, 128, 128, 171), (256, 64, 64, 86), (64, 32, 24, 50), (64, 64, 64, None), (4, 1, 1, 2)],
)
def test_when_expanding_is_worth_it(rank: int, nope: int, value: int, least: int | None) -> None:
    assert least_query_worth_expanding(rank, nope, value) == least

    def worth(query: int, keys: int) -> bool:
        """Multiplications of one head beyond those that both ways have."""
        expanded = keys * rank * (nope + value) + query * keys * (nope + value)
        return expanded <= query * keys * 2 * rank + query * rank * (nope + value)

    for keys in (10_000, 10_000_000):
        if least is None:
            assert not worth(keys // 100, keys)
        else:
            assert worth(least, keys)
    # What is paid once for a query lets shorter ones be worth it, over few keys.
    assert least is None or not worth(least // 2, 10_000_000)


def test_the_engine_is_told_which_requests_come_first() -> None:
    for sizes, threshold in THRESHOLD.items():
        assert Layer(sizes, torch.device("cpu"), FLOAT32).builder().reorder_batch_threshold == (
            threshold
        )
    never = Sizes(rank=32, rope=16, nope=32, value=32, heads=2)
    layer = Layer(never, torch.device("cpu"), FLOAT32)
    batch = Batch(layer, [90])
    step = batch.step([(0, 0, 90)])
    metadata = layer.builder().build(0, step.common)
    assert metadata.expanded == []
    assert difference(step.run(layer, metadata), batch.expected([(0, 0, 90)])) < 1e-5


def test_a_block_outside_of_the_cache_is_refused(device: torch.device) -> None:
    layer = Layer(SMALL, device, FLOAT32)
    batch = Batch(layer, [70, 5])
    step = batch.step([(1, 0, 5), (0, 0, 70)])
    for row in (0, 1):
        step.common.block_table_tensor[row, 0] += layer.num_blocks
        with pytest.raises(IndexError):
            step.run(layer, layer.builder().build(0, step.common))
            if device.type != "cpu":
                torch.accelerator.synchronize()
        step.common.block_table_tensor[row, 0] -= layer.num_blocks


# ------------------------------------------------------------------------------------- graphs


def test_graph_support_is_what_is_served_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, support in (
        ("reference", AttentionCGSupport.NEVER),
        ("triton", AttentionCGSupport.ALWAYS),
        ("native", AttentionCGSupport.ALWAYS),
    ):
        monkeypatch.setenv(serving.VARIABLE, name)
        assert AnvilMLAMetadataBuilder.get_cudagraph_support(None, None) is support


@pytest.mark.parametrize("name", ["native", "triton"])
def test_a_step_replays_as_a_graph_with_other_lengths(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(serving.VARIABLE, name)
    device = torch.device("anvil")
    layer = Layer(SMALL, device, FLOAT32)
    builder = layer.builder()
    batch = Batch(layer, [100, 64])
    # Two chunks, one of which is long enough to be expanded outside of a graph.
    recorded, replayed = [(1, 0, 4), (0, 0, 60)], [(1, 4, 64), (0, 60, 64)]
    step, other = batch.step(recorded), batch.step(replayed)
    assert builder.build(0, step.common).expanded != []
    # Bounds hold for all replays.
    step.common.max_query_len = step.common.max_seq_len = 128
    metadata = builder.build_for_cudagraph_capture(step.common)
    assert metadata.expanded == []
    step.run(layer, metadata)  # what the first run of a kernel learns, it learns here
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        output = step.run(layer, metadata)
    graph.replay()
    assert difference(output, batch.expected(recorded)) < ALLOWED[FLOAT32]
    for tensor in ("query", "latent", "rotated"):
        getattr(step, tensor).copy_(getattr(other, tensor))
    for tensor in ("query_start_loc", "seq_lens", "slot_mapping", "block_table_tensor"):
        getattr(step.common, tensor).copy_(getattr(other.common, tensor))
    graph.replay()
    assert difference(output, batch.expected(replayed)) < ALLOWED[FLOAT32]


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indexer": object()}, "ANVIL_MLA does not implement indexer: "),
        ({"topk_indices_buffer": torch.empty(1)}, "does not implement topk_indices_buffer: "),
        ({"attn_type": AttentionType.ENCODER}, "does not implement attn_type: "),
        ({"kv_sharing_target_layer_name": "a"}, "kv_sharing_target_layer_name: choose"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8': run with --kv-cache-dtype auto"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype='fp8_ds_mla': run with"),
    ],
)
def test_what_a_layer_refuses(change: dict[str, object], message: str) -> None:
    arguments = {
        "num_heads": 4,
        "head_size": 80,
        "scale": 1.0,
        "num_kv_heads": 1,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
        "logits_soft_cap": None,
        "attn_type": AttentionType.DECODER,
        "kv_sharing_target_layer_name": None,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "qk_head_dim": 48,
        "v_head_dim": 24,
        "kv_b_proj": None,
    }
    AnvilMLAImpl(**arguments)
    with pytest.raises(NotImplementedError, match=message):
        AnvilMLAImpl(**arguments | change)


def test_fused_output_quantisation_is_refused() -> None:
    layer = Layer(SMALL, torch.device("cpu"), FLOAT32)
    batch = Batch(layer, [60])
    step = batch.step([(0, 0, 60)])
    metadata = layer.builder().build(0, step.common)
    nothing = torch.empty(0)
    with pytest.raises(NotImplementedError, match="output_scale"):
        layer.layer.impl.forward_mha(
            step.query, nothing, nothing, nothing, metadata, nothing, nothing, torch.ones(1)
        )
