# SPDX-License-Identifier: Apache-2.0
"""An attention that ANVIL_ATTENTION_IMPL names: how it is found, checked and called."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType

from anvil_attention import backend, metadata, observers, resolve, serving
from anvil_attention.contract import (
    AttentionCall,
    AttentionImplementation,
    AttentionSpec,
    GraphSupport,
    attention,
)
from anvil_attention.impl import AnvilAttentionImpl
from anvil_attention.reference_implementation import reference_attention

FILE = Path(__file__).with_name("user_attention.py")
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 4
SPEC = AttentionSpec(
    HEADS, KV_HEADS, SIZE, SIZE, BLOCK, torch.float32, torch.float32, SIZE**-0.5, device="cpu"
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(serving.VARIABLE, raising=False)
    monkeypatch.setattr(serving, "_served", {})
    yield
    observers.set_observer(None)


def serve(name: str, monkeypatch: pytest.MonkeyPatch) -> serving.Served:
    monkeypatch.setenv(serving.VARIABLE, f"{FILE}:{name}")
    return serving.served()


# ---------------------------------------------------------------------- finding it


def test_own_names() -> None:
    assert resolve.resolve("reference") is reference_attention
    assert serving.served().is_reference
    assert serving.served() is serving.served()


def test_function_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve.resolve(f"{FILE}:right")
    assert found.name == f"{FILE}:right"
    monkeypatch.chdir(FILE.parent)
    # However a file is named, it is imported once.
    assert resolve.resolve("user_attention.py:right").function is found.function
    assert resolve.resolve(f"{FILE}:refusing").name == "refusing"


def test_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_module.py").write_text(
        "class Kernels:\n    @staticmethod\n    def mine(**arguments): return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve.resolve("users_module:Kernels.mine")
    assert found.function is sys.modules["users_module"].Kernels.mine


def test_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "anvil_attention.reference_implementation:attend", "group")
    broken = EntryPoint("broken", "no_such_module_at_all:f", "group")
    monkeypatch.setattr(resolve, "entry_points", lambda group: [entry, broken])
    assert resolve.resolve("theirs").function is reference_attention.function
    with pytest.raises(ImportError, match="entry point broken = no_such_module_at_all:f"):
        resolve.resolve("broken")
    with pytest.raises(ValueError, match="Known names are reference, triton, broken, theirs"):
        resolve.resolve("anothers")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_such_module:f", ImportError, "there is no module 'no_such_module'. Put its folder"),
        ("vllm_anvil.nothing:f", ImportError, "there is no module 'vllm_anvil.nothing'"),
        ("/no/such/file.py:f", ImportError, "there is no file /no/such/file.py"),
        (f"{FILE}:nothing", ValueError, "has no 'nothing'. It has .*right"),
        (f"{FILE}:right.nothing", ValueError, "has no 'right.nothing'"),
        (f"{FILE}:not_a_function", TypeError, "it is int, not a function"),
        (f"{FILE}:of_another_version", ValueError, "version 0 of the attention contract"),
        ("unknown", ValueError, "there is no attention 'unknown'. Known names are reference"),
        (":f", ValueError, "names no attention"),
        ("module:", ValueError, "names no attention"),
    ],
)
def test_what_cannot_be_found(
    name: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=message):
        resolve.resolve(name)
    monkeypatch.setenv(serving.VARIABLE, name)
    with pytest.raises(ValueError, match=f"ANVIL_ATTENTION_IMPL={name}: .*{message}"):
        serving.served()


@pytest.mark.parametrize("place", ["breaking.py", "breaking"])
def test_module_that_cannot_be_imported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match="importing .*breaking.* failed: ModuleNotFoundError"):
        resolve.resolve(f"{place}:f")


def test_adapters_for_the_benchmark_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = AttentionImplementation("adapter", print, prepare=lambda call: lambda: None)
    monkeypatch.setattr(serving, "resolve", lambda name: adapter)
    with pytest.raises(ValueError, match="it is an adapter for the benchmark"):
        serving.served()


# ---------------------------------------------------------------------- checking it


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
        ("refusing", "it refuses a layer of this model: heads of 16 .* Unset ANVIL_ATTENTION_IMPL"),
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
    assert validate(**asked | {"attn_type": AttentionType.ENCODER_ONLY}) == []
    with pytest.raises(ValueError, match="heads of 80 are not its business"):
        backend.AnvilAttentionBackend.check_served(config)


# ---------------------------------------------------------------------- calling it


class Step:
    """A prefill of 6 tokens and a decode at 9, with a row and a request of padding."""

    def __init__(self, device: torch.device, kv_dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (12, KV_HEADS, BLOCK, 2 * SIZE)
        self.cache = torch.randn(shape, generator=generator).to(device, kv_dtype)
        self.query = torch.randn(8, HEADS, SIZE, generator=generator).to(device)
        self.output = torch.full_like(self.query, 7.0)
        self.table = torch.tensor([[3, 9, 99, 0], [7, 1, 5, -1], [99, -1, 0, 0]])

    def metadata(self) -> metadata.AnvilAttentionMetadata:
        def integers(values: Any) -> torch.Tensor:
            return torch.as_tensor(values, dtype=torch.int32, device=self.query.device)

        return metadata.AnvilAttentionMetadata(
            num_actual_tokens=7,
            max_query_len=6,
            max_seq_len=9,
            query_start_loc=integers([0, 6, 7, 7]),
            seq_lens=integers([6, 9, 99]),
            block_table=integers(self.table),
            slot_mapping=torch.full((7,), -1, device=self.query.device),
            causal=True,
            query_start_loc_host=[0, 6, 7, 7],
            seq_lens_host=[6, 9, 99],
        )

    def run(self, step: metadata.AnvilAttentionMetadata | None = None) -> torch.Tensor:
        impl = AnvilAttentionImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
        layer = SimpleNamespace(layer_name="model.layers.5.attn")
        step = step or self.metadata()
        impl.forward(layer, self.query, None, None, self.cache, step, self.output)
        return self.output.cpu()


@pytest.mark.parametrize(
    ("name", "kv_dtype", "tolerance"),
    [
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
    expected = Step(device, kv_dtype).run()
    serve(name, monkeypatch)
    actual = Step(device, kv_dtype).run()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert bool((actual[7] == 7.0).all())


@pytest.mark.parametrize("name", ["reference", "right"])
@pytest.mark.parametrize("block", [12, -1, 2**31 - 1])
def test_block_outside_of_the_cache_is_refused(
    name: str, block: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    if name != "reference":
        served = serve(name, monkeypatch)
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


def test_failure_is_reported_as_the_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("breaks", monkeypatch)
    message = f"{FILE}:breaks: it failed in layer 'model.layers.5.attn' with KeyError"
    with pytest.raises(RuntimeError, match=message) as caught:
        Step(CPU).run()
    assert isinstance(caught.value.__cause__, KeyError)


def test_encoders_keep_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("breaks", monkeypatch)
    impl = AnvilAttentionImpl(HEADS, SIZE, 1.0, KV_HEADS, attn_type=AttentionType.ENCODER_ONLY)
    step = Step(CPU)
    key = torch.randn(8, KV_HEADS, SIZE)
    impl.forward(None, step.query, key, key, step.cache, step.metadata(), step.output)
    assert bool((step.output[:7] != 7.0).all())


@pytest.mark.parametrize("name", ["reference", "right"])
def test_observer_sees_the_call_and_then_the_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "reference":
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
    builder = metadata.AnvilAttentionMetadataBuilder
    assert builder.get_cudagraph_support(None, None) is AttentionCGSupport.NEVER
    found = AttentionImplementation("it", print, graph_support=support)
    monkeypatch.setattr(serving, "_served", {"it": serving.Served("it", found)})
    monkeypatch.setenv(serving.VARIABLE, "it")
    assert builder.get_cudagraph_support(None, None) is expected


def test_builder_admits_its_layers_as_they_are_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("one_in_a_hundred", monkeypatch)
    impl = AnvilAttentionImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
    config = SimpleNamespace(
        speculative_config=None,
        compilation_config=SimpleNamespace(
            static_forward_context={"layer": SimpleNamespace(impl=impl, head_size_v=8)}
        ),
        model_config=SimpleNamespace(dtype=torch.float32),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8, max_num_seqs=2),
    )
    spec = SimpleNamespace(block_size=6)
    with pytest.raises(ValueError, match=r"wrong values.*blocks of 6"):
        metadata.AnvilAttentionMetadataBuilder(spec, ["layer"], config, CPU)
