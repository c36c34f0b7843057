# SPDX-License-Identifier: Apache-2.0
"""What workers do beside steps: profiles, sharded checkpoints, other weights, idle replicas' steps.

All engines run in one program, on two devices that may share the cores of a smaller machine.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from .expert_models import distributions, make
from .expert_models import prompts as short_prompts

HERE = Path(__file__).parent
PROMPTS = [[1, 504, 3575, 282], list(range(40, 100)), [1, 3681, 314, 253]]
LAYERS = 2
LIMITS = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
LIMITS |= {"kv_cache_memory_bytes": 8 << 20}
# Of a file: the embedding alone is larger.
MOST_BYTES = 1 << 20
# Two orders of the float32 sums of two layers may be so far apart in a logit.
SUMMATION = 1e-3

Results = dict[str, dict[str, Any]]


def shows(document: str, section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface(document, section, what)


def profiling(section: str, what: str) -> pytest.MarkDecorator:
    return shows("profiling", section, what)


def sharded(section: str, what: str) -> pytest.MarkDecorator:
    return shows("sharded checkpoints", section, what)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def other_llama(tiny_llama: Path, folder: Path) -> Path:
    """The tiny Llama with other weights."""
    from transformers import AutoConfig, LlamaForCausalLM

    torch.manual_seed(1)
    other = folder / "other"
    shutil.copytree(tiny_llama, other)
    LlamaForCausalLM(AutoConfig.from_pretrained(tiny_llama)).float().save_pretrained(other)
    return other


@pytest.fixture(scope="module")
def mixtral(folder: Path) -> Path:
    make("mixtral", folder / "mixtral")
    return folder / "mixtral"


@pytest.fixture(scope="module")
def results(tiny_llama: Path, other_llama: Path, mixtral: Path, folder: Path) -> Results:
    """What worker_run.py says of each engine."""
    for name in ("saved-1", "saved-2"):  # what an engine needs beside weights
        shutil.copytree(tiny_llama, folder / name, ignore=shutil.ignore_patterns("*.safetensors"))
    nowhere = [str(folder / "none"), "/proc/self"]

    def job(model: Path, acts: list[Any], traces: str = "", **options: Any) -> dict[str, Any]:
        if traces:
            profiler: dict[str, Any] = {
                "profiler": "torch",
                "torch_profiler_dir": str(folder / traces),
            }
            profiler["torch_profiler_with_stack"] = "tensor_parallel_size" not in options
            options["profiler_config"] = profiler
        engine = {"model": str(model), **LIMITS, **options}
        return {"engine": engine, "prompts": PROMPTS, "acts": acts, "folder": str(folder)}

    update = [
        ["load", [str(other_llama / "model.safetensors")]],
        ["reload", [str(tiny_llama)]],
    ]
    profile, two = ["profile", ["named"]], {"tensor_parallel_size": 2}
    load = {"load_format": "sharded_state"}
    jobs = {
        "one": job(
            tiny_llama,
            [profile, ["save", [str(folder / "saved-1")]], ["save_nowhere", [nowhere]], *update],
            "traces-1",
        )
        | {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}},
        "two": job(
            tiny_llama,
            [profile, ["save", [str(folder / "saved-2"), MOST_BYTES]], *update],
            "traces-2",
            **two,
        ),
        "loaded-1": job(folder / "saved-1", [["profile_nothing", []]], **load),
        "loaded-2": job(folder / "saved-2", [], **load, **two),
        "missing": job(folder / "saved-1", [], **load, **two),
        "idle": job(mixtral, [], data_parallel_size=2, enable_expert_parallel=True)
        | {"prompts": short_prompts()},
    }
    jobs["idle"]["engine"]["skip_tokenizer_init"] = True
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(HERE / "worker_run.py"), str(folder / "jobs.json"), str(folder)],
        env={
            **os.environ,
            "ANVIL_DEVICES": "2",
            "ANVIL_SHARE_CORES": "1",
            "ANVIL_DEVICE_MEMORY": "1GiB",
            # For the workers' extension.
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        timeout=1800,
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        pytest.fail(said[-12000:], pytrace=False)
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in jobs}
    return found | {"log": {"text": said}}


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    (file,) = folder.glob(f"{name}.*.pt.trace.json.gz")
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


@profiling("traces", "what the device ran, with its times, beside the host's calls; graphs by node")
@profiling(
    "traces", "several devices: one of each rank, named by the session's prefix and the rank"
)
@pytest.mark.parametrize(("engine", "ranks"), [("one", 1), ("two", 2)])
def test_a_trace_of_each_rank(engine: str, ranks: int, results: Results, folder: Path) -> None:
    assert results[engine]["profile"]["tokens"] == results[engine]["tokens"]
    traces = folder / f"traces-{ranks}"
    for rank in range(ranks):
        for session in (f"named_rank{rank}", f"rank{rank}"):
            found = events(traces, session)
            stacks = any(event.get("cat") == "python_function" for event in found)
            assert stacks == (ranks == 1)  # the other engine was told to leave them out
        found = events(traces, f"named_rank{rank}")
        device = [event for event in found if event.get("cat") == "kernel"]
        count = Counter(event["name"] for event in device)
        # The engine marks each of its steps, the last of which may have no requests.
        marks = [event["name"] for event in found if event.get("cat") == "user_annotation"]
        steps = sum(
            name.startswith("execute_context_") and not name.endswith("_0(0)_generation_0(0)")
            for name in marks
        )
        assert steps >= 12
        assert count["anvil::paged_attention"] == steps * LAYERS
        assert count["all_reduce"] == (steps * (1 + 2 * LAYERS) if ranks > 1 else 0)
        assert {event["pid"] for event in device} == {rank}
        (span,) = (event for event in found if event.get("cat") == "Trace")
        begin, end = span["ts"], span["ts"] + span["dur"]
        assert all(event["dur"] >= 0 and begin <= event["ts"] <= end for event in device)


@profiling("tables", "PyTorch's table of operators, with the device's own time for each")
def test_a_table_of_each_rank(results: Results, folder: Path) -> None:
    for file in ("traces-1/named_rank0", "traces-2/named_rank1"):
        table = (folder / f"{file}.profiler_out.txt").read_text()
        head = next(line for line in table.splitlines() if "Self CPU %" in line)
        assert "Self ANVIL" in head and "# of Calls" in head
        row = next(line for line in table.splitlines() if " anvil::packed_linear " in line)
        assert float(row.split()[-5].removesuffix("us").removesuffix("ms")) > 0


@profiling("errors", "where none is configured, a call says which option would; the engine goes on")
def test_no_profiler_is_configured(results: Results) -> None:
    found = results["loaded-1"]["profile_nothing"]
    assert "Profiling is not enabled. Please set --profiler-config" in found["said"]
    assert found["tokens"] == results["loaded-1"]["tokens"]


def expected(checkpoint: Path, rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """A rank's part of a Llama's checkpoint, by the engine's names."""
    given = load_file(checkpoint / "model.safetensors")

    def part(name: str, dim: int) -> torch.Tensor:
        return given[f"{name}.weight"].chunk(ranks, dim)[rank]

    found = {"lm_head": part("model.embed_tokens", 0), "model.norm": given["model.norm.weight"]}
    for layer in (f"model.layers.{number}" for number in range(LAYERS)):
        for norm in (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"):
            found[norm] = given[f"{norm}.weight"]
        qkv = [part(f"{layer}.self_attn.{name}_proj", 0) for name in "qkv"]
        found[f"{layer}.self_attn.qkv_proj"] = torch.cat(qkv)
        found[f"{layer}.self_attn.o_proj"] = part(f"{layer}.self_attn.o_proj", 1)
        gates = [part(f"{layer}.mlp.{name}_proj", 0) for name in ("gate", "up")]
        found[f"{layer}.mlp.gate_up_proj"] = torch.cat(gates)
        found[f"{layer}.mlp.down_proj"] = part(f"{layer}.mlp.down_proj", 1)
    return {f"{name}.weight": weight for name, weight in found.items()}


@sharded("saving", "weights as the checkpoint has them, bit for bit; tied ones once")
@sharded("saving", "several devices: each rank's part, in files of at most `max_size`")
@pytest.mark.parametrize("ranks", [1, 2])
def test_saved_weights_are_the_checkpoints(
    ranks: int, results: Results, folder: Path, tiny_llama: Path
) -> None:
    for rank in range(ranks):
        files = sorted((folder / f"saved-{ranks}").glob(f"model-rank-{rank}-part-*.safetensors"))
        assert len(files) == ranks  # the embedding of a half is larger than such a file
        saved = {k: v for file in files for k, v in load_file(file).items() if "_scale" not in k}
        weights = expected(tiny_llama, rank, ranks)
        assert saved.keys() == weights.keys()
        assert all(torch.equal(saved[name], weights[name]) for name in weights)


@sharded("loading", "`load_format=sharded_state`: the same tokens, on one device and on several")
@pytest.mark.parametrize(("saved", "loaded"), [("one", "loaded-1"), ("two", "loaded-2")])
def test_saved_weights_are_loaded(saved: str, loaded: str, results: Results) -> None:
    assert results[loaded]["tokens"] == results[saved]["tokens"]


@sharded("errors", "a folder that is missing or cannot be written to, by name; the engine goes on")
@sharded("errors", "tensorised files are refused by name")
def test_what_cannot_be_saved(results: Results) -> None:
    found = results["one"]["save_nowhere"]
    missing, unwritable = found["said"]
    assert "there is no folder" in missing and "/none. Make it before" in missing
    assert "cannot write /proc/self/model-rank-0-part-0.safetensors: " in unwritable
    assert "Use save_sharded_state" in found["tensorized"]
    assert found["tokens"] == results["one"]["tokens"]


@sharded("errors", "a rank without files ends the start, and says which files it looked for")
def test_a_missing_shard(results: Results) -> None:
    assert "initialization failed" in results["missing"]["failed"]
    said = results["log"]["text"]
    assert "Could not find checkpoint files" in said and "model-rank-1-part-*.safetensors" in said


def greedy_of(model: Path, tokens: list[list[int]]) -> None:
    """What transformers computes in float32 in front of each of these continuations of PROMPTS has
    its maximum there, but for ties."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for prompt, made in zip(PROMPTS, tokens, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + made])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(made)[:, None]).squeeze(1)
        assert (logits.max(-1).values - chosen).max() < SUMMATION


@shows(
    "other weights", "in place", "`model.load_weights` in a worker extension, and graphs replayed"
)
@shows("other weights", "in place", "`reload_weights` from another folder")
@shows("other weights", "several devices", "each rank takes its part of whole weights")
@pytest.mark.parametrize("engine", ["one", "two"])
def test_other_weights(engine: str, results: Results, tiny_llama: Path, other_llama: Path) -> None:
    """Packed weights are written where they lie, so that graphs from before compute with them."""
    found = results[engine]
    greedy_of(tiny_llama, found["tokens"])
    greedy_of(other_llama, found["load"]["tokens"])
    assert found["load"]["tokens"] != found["tokens"]
    assert found["reload"]["tokens"] == found["tokens"]


@shows(
    "idle replicas", "steps without requests", "a mixture of experts over two replicas, one idle"
)
def test_an_idle_replica_takes_part(results: Results, mixtral: Path) -> None:
    """It computes its experts for the other one's tokens, in steps without tokens of its own."""
    answers = results["idle"]["tokens"]
    rows = distributions(mixtral, short_prompts(), answers)
    assert answers == [one.argmax(-1).tolist() for one in rows]
    busy, idle = results["idle"]["dummies"]
    assert idle >= 12 and busy < idle
