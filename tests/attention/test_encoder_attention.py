# SPDX-License-Identifier: Apache-2.0
"""Encoders: computed by what is served, over a cache of blocks of one token."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from served_step import (
    BLOCK,
    CPU,
    HEADS,
    KV_HEADS,
    SIZE,
    Step,
    engine_config,
    serve,
    serve_implementation,
)
from vllm.v1.attention.backend import AttentionType

from anvil_attention import impl
from anvil_attention.contract import AttentionImplementation, AttentionSpec
from anvil_attention.impl import AnvilAttentionImpl

pytestmark = pytest.mark.usefixtures("nothing_served_yet")


def encode(step: Step, **options: Any) -> torch.Tensor:
    """An encoder's output for the step's query, [8, HEADS, SIZE]."""
    impl = AnvilAttentionImpl(
        HEADS, SIZE, SIZE**-0.5, KV_HEADS, attn_type=AttentionType.ENCODER_ONLY, **options
    )
    layer = SimpleNamespace(layer_name="encoder.layers.2.attn")
    generator = torch.Generator().manual_seed(1)
    # As rotary embedding leaves them: keys on their own, values a part of the fused projection.
    key = torch.randn(8, KV_HEADS, SIZE, generator=generator).to(step.query.device)
    fused = torch.randn(8, KV_HEADS, 3 * SIZE, generator=generator).to(step.query.device)
    value = fused[..., SIZE : 2 * SIZE]
    impl.forward(layer, step.query, key, value, step.cache, step.metadata(), step.output)
    return step.output.cpu()


@pytest.mark.parametrize("window", [None, 3])
def test_encoders_are_computed_by_what_is_served(
    window: int | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("reference", monkeypatch)
    expected = encode(Step(device), sliding_window=window)
    native = serve("native", monkeypatch)
    calls: list[torch.Size] = []
    compute = native.implementation.function

    def counted(**arguments: Any) -> None:
        calls.append(arguments["key_cache"].shape)
        compute(**arguments)

    serve_implementation(replace(native.implementation, function=counted), monkeypatch)
    actual = encode(Step(device), sliding_window=window)
    assert calls == [(8, 1, KV_HEADS, SIZE)]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert bool((actual[7] == 7.0).all())


def test_encoders_are_the_references_where_what_is_served_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve("reference", monkeypatch)
    expected = encode(Step(CPU))

    def fails(**arguments: Any) -> None:
        raise AssertionError("was asked")

    def refuses(spec: AttentionSpec) -> str | None:
        return "blocks of one token" if spec.block_size == 1 else None

    whole_blocks = AttentionImplementation("whole blocks", fails, refuses=refuses)
    serve_implementation(whole_blocks, monkeypatch)
    assert torch.equal(encode(Step(CPU)), expected)
    with pytest.raises(RuntimeError, match="was asked"):
        Step(CPU).run()


def test_encoders_are_admitted_as_blocks_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve("breaks", monkeypatch)
    encoder = AnvilAttentionImpl(HEADS, SIZE, 1.0, KV_HEADS, attn_type=AttentionType.ENCODER_ONLY)
    with pytest.raises(ValueError, match=r"failed with KeyError.*blocks of 1,"):
        encoder.admit(engine_config(), SIZE, 4)
    # One that refuses them keeps no model from being served.
    refusing = replace(served.implementation, refuses=lambda spec: "no encoders")
    serve_implementation(refusing, monkeypatch)
    encoder = AnvilAttentionImpl(HEADS, SIZE, 1.0, KV_HEADS, attn_type=AttentionType.ENCODER_ONLY)
    encoder.admit(engine_config(), SIZE, 4)


def test_layers_say_whether_they_are_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(attn_type: AttentionType) -> AttentionSpec:
        made = AnvilAttentionImpl(HEADS, SIZE, 1.0, KV_HEADS, attn_type=attn_type)
        return made.spec(SIZE, BLOCK, torch.float32, torch.float32, "cpu")

    assert [kind.name for kind in AttentionType if spec(kind).causal] == ["DECODER"]
    config = SimpleNamespace(
        model_config=None, attention_config=SimpleNamespace(use_non_causal=True)
    )
    monkeypatch.setattr(impl, "get_current_vllm_config_or_none", lambda: config)
    assert not spec(AttentionType.DECODER).causal
