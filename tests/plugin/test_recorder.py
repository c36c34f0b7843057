# SPDX-License-Identifier: Apache-2.0
"""Which calls ANVIL_RECORD writes into files, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vllm_anvil.device
import vllm_anvil.ops  # noqa: F401  and the ops
from anvil_attention import observers
from anvil_attention.contract import AttentionCall, AttentionSpec
from vllm_anvil import envs
from vllm_anvil.plugin import record_settings, recorder, recording_worker, worker
from vllm_anvil.plugin.record_settings import DEFAULT_OPS, layers_to_record
from vllm_anvil.testing.op_cases.cache import OPS
from vllm_anvil.testing.recording import Recording, load
from vllm_anvil.testing.replay import check_recorded, ops_of

LIMIT = 1 << 20
HALF_WEIGHT = torch.ones(2, 4, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in envs.VARIABLES:
        if name.startswith("ANVIL_RECORD"):
            monkeypatch.delenv(name, raising=False)
    yield
    assert observers.observer() is None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(
        recorder, "logger", SimpleNamespace(info=lambda text, *args: lines.append(text % args))
    )
    return lines


def make(folder: Path, **changes: Any) -> recorder.Recorder:
    options: dict[str, Any] = {
        "limit": LIMIT,
        "steps": range(100),
        "ops": DEFAULT_OPS,
        "meta": {"model": "m"},
    }
    return recorder.Recorder(folder, **(options | changes))


def norm(rows: int = 2, device: str = "cpu") -> torch.Tensor:
    return torch.ops.anvil.rms_norm(torch.ones(rows, 8, device=device), None, 1e-6)


def steps(folder: Path) -> dict[str, Recording]:
    return {path.name: load(path) for path in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize("device", ["cpu", "anvil"])
def test_calls_with_arguments_before_and_results_after(tmp_path: Path, device: str) -> None:
    recording = make(tmp_path)
    cache = torch.zeros(6, 2, 1, 4, device=device)
    slots = torch.tensor([9, -1], device=device)
    torch.ops.anvil.silu_and_mul(torch.ones(1, 4, device=device))
    with torch.inference_mode(), recording.step(tokens=2, requests=1):
        given = torch.ones(2, 8, device=device)
        normed = torch.ops.anvil.rms_norm(given, None, epsilon=1e-6)
        given.zero_()
        ones = torch.ones(2, 1, 4, device=device)
        torch.ops.anvil.write_kv_cache(ones, 2 * ones, cache, cache.clone(), slots)
        torch.ops.anvil.linear(ones, HALF_WEIGHT.to(device))
    assert list(tmp_path.iterdir()) == []  # the step goes on
    with recording.part_of_step():
        torch.ops.anvil.softmax(torch.zeros(1, 4, device=device))
    recording.end_step()

    [(name, found)] = steps(tmp_path).items()
    assert name == "step-000000.pt"
    assert found.meta == {"model": "m", "step": 0, "tokens": 2, "requests": 1}
    assert [call.op for call in found.calls] == ["rms_norm", "write_kv_cache", "softmax"]
    first, write, _ = found.calls
    assert first.arguments["epsilon"] == 1e-6
    assert first.arguments["variance_size"] is None
    assert torch.equal(first.arguments["x"], torch.ones(2, 8))
    assert torch.equal(first.results["result"], normed.cpu())
    # Of the cache one block, before and after.
    assert write.arguments["slot_mapping"].tolist() == [1, -1]
    assert torch.equal(write.arguments["key_cache"], torch.zeros(1, 2, 1, 4))
    assert write.results["key_cache"].flatten().tolist() == [0.0] * 4 + [1.0] * 4
    assert write.results["value_cache"].flatten().tolist() == [0.0] * 4 + [2.0] * 4


def test_a_write_that_quantises_replays(tmp_path: Path) -> None:
    recording = make(tmp_path)
    caches = [torch.zeros(6, 2, 1, 4, dtype=torch.uint8).view(torch.float8_e4m3fn) for _ in "kv"]
    with recording.step():
        key = torch.tensor([[[1.0, -300.0, 0.3, 500.0]]])
        slots = torch.tensor([9])
        torch.ops.anvil.write_kv_cache(key, key, *caches, slots, 0.5, v_scale=1.0)
    recording.end_step()
    [found] = steps(tmp_path).values()
    [write] = found.calls
    assert (write.arguments["k_scale"], write.arguments["v_scale"]) == (0.5, 1.0)
    assert write.results["key_cache"].dtype == torch.float8_e4m3fn
    [op] = ops_of(found.calls, {op.qualified_name: op for op in OPS})
    results = list(check_recorded(op, op.cases[0], write.results, "cpu"))
    assert len(results) == 2 and all(result.passed for result in results), results


def test_attention_by_its_observer(tmp_path: Path) -> None:
    recording = make(tmp_path)
    spec = AttentionSpec(2, 1, 4, 4, 2, torch.float32, torch.bfloat16, 0.5, device="cpu")
    cache = torch.zeros(5, 2, 1, 4)
    call = AttentionCall(
        spec=spec,
        query=torch.ones(1, 2, 4),
        key_cache=cache,
        value_cache=cache,
        block_table=torch.tensor([[4, 2]], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([3], dtype=torch.int32),
        output=torch.full((1, 2, 4), 9.0),
        max_query_len=1,
        max_seq_len=3,
    )
    assert observers.observer() is None
    with recording.step():
        observer = observers.observer()
        assert observer is not None
        written = observer("model.layers.0.attn", call)
        assert written is not None
        call.output.fill_(5.0)
        written()
        # A call that cannot be understood is left to the engine.
        table = torch.tensor([[4, 7]], dtype=torch.int32)
        assert observer("model.layers.1.attn", replace(call, block_table=table)) is None
    recording.end_step()
    [found] = steps(tmp_path).values()
    [recorded] = found.calls
    assert (recorded.op, recorded.where) == ("paged_attention", "model.layers.0.attn")
    assert recorded.arguments["spec"]["kv_dtype"] == "bfloat16"
    assert recorded.arguments["block_table"].tolist() == [[1, 0]]
    assert "workspace" not in recorded.arguments
    assert set(recorded.results["output"].flatten().tolist()) == {5.0}


class Model(torch.nn.Module):
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.anvil.rms_norm(x, None, 1e-6)

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(self.Layer() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.ops.anvil.softmax(x)
        for layer in self.layers:
            x = layer(x)
        return torch.ops.anvil.log_softmax(x)


def test_layers_are_left_out(tmp_path: Path) -> None:
    recording, model = make(tmp_path, steps=range(1)), Model()
    names = [f"layers.{i}.self_attn.attn" for i in range(5)]
    recording.watch_layers(model, layers_to_record(names))
    with recording.step():
        model(torch.ones(1, 4))
    recording.end_step()
    [found] = steps(tmp_path).values()
    assert [(call.op, call.where) for call in found.calls] == [
        ("softmax", ""),
        ("rms_norm", "layers.0"),
        ("rms_norm", "layers.2"),
        ("rms_norm", "layers.4"),
        ("log_softmax", ""),
    ]
    with recording.step():  # one too many
        model(torch.ones(1, 4))
    assert not any(layer._forward_pre_hooks for layer in model.layers)


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, {("model.", 0), ("model.", 1), ("model.", 2), ("encoder.", 7)}),
        ("all", {("model.", 0), ("model.", 1), ("model.", 2), ("encoder.", 7)}),
        ("2, 1", {("model.", 1), ("model.", 2)}),
    ],
)
def test_which_layers(
    value: str | None, chosen: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("ANVIL_RECORD_LAYERS", value)
    names = [f"model.layers.{i}.self_attn.attn" for i in range(3)]
    found = layers_to_record([*names, "encoder.layers.7.attn", "pooler.attn"])
    assert len(found) == 4
    assert {name for name, wanted in found.items() if wanted} == {
        f"{stack}layers.{number}" for stack, number in chosen
    }


def test_steps_and_ops_that_were_asked_for(tmp_path: Path, log: list[str]) -> None:
    recording = make(tmp_path, steps=range(2, 4), ops=frozenset({"linear"}))
    for _ in range(6):
        with recording.step():
            norm()
            torch.ops.anvil.linear(torch.ones(1, 4), HALF_WEIGHT)
    recording.end_step()
    found = steps(tmp_path)
    assert list(found) == ["step-000000.pt", "step-000001.pt"]
    assert [step.meta["step"] for step in found.values()] == [2, 3]
    assert [call.op for step in found.values() for call in step.calls] == ["linear"] * 2
    assert len(log) == 1
    assert "recording ends: 2 steps were recorded (ANVIL_RECORD_STEPS)" in log[0]


def test_limit(tmp_path: Path, log: list[str]) -> None:
    (tmp_path / "step-000006.pt").write_bytes(bytes(10_000))
    recording = make(tmp_path, limit=40_000)
    for _ in range(20):
        with recording.step():
            norm(rows=50)
            norm(rows=50)
    recording.end_step()
    (tmp_path / "step-000006.pt").unlink()
    found = steps(tmp_path)
    assert next(iter(found)) == "step-000007.pt"  # numbered on
    assert 1 < len(found) < 20
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30_000
    [line] = log
    assert f"ANVIL_RECORD={tmp_path}: recording ends: the limit of 40000 bytes" in line


def test_full_disk_ends_recording_and_nothing_else(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "write_whole", full)
    recording = make(tmp_path)
    for _ in range(3):
        with recording.step():
            norm()
    recording.end_step()
    [line] = log
    assert "step-000000.pt could not be written: No space left on device" in line


def test_errors_of_a_step_pass_through(tmp_path: Path) -> None:
    recording = make(tmp_path)
    message = "invalid|shape|must|dimension"
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message), recording.step():
        torch.ops.anvil.linear(torch.ones(1, 5), HALF_WEIGHT)
    with recording.step():
        norm()
    recording.end_step()
    assert len(steps(tmp_path)) == 1


# ---------------------------------------------------------------------- the environment


def config(world_size: int = 1) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            world_size_across_dp=world_size, data_parallel_index=1, world_size=2
        ),
        model_config=SimpleNamespace(model="/models/tiny", dtype=torch.bfloat16),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


def test_off_by_default() -> None:
    assert record_settings.folder_from_environment() is None
    assert record_settings.recorder_of_worker(config(), 0, Model()) is None


def test_recorder_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "folder"
    monkeypatch.setenv("ANVIL_RECORD", str(folder))
    monkeypatch.setenv("ANVIL_RECORD_OPS", "rms_norm, linear")
    monkeypatch.setenv("ANVIL_RECORD_STEPS", "1-1")
    found = record_settings.recorder_of_worker(config(world_size=4), 1, Model())
    assert found is not None
    for _ in range(2):
        with found.step():
            norm()
    found.end_step()
    # One folder for each rank where there are several.
    [step] = steps(folder / "rank3").values()
    assert step.meta["model"] == "tiny"
    assert step.meta["dtype"] == "bfloat16"
    assert [call.op for call in step.calls] == ["rms_norm"]


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        monkeypatch.setenv("ANVIL_RECORD", str(tmp_path / place))
        with pytest.raises(ValueError, match=f"ANVIL_RECORD={tmp_path}/{place}: steps cannot be"):
            record_settings.folder_from_environment()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ANVIL_RECORD_OPS", "rms_norm,no_such_op", "there is no op 'no_such_op'. Known are"),
        ("ANVIL_RECORD_OPS", "rms norm", "must be names of ops"),
        ("ANVIL_RECORD_STEPS", "5-3", "holds no step"),
        ("ANVIL_RECORD_STEPS", "0", "holds no step"),
        ("ANVIL_RECORD_STEPS", "first", "must be how many steps"),
        ("ANVIL_RECORD_LAYERS", "some", "must be ends, all, or numbers"),
        ("ANVIL_RECORD_LIMIT", "lots", "must be at least 2 MiB"),
    ],
)
def test_settings_that_cannot_be_used(
    name: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_RECORD", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        record_settings.recorder_of_worker(config(), 0, Model())


def test_worker_wraps_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_worker.Worker, "execute_model", lambda self, scheduled: norm())
    monkeypatch.setattr(recording_worker.Worker, "sample_tokens", lambda self, grammar: norm(3))
    own = object.__new__(worker.AnvilWorker)
    own._recorder = None
    scheduled = SimpleNamespace(total_num_scheduled_tokens=5, num_scheduled_tokens={"a": 5})
    own.execute_model(scheduled)
    own._recorder = make(tmp_path)
    own.execute_model(scheduled)
    own.sample_tokens(None)
    own.execute_model(SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={}))
    [step] = steps(tmp_path).values()
    assert step.meta == {"model": "m", "step": 0, "tokens": 5, "requests": 1}
    assert [call.arguments["x"].shape[0] for call in step.calls] == [2, 3]
