# SPDX-License-Identifier: Apache-2.0
"""A layer over several steps, as the engine drives it, against attention over whole sequences."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.model_executor.layers.attention.chunked_local_attention import (
    create_chunked_local_attention_backend,
)
from vllm.model_executor.layers.attention.cross_attention import create_cross_attention_backend
from vllm.model_executor.layers.attention.encoder_only_attention import (
    create_encoder_only_attention_backend,
)
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec

from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.impl import AnvilAttentionImpl
from anvil_attention.metadata import (
    AnvilAttentionMetadata,
    AnvilAttentionMetadataBuilder,
    LayerGeometry,
)

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS = 6, 2, 16, 4, 40
SCALE = HEAD_SIZE**-0.5
SPEC = {
    "block_size": BLOCK_SIZE,
    "num_kv_heads": KV_HEADS,
    "head_size": HEAD_SIZE,
    "dtype": torch.float32,
}
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def causal(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


def everything(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (key >= 0) & (query == query)


def dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the last len(query) of len(key) tokens, in float64; [tokens, heads, size]."""
    query, key, value = (t.double().transpose(0, 1) for t in (query, key, value))
    key, value = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (key, value))
    positions = torch.arange(key.shape[1])
    offset = key.shape[1] - query.shape[1]
    visible = mask(torch.arange(query.shape[1])[:, None] + offset, positions[None, :])
    logits = (query @ key.transpose(1, 2) * SCALE).masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.double().view(-1, 1, 1).expand(-1, query.shape[1], 1)
        return (torch.cat([logits, column], -1).softmax(-1)[..., :-1] @ value).transpose(0, 1)
    return (logits.softmax(-1) @ value).transpose(0, 1)


def common_metadata(
    lens: list[tuple[int, int]],
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    device: torch.device,
    padded_reqs: int = 0,
    padded_tokens: int = 0,
    **changes: object,
) -> CommonAttentionMetadata:
    """As the engine's runner makes it for requests of (query_len, seq_len)."""
    lens = lens + [(0, 0)] * padded_reqs
    starts = torch.tensor(np.cumsum([0] + [q for q, _ in lens]), dtype=torch.int32)
    seq_lens = torch.tensor([s for _, s in lens], dtype=torch.int32)
    block_table = torch.nn.functional.pad(block_table, (0, 0, 0, padded_reqs))
    slot_mapping = torch.nn.functional.pad(slot_mapping, (0, padded_tokens), value=-1)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(device),
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=len(lens),
        num_actual_tokens=len(slot_mapping),
        max_query_len=max(q for q, _ in lens),
        max_seq_len=max(s for _, s in lens),
        block_table_tensor=block_table.to(device),
        slot_mapping=slot_mapping.to(device),
        **changes,
    )


def builder(
    device: torch.device,
    cls: type[AnvilAttentionMetadataBuilder] = AnvilAttentionMetadataBuilder,
    spec: type[FullAttentionSpec | CrossAttentionSpec] = FullAttentionSpec,
    speculative: object = None,
) -> AnvilAttentionMetadataBuilder:
    return cls(spec(**SPEC), ["layer"], SimpleNamespace(speculative_config=speculative), device)


def layer(**changes: object) -> AnvilAttentionImpl:
    return AnvilAttentionImpl(HEADS, HEAD_SIZE, SCALE, KV_HEADS, **changes)


