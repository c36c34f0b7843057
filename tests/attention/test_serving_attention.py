# SPDX-License-Identifier: Apache-2.0
"""An attention that ANVIL_ATTENTION_IMPL names: how it is checked and called."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from served_step import (
    BLOCK,
    CPU,
    FILE,
    HEADS,
    KV_HEADS,
    SIZE,
    SPEC,
    Step,
    engine_config,
    serve,
    serve_implementation,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec

from anvil_attention import backend, metadata, observers, resolve, serving
from anvil_attention.contract import (
    AttentionCall,
    AttentionImplementation,
    AttentionSpec,
    GraphSupport,
    attention,
)
from anvil_attention.impl import AnvilAttentionImpl

pytestmark = pytest.mark.usefixtures("nothing_served_yet")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_in_a_hundred", "wrong values: output"),
        ("next_block", "wrong values|everything in it is NaN"),
        ("returns_its_result", "returned Tensor; it must write `output`"),
        ("does_nothing", "output was not written"),
        ("wrong_shape", r"output became \[1, "),
        ("result_elsewhere", "output got other memory"),
        ("wrong_dtype", "failed with RuntimeError: .* must have the same dtype"),
        ("ignores_strides", "memory around output was written|wrong values"),
        ("writes_padding", "rows of padding were written"),
        ("changes_the_cache", "key_cache was changed"),
        ("breaks", "failed with KeyError: 'something inside'"),
        (
            "refusing",
            "it refuses a layer of this model: heads of 16 .* Set ANVIL_ATTENTION_IMPL=ref",
        ),
    ],
)
def test_wrong_implementations_are_told(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(name, monkeypatch)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(ValueError, match=f"ANVIL_ATTENTION_IMPL={FILE}:{name}: .*{message}"):
            served.admit([SPEC], CPU, 8, 4)
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)


def test_right_implementation_is_checked_once(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[AttentionSpec] = []
    user = resolve.resolve(f"{FILE}:right").function

    def counted(**arguments: Any) -> None:
        calls.append(arguments["query"].dtype)
        user(**arguments)

    served = serving.Served("counted", AttentionImplementation("counted", counted))
    specs = [SPEC, AttentionSpec(**(vars(SPEC) | {"kv_dtype": torch.bfloat16}))]
    with torch.device("meta"):  # as a model may be under construction
        served.admit(specs, device, 8, 4)
    count = len(calls)
    assert count > 0
    served.admit(specs, device, 8, 4)
    assert len(calls) == count


def test_one_of_the_dtypes_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve("of_one_dtype", monkeypatch)
    half = AttentionSpec(**(vars(SPEC) | {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}))
    wide = AttentionSpec(**(vars(half) | {"dtype": torch.float32}))
    served.admit([wide, half], CPU, 8, 4)
    with pytest.raises(ValueError, match="query and cache must have one dtype"):
        served.admit([wide], CPU, 8, 4)


def test_refusal_that_fails() -> None:
    def refuses(spec: AttentionSpec) -> str | None:
        raise ZeroDivisionError("no")

    served = serving.Served("it", AttentionImplementation("it", print, refuses=refuses))
    assert "asking it failed with ZeroDivisionError: no" in (served.refusal(SPEC) or "")


def test_backend_refuses_with_the_implementations_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("refusing", monkeypatch)
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        hf_text_config=SimpleNamespace(attn_logit_softcapping=None),
        get_num_attention_heads=lambda parallel: HEADS,
        get_num_kv_heads=lambda parallel: KV_HEADS,
        get_head_size=lambda: 80,
        get_sliding_window=lambda: None,
    )
    cache = SimpleNamespace(block_size=16, cache_dtype="auto")
    config = SimpleNamespace(model_config=model, cache_config=cache, parallel_config=None)
    monkeypatch.setattr(backend, "get_current_vllm_config_or_none", lambda: config)
    asked = {
        "head_size": 96,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": None,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": None,
        "attn_type": AttentionType.DECODER,
    }
    validate = backend.AnvilAttentionBackend.validate_configuration
    [reason] = validate(**asked)
    assert reason.startswith(f"ANVIL_ATTENTION_IMPL={FILE}:refusing: it refuses")
    assert "heads of 96 are not its business" in reason
    assert validate(**asked | {"attn_type": AttentionType.ENCODER_DECODER}) == [reason]
    # The reference computes what it refuses of these.
    assert validate(**asked | {"attn_type": AttentionType.ENCODER_ONLY}) == []
    causal_only = AttentionImplementation(
        "causal only", print, refuses=lambda spec: None if spec.causal else "causal calls only"
    )
    serve_implementation(causal_only, monkeypatch)
    assert validate(**asked) == []
    for change in ({"attn_type": AttentionType.ENCODER_DECODER}, {"use_non_causal": True}):
        assert "causal calls only" in validate(**asked | change)[0]
    serve("refusing", monkeypatch)
    with pytest.raises(ValueError, match="heads of 80 are not its business"):
        backend.AnvilAttentionBackend.check_served(config)


# ---------------------------------------------------------------------- calling it


@pytest.mark.parametrize(
    ("name", "kv_dtype", "tolerance"),
    [
        ("native", torch.float32, 1e-5),
        ("native", torch.bfloat16, 1e-5),
        ("right", torch.float32, 1e-5),
        ("right", torch.bfloat16, 1e-5),
        # Its query and result are rounded to the cache's dtype.
        ("of_one_dtype", torch.bfloat16, 2e-2),
    ],
)
def test_served_implementation_equals_the_reference(
    name: str,
    kv_dtype: torch.dtype,
    tolerance: float,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve("reference", monkeypatch)
    expected = Step(device, kv_dtype).run()
    serve(name, monkeypatch)
    actual = Step(device, kv_dtype).run()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert bool((actual[7] == 7.0).all())


@pytest.mark.parametrize("name", ["native", "reference", "right"])
@pytest.mark.parametrize("block", [12, -1, 2**31 - 1])
def test_block_outside_of_the_cache_is_refused(
    name: str, block: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    served = serve(name, monkeypatch)
    if served.reads_blindly:
        monkeypatch.setattr(
            serving.Served, "compute", lambda self, call, layer: called.append(served.name)
        )
    step = Step(device)
    step.table[1, 2] = block
    with pytest.raises((IndexError, RuntimeError), match=r"block_table\[1, 2\]|index|range"):
        step.run()
    assert called == []
    if device.type != "cpu":
        with contextlib.suppress(IndexError):  # what came after the first error
            torch.accelerator.synchronize()
    if name == "native":
        assert bool((step.output.cpu() == 7.0).all())


def test_block_table_is_checked_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("right", monkeypatch)
    checks: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.ops.anvil, "check_block_table", lambda *args: checks.append(args[3:]))
    step = Step(CPU)
    of_step = step.metadata()
    step.run(of_step)
    step.run(of_step)
    assert checks == [(BLOCK, 12)]
    step.run()
    assert len(checks) == 2


def test_nothing_is_checked_or_waited_for_where_the_implementation_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = resolve.resolve(f"{FILE}:right").function
    checking = AttentionImplementation("checking", user, checks_blocks=True)
    serve_implementation(checking, monkeypatch)

    def never(*arguments: Any) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(torch.ops.anvil, "check_block_table", never)
    monkeypatch.setattr(torch.accelerator, "current_stream", never)
    Step(torch.device("anvil")).run()
    serve("right", monkeypatch)
    with pytest.raises(AssertionError, match="asked for"):
        Step(torch.device("anvil")).run()


def test_index_error_of_an_implementation_that_checks_is_the_batchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def beyond(**arguments: Any) -> None:
        raise IndexError("block 99")

    for checks, error in ((True, IndexError), (False, RuntimeError)):
        found = AttentionImplementation("it", beyond, checks_blocks=checks)
        serve_implementation(found, monkeypatch)
        with pytest.raises(error, match="block 99"):
            Step(CPU).run()


def test_failure_is_reported_as_the_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("breaks", monkeypatch)
    message = f"{FILE}:breaks: it failed in layer 'model.layers.5.attn' with KeyError"
    with pytest.raises(RuntimeError, match=message) as caught:
        Step(CPU).run()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("name", ["reference", "right"])
def test_observer_sees_the_call_and_then_the_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(name, monkeypatch)
    seen: list[Any] = []

    def observer(layer: str, call: AttentionCall) -> Any:
        seen.append((layer, call.spec, call.output.clone()))
        return lambda: seen.append(call.output.clone())

    observers.set_observer(observer)
    output = Step(CPU).run()
    (layer, spec, before), after = seen
    assert layer == "model.layers.5.attn"
    assert spec == SPEC
    assert bool((before == 7.0).all())
    assert torch.equal(after, output)


@pytest.mark.parametrize("asked", ["0", "1"])
def test_engine_asks_for_batch_invariance(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    def told(*, batch_invariant: bool = False, **arguments: Any) -> None:
        given.append(batch_invariant)

    serve_implementation(AttentionImplementation("it", told, batch_invariant=True), monkeypatch)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", asked)
    Step(CPU).run()
    assert given == [asked == "1"]
    assert backend.AnvilAttentionBackend.supports_batch_invariance()
    serve("reference", monkeypatch)
    assert not backend.AnvilAttentionBackend.supports_batch_invariance()


def test_workspace_is_shared_by_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    user = resolve.resolve(f"{FILE}:right").function

    @attention(workspace_bytes=lambda spec, tokens, requests: 64 * tokens + requests)
    def counted(workspace: torch.Tensor, **arguments: Any) -> None:
        given.append(workspace.data_ptr())
        user(**arguments)

    monkeypatch.setattr(serving, "resolve", lambda name: counted)
    monkeypatch.setenv(serving.VARIABLE, "counted")
    serving.served().admit([SPEC], CPU, 32, 4)
    assert serving.served().implementation is counted
    [held] = serving.served()._workspaces.values()
    assert held.numel() == 64 * 32 + 4
    given.clear()
    Step(CPU).run()
    Step(CPU).run()
    assert given == [held.data_ptr()] * 2


# ---------------------------------------------------------------------- the metadata builder


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (GraphSupport.NEVER, AttentionCGSupport.NEVER),
        (GraphSupport.UNIFORM_DECODE, AttentionCGSupport.UNIFORM_BATCH),
        (GraphSupport.ALWAYS, AttentionCGSupport.ALWAYS),
    ],
)
def test_graph_support_is_the_implementations(
    support: GraphSupport, expected: AttentionCGSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_implementation(AttentionImplementation("it", print, graph_support=support), monkeypatch)
    builder = metadata.AnvilAttentionMetadataBuilder
    assert builder.get_cudagraph_support(None, None) is expected
    # Their block table is made anew in each step.
    encoder = EncoderOnlyAttentionSpec(
        block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float32
    )
    assert builder.get_cudagraph_support(None, encoder) is AttentionCGSupport.NEVER


def test_graph_support_of_anvils_own(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = metadata.AnvilAttentionMetadataBuilder
    for name, expected in (("native", "ALWAYS"), ("triton", "ALWAYS"), ("reference", "NEVER")):
        serve(name, monkeypatch)
        assert builder.get_cudagraph_support(None, None).name == expected


def test_builder_admits_its_layers_as_they_are_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("one_in_a_hundred", monkeypatch)
    impl = AnvilAttentionImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
    layers = {"layer": SimpleNamespace(impl=impl, head_size_v=8)}
    config = engine_config(compilation_config=SimpleNamespace(static_forward_context=layers))
    spec = SimpleNamespace(block_size=6)
    with pytest.raises(ValueError, match=r"wrong values.*blocks of 6"):
        metadata.AnvilAttentionMetadataBuilder(spec, ["layer"], config, CPU)
