# SPDX-License-Identifier: Apache-2.0
"""A layer over several steps, as the engine drives it, against attention over whole sequences."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from layer_steps import (
    HEAD_SIZE,
    HEADS,
    KV_HEADS,
    NUM_BLOCKS,
    SCALE,
    Sequences,
    builder,
    causal,
    common_metadata,
    dense,
    everything,
    layer,
    vars_of,
)
from vllm.model_executor.layers.attention.chunked_local_attention import (
    create_chunked_local_attention_backend,
)
from vllm.model_executor.layers.attention.cross_attention import create_cross_attention_backend
from vllm.model_executor.layers.attention.encoder_only_attention import (
    create_encoder_only_attention_backend,
)
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import CrossAttentionSpec

from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.verification import difference

pytestmark = pytest.mark.usefixtures("implementation")


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
        actual = output.cpu()
        assert difference(actual[: len(expected)], expected) is None
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


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)],
)
def test_a_float8_cache_with_the_scales_of_its_layer(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    implementation: str,
    name: str,
    dtype: torch.dtype,
) -> None:
    sequences = Sequences([9], device, torch.float32)
    # As the engine allocates it: bytes.
    cache = torch.zeros(sequences.cache.shape, dtype=torch.uint8, device=device)
    slots = torch.tensor(sequences.slots(0, range(9)))
    metadata = builder(device).build(
        0, common_metadata([(9, 9)], sequences.block_table, slots, device)
    )
    monkeypatch.setenv("ANVIL_ATTENTION_IMPL", implementation)
    impl = layer(kv_cache_dtype=name)
    scales = SimpleNamespace(layer_name="layer", _k_scale_float=0.3, _v_scale_float=2.0)
    query, key, value = (t[0].to(device) for t in (sequences.query, sequences.key, sequences.value))
    impl.do_kv_cache_update(scales, key, value, cache, metadata.slot_mapping)
    output = torch.empty_like(query)
    impl.forward(scales, query, key, value, cache, metadata, output)
    stored = [
        (tensor[0] / scale).to(dtype).double() * scale
        for tensor, scale in ((sequences.key, 0.3), (sequences.value, 2.0))
    ]
    expected = dense(sequences.query[0], *stored, causal)
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


def test_a_profiling_run_computes_nothing(device: torch.device) -> None:
    query = torch.full((3, HEADS, HEAD_SIZE), float("nan"), device=device)
    output = torch.full_like(query, float("nan"))
    no_cache = torch.tensor([], device=device)
    layer().forward(None, query, query, query, no_cache, None, output)
    assert not output.any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        *(
            ({"kv_cache_dtype": name}, NotImplementedError, f"kv_cache_dtype='{name}'")
            for name in ("int8_per_token_head", "nvfp4")
        ),
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