class Sequences:
    """Requests with all their tokens, and the block tables that they fill step by step."""

    def __init__(self, lens: list[int], device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(length: int, heads: int) -> torch.Tensor:
            return torch.randn(length, heads, HEAD_SIZE, generator=generator).to(dtype)

        self.device = device
        self.query = [normal(length, HEADS) for length in lens]
        self.key = [normal(length, KV_HEADS) for length in lens]
        self.value = [normal(length, KV_HEADS) for length in lens]
        free = iter((torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist())
        self.block_table = torch.full((len(lens), NUM_BLOCKS), 2**31 - 1, dtype=torch.int32)
        for request, length in enumerate(lens):
            for index in range(-(-length // BLOCK_SIZE)):
                self.block_table[request, index] = next(free)
        # As the engine allocates it in the layout LBHNC.
        shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
        self.cache = torch.full(shape, float("nan"), dtype=dtype, device=device)

    def slots(self, request: int, tokens: range) -> list[int]:
        table = self.block_table[request]
        return [int(table[t // BLOCK_SIZE]) * BLOCK_SIZE + t % BLOCK_SIZE for t in tokens]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 6])
def test_prefill_then_decode_then_both(
    device: torch.device, dtype: torch.dtype, window: int | None
) -> None:
    lens = [13, 30, 9, 21]
    sequences = Sequences(lens, device, dtype)
    sinks = torch.nn.Parameter(torch.zeros(HEADS, device=device), requires_grad=False)
    impl = layer(sliding_window=window, sinks=sinks, logits_soft_cap=0.0)
    # Weights are loaded after the layer is made.
    sinks.copy_(torch.linspace(-1, 1, HEADS))
    make = builder(device)

    def mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (key > query - (window or 10**6))

    # Of each request in turn, the tokens computed in a step; of the others, nothing.
    steps = [
        {0: range(12), 1: range(17)},
        {0: range(12, 13), 1: range(17, 18), 2: range(8)},
        {1: range(18, 29), 2: range(8, 9), 3: range(21)},
        {1: range(29, 30)},
    ]
    for number, step in enumerate(steps):
        requests = list(step)
        padded = 3 * (number % 2)
        slots = torch.tensor([s for r, tokens in step.items() for s in sequences.slots(r, tokens)])
        metadata = make.build(
            0,
            common_metadata(
                [(len(tokens), tokens.stop) for tokens in step.values()],
                sequences.block_table[requests],
                slots,
                device,
                padded_reqs=padded,
                padded_tokens=padded,
            ),
        )

        def rows(
            tensors: list[torch.Tensor],
            step: dict[int, range] = step,
            padded: int = padded,
        ) -> torch.Tensor:
            parts = [tensors[r][tokens.start : tokens.stop] for r, tokens in step.items()]
            junk = torch.full((padded, *tensors[0].shape[1:]), float("nan"), dtype=dtype)
            return torch.cat([*parts, junk]).to(device)

        key, value = rows(sequences.key), rows(sequences.value)
        impl.do_kv_cache_update(None, key, value, sequences.cache, metadata.slot_mapping)
        query = rows(sequences.query)
        output = torch.full_like(query, 7.0)
        result = impl.forward(None, query, key, value, sequences.cache, metadata, output)
        assert result is output
        expected = torch.cat(
            [
                dense(
                    sequences.query[r][tokens.start : tokens.stop],
                    sequences.key[r][: tokens.stop],
                    sequences.value[r][: tokens.stop],
                    mask,
                    sinks.cpu(),
                )
                for r, tokens in step.items()
            ]
        )
        tolerance = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
        actual = output.cpu().double()
        torch.testing.assert_close(actual[: len(expected)], expected, rtol=tolerance, atol=1e-5)
        assert bool((actual[len(expected) :] == 7.0).all())


def test_a_cache_of_another_dtype(device: torch.device) -> None:
    sequences = Sequences([9], device, torch.float32)
    cache = sequences.cache.to(torch.bfloat16)
    slots = torch.tensor(sequences.slots(0, range(9)))
    metadata = builder(device).build(
        0, common_metadata([(9, 9)], sequences.block_table, slots, device)
    )
    impl = layer(kv_cache_dtype="bfloat16")
    query, key, value = (t[0].to(device) for t in (sequences.query, sequences.key, sequences.value))
    impl.do_kv_cache_update(None, key, value, cache, metadata.slot_mapping)
    output = torch.empty_like(query)
    impl.forward(None, query, key, value, cache, metadata, output)
    rounded = [t[0].bfloat16().double() for t in (sequences.key, sequences.value)]
    expected = dense(sequences.query[0], *rounded, causal)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attn_type", [AttentionType.ENCODER_ONLY, AttentionType.ENCODER])
@pytest.mark.parametrize("window", [None, 3])
def test_encoders_see_all_of_their_own_request(
    device: torch.device, attn_type: AttentionType, window: int | None
) -> None:
    lens = [5, 1, 12]
    sequences = Sequences(lens, device, torch.float32)
    # The engine's wrapper turns causality off; without it, an encoder is still not causal.
    make = builder(device)
    if attn_type == AttentionType.ENCODER_ONLY:
        backend = create_encoder_only_attention_backend(AnvilAttentionBackend)
        make = builder(device, backend.get_builder_cls())
    metadata = make.build(
        0,
        common_metadata(
            [(n, n) for n in lens],
            torch.zeros(len(lens), 1, dtype=torch.int32),
            torch.full((sum(lens),), -1),
            device,
            padded_reqs=1,
            padded_tokens=2,
        ),
    )
    query, key, value = (
        torch.nn.functional.pad(torch.cat(t), (0, 0, 0, 0, 0, 2), value=float("nan")).to(device)
        for t in (sequences.query, sequences.key, sequences.value)
    )
    impl = layer(attn_type=attn_type, sliding_window=window)
    untouched = sequences.cache.clone()
    impl.do_kv_cache_update(None, key, value, sequences.cache, metadata.slot_mapping)
    assert torch.equal(sequences.cache.isnan(), untouched.isnan())
    output = torch.full_like(query, 7.0)
    impl.forward(None, query, key, value, sequences.cache, metadata, output)

    def mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key - query).abs() < (window or 10**6)

    expected = torch.cat(
        [dense(q, k, v, mask) for q, k, v in zip(*vars_of(sequences), strict=True)]
    )
    actual = output.cpu().double()
    torch.testing.assert_close(actual[: sum(lens)], expected, rtol=1e-5, atol=1e-5)
    assert bool((actual[sum(lens) :] == 7.0).all())


def vars_of(sequences: Sequences) -> tuple[list[torch.Tensor], ...]:
    return sequences.query, sequences.key, sequences.value


def test_cross_attention_over_several_steps(device: torch.device) -> None:
    encoder_lens = [10, 3]
    sequences = Sequences(encoder_lens, device, torch.float32)
    backend = create_cross_attention_backend(AnvilAttentionBackend)
    make = builder(device, backend.get_builder_cls(), CrossAttentionSpec)
    impl = backend.get_impl_cls()(
        HEADS, HEAD_SIZE, SCALE, KV_HEADS, attn_type=AttentionType.ENCODER_DECODER
    )
    owner = SimpleNamespace(kv_sharing_target_layer_name=None)
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.cat(t).to(device) for t in (sequences.key, sequences.value))
    # More decoder tokens than the second encoder's, first; then one each, which finds the
    # encoder's keys in the cache.
    for lens in ([(4, 4), (5, 5)], [(1, 5), (1, 6)]):
        num_tokens = sum(query_len for query_len, _ in lens)
        query = torch.randn(num_tokens, HEADS, HEAD_SIZE, generator=generator)
        metadata = make.build(
            0,
            common_metadata(
                lens,
                sequences.block_table,
                torch.full((num_tokens,), -1),
                device,
                encoder_seq_lens=torch.tensor(encoder_lens, dtype=torch.int32, device=device),
                encoder_seq_lens_cpu=np.array(encoder_lens, dtype=np.int32),
            ),
        )
        output = torch.empty(num_tokens, HEADS, HEAD_SIZE, device=device)
        impl.forward(owner, query.to(device), key, value, sequences.cache, metadata, output)
        expected = torch.cat(
            [
                dense(q, sequences.key[r], sequences.value[r], everything)
                for r, q in enumerate(query.split([query_len for query_len, _ in lens]))
            ]
        )
        torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5)
        key = value = None


def test_chunked_local_attention(device: torch.device) -> None:
    chunk = 8
    lens = [(11, 19), (1, 9), (5, 5)]
    sequences = Sequences([s for _, s in lens], device, torch.float32)
    # Unused entries are read, though not used, by the engine's own re-arrangement of the table.
    sequences.block_table.clamp_(max=NUM_BLOCKS - 1)
    backend = create_chunked_local_attention_backend(AnvilAttentionBackend, chunk)
    impl = layer()
    for request, (_, seq_len) in enumerate(lens):
        slots = torch.tensor(sequences.slots(request, range(seq_len)), device=device)
        key, value = (t[request].to(device) for t in (sequences.key, sequences.value))
        impl.do_kv_cache_update(None, key, value, sequences.cache, slots)
    metadata = builder(device, backend.get_builder_cls()).build(
        0,
        common_metadata(
            lens, sequences.block_table, torch.full((sum(q for q, _ in lens),), -1), device
        ),
    )
    query = torch.cat([t[-q:] for t, (q, _) in zip(sequences.query, lens, strict=True)])
    output = torch.empty(query.shape, device=device)
    impl.forward(None, query.to(device), None, None, sequences.cache, metadata, output)

    def mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (key // chunk == query // chunk)

    expected = torch.cat(
        [
            dense(q[-n:], k, v, mask)
            for q, k, v, (n, _) in zip(*vars_of(sequences), lens, strict=True)
        ]
    )
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5)


GEOMETRY = LayerGeometry(HEADS, KV_HEADS, HEAD_SIZE, None, BLOCK_SIZE)


def small_batch(device: torch.device, **changes: object) -> CommonAttentionMetadata:
    lens = [(2, 6), (1, 4)]
    table = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    return common_metadata(lens, table, torch.tensor([8, 9, 15]), device).replace(**changes)


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


def test_a_profiling_run_computes_nothing(device: torch.device) -> None:
    query = torch.full((3, HEADS, HEAD_SIZE), float("nan"), device=device)
    output = torch.full_like(query, float("nan"))
    no_cache = torch.tensor([], device=device)
    layer().forward(None, query, query, query, no_cache, None, output)
    assert not output.any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, NotImplementedError, "kv_cache_dtype='fp8'"),
        ({"use_alibi_sqrt": True}, NotImplementedError, "use_alibi_sqrt=True"),
        ({"chunk_lookback": 1, "block_m": 8}, NotImplementedError, "chunk_lookback=1, block_m=8"),
        ({"sinks": torch.zeros(HEADS + 1)}, ValueError, r"sinks must be \[6\]"),
    ],
)
def test_options_of_a_layer_that_are_refused(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        layer(**change)


@pytest.mark.parametrize("name", ["output_scale", "output_block_scale"])
def test_fused_output_quantisation_is_refused(name: str) -> None:
    tensor = torch.zeros(1, HEADS, HEAD_SIZE)
    with pytest.raises(NotImplementedError, match="disable the attention fusion pass"):
        layer().forward(None, tensor, None, None, tensor, None, tensor, **{name: torch.ones(1)})


def test_alibi_reaches_the_kernel(device: torch.device) -> None:
    slopes = [0.5 ** (head + 1) for head in range(HEADS)]
    sequences = Sequences([9], device, torch.float32)
    slots = torch.tensor(sequences.slots(0, range(9)))
    metadata = builder(device).build(
        0, common_metadata([(9, 9)], sequences.block_table, slots, device)
    )
    impl = layer(alibi_slopes=slopes, logits_soft_cap=2.0)
    query, key, value = (t[0].to(device) for t in vars_of(sequences))
    impl.do_kv_cache_update(None, key, value, sequences.cache, metadata.slot_mapping)
    output = torch.empty_like(query)
    impl.forward(None, query, key, value, sequences.cache, metadata, output)
    q, k, v = (t[0].double() for t in vars_of(sequences))
    for head in range(HEADS):
        for token in range(9):
            logits = k[: token + 1, head // 3] @ q[token, head] * SCALE
            logits = 2.0 * (logits / 2.0).tanh() - slopes[head] * torch.arange(token, -1, -1)
            expected = logits.softmax(0) @ v[: token + 1, head // 3]
            torch.testing.assert_close(
                output[token, head].cpu().double(), expected, rtol=1e-5, atol=1e-5
            )
