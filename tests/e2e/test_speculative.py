# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding changes how many steps an answer takes, and not what is answered.

A tiny model in float32 answers without speculation and with each method, in turn: whatever is
certain has to be the same. What is drawn is held against the model's own distribution.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from . import speculative_models as models
from . import speculative_requests as asked
from .conftest import NEW_TOKENS, EngineRun, Reference

HERE = Path(__file__).parent
DRAFTS = 3
# Drafts that are drawn are verified with the distribution that they were drawn from.
DRAWN = {"draft_sample_method": "probabilistic"}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft_model": {"method": "draft_model", "model": "draft", **DRAWN},
    "eagle": {"method": "eagle", "model": "eagle"},
    "eagle3": {"method": "eagle3", "model": "eagle3", **DRAWN},
}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 160,
    "max_num_seqs": 8,
    # Prompts are computed in parts.
    "max_num_batched_tokens": 48,
    # Half of what 8 requests may need.
    "block_size": 16,
    "num_gpu_blocks_override": 36,
    "logits_processors": asked.PROCESSORS,
    "disable_log_stats": False,
    # A model of random weights would not find out of it.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "seed": 0,
}
LOGPROB_TOLERANCE = 1e-3
HALF_TIE = 0.1  # log-probabilities of the tiny model are spread over 20 and more
SAMPLED, SAMPLE_TOKENS = 128, 20
# Numbers of the requests whose answers are certain. The longest prompts come twice: the second time
# they are in the prefix cache, all or in part.
CERTAIN = [*range(len(asked.certain())), *range(2 * len(asked.CERTAIN), 3 * len(asked.CERTAIN))]
HALF = [i for i, (name, _) in enumerate(asked.certain()) if name == "greedy"]
LONG = 60  # tokens of the request that comes alone, at the end

Reports = Mapping[str, dict[str, Any]]


def shown(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("speculative decoding", section, what)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speculative-models")
    for name in ("target", "draft", "eagle", "eagle3"):
        getattr(models, f"make_{name}")(root / name)
    return {folder.name: folder for folder in root.iterdir()}


def speculative(method: str, folders: dict[str, Path]) -> dict[str, Any]:
    """The configuration of a method, with the folder of its model."""
    config = METHODS[method] | {"num_speculative_tokens": DRAFTS}
    return config | ({"model": str(folders[config["model"]])} if "model" in config else {})


def requests() -> list[dict[str, Any]]:
    alone = {"temperature": 0, "max_tokens": LONG, "ignore_eos": True}
    return [
        *(request for _, request in asked.certain()),
        *asked.samples(SAMPLED, SAMPLE_TOKENS),
        {"token_ids": [9, 8, 7], "params": alone},
    ]


def run(jobs: dict[str, Any], root: Path, **environment: str) -> Reports:
    """What engine_run.py says of each job."""
    (root / "jobs.json").write_text(json.dumps(jobs))
    paths = [str(HERE.parent / "surfaces"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_runs.py"), str(root / "jobs.json"), str(root)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "ANVIL_DEVICE_MEMORY": "1GiB",
            # A process that was forked cannot spawn others, whatever this one has been told.
            "VLLM_WORKER_MULTIPROC_METHOD": "fork",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=850,
    )
    if done.returncode != 0:
        pytest.fail(
            f"an engine failed:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}", pytrace=False
        )
    return {name: json.loads((root / f"{name}.json").read_text()) for name in jobs}


@pytest.fixture(scope="module")
def reports(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """By method, and "none": what the engine says of `requests`; "half": of the first ones, in
    bfloat16."""
    count, certain = len(requests()), len(asked.certain())
    batches = [CERTAIN, list(range(certain, count - 1)), [count - 1]]
    engine = ENGINE | {"model": str(folders["target"])}
    jobs = {
        name: {
            "engine": engine
            | ({} if name == "none" else {"speculative_config": speculative(name, folders)}),
            "requests": requests(),
            "batches": batches,
        }
        for name in ("none", *METHODS)
    }
    drafts = speculative("eagle3", folders)
    jobs["half"] = {
        "engine": engine | {"dtype": "bfloat16", "speculative_config": drafts},
        "requests": requests(),
        "batches": [HALF],
    }
    root = tmp_path_factory.mktemp("speculative")
    return run(jobs, root, VLLM_ENABLE_V1_MULTIPROCESSING="0")


method = pytest.mark.parametrize("method", list(METHODS))


@shown("methods", "n-grams, a draft model, EAGLE and EAGLE-3; drafts by argmax or drawn")
@shown("methods", "steps overlap with scheduling, with every method")
@method
def test_drafts_are_accepted(reports: Reports, method: str) -> None:
    found = reports[method]
    assert found["overlaps"] and found["runner"] == "v2" and found["backends"] == ["ANVIL_ATTN"]
    drafted, accepted = (
        found["counters"][f"vllm:spec_decode_num_{what}_tokens"] for what in ("draft", "accepted")
    )
    share = accepted / drafted
    print(f"{method}: {accepted:.0f} of {drafted:.0f} accepted, {share:.0%}")
    # A head of random weights does not know what to say, and such a model seldom repeats itself.
    assert (0.1 if method in ("draft_model", "eagle") else 0) < share < 0.95


@shown("answers", "greedy tokens, texts and ends are those without speculation, in float32 exactly")
@shown(
    "requests",
    "penalties, allowed tokens, bad words, minimum lengths, stop tokens and stop strings",
)
@shown("requests", "log-probabilities of what was sampled and of prompts")
@shown("requests", "JSON schemas, regular expressions and choices, beside requests without")
@shown("requests", "chunked prefills, prefix caching and pre-emption")
@pytest.mark.surface(
    "logits processors",
    "speculative decoding",
    "a processor of one's own and `vllm_anvil.logits_processors`: the answers are those without "
    "drafts",
)
@method
def test_answers_are_the_same(reports: Reports, method: str) -> None:
    for place, number in enumerate(CERTAIN):
        name, _ = asked.certain()[number]
        one, other = (reports[engine]["outputs"][place] for engine in ("none", method))
        assert _without_logprobs(one) == _without_logprobs(other), name
        _same_logprobs(one, other)
    assert reports[method]["outputs"][-1] == reports["none"]["outputs"][-1]
    assert reports[method]["counters"]["vllm:num_preemptions"] > 0
    assert any(output["cached"] for output in reports[method]["outputs"])


def _without_logprobs(output: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in one.items() if key != "logprobs"}
        for one in output["completions"]
    ]


def _same_logprobs(one: dict[str, Any], other: dict[str, Any]) -> None:
    torch.testing.assert_close(
        torch.tensor(one["prompt_logprobs"]),
        torch.tensor(other["prompt_logprobs"]),
        rtol=0,
        atol=LOGPROB_TOLERANCE,
    )
    for ours, theirs in zip(
        one["completions"][0]["logprobs"], other["completions"][0]["logprobs"], strict=True
    ):
        for token in ours.keys() & theirs.keys():
            assert math.isclose(ours[token][0], theirs[token][0], abs_tol=LOGPROB_TOLERANCE)
        # Of two that are as probable, either may be left out.
        assert len(ours) == len(theirs)


@method
def test_structured_outputs_are_what_they_must_be(reports: Reports, method: str) -> None:
    found = {"regex": 0, "json": 0, "choice": 0}
    for number, output in zip(CERTAIN, reports[method]["outputs"], strict=False):
        name, _ = asked.certain()[number]
        if name not in found:
            continue
        (one,) = output["completions"]
        assert one["finish_reason"] == "stop", name
        found[name] += 1
        if name == "regex":
            assert re.fullmatch(asked.REGEX, one["text"])
        elif name == "json":
            assert set(json.loads(one["text"])) == {"name", "kind"}
        else:
            assert one["text"] in asked.CHOICES
    assert all(found.values())


@shown("answers", "what is drawn has the model's distribution")
@method
def test_samples_have_the_models_distribution(
    reports: Reports, folders: dict[str, Path], method: str
) -> None:
    """Given all before it, a token is the model's favourite as often as the model says, and the
    draft's, and has every rank as often. Seeds are fixed, so that the figures are the same each
    time; 4.5 deviations would be rare ones."""
    outputs = reports[method]["outputs"][len(CERTAIN) :][:SAMPLED]
    prompts = [one["token_ids"] for one in asked.samples(SAMPLED, SAMPLE_TOKENS)]
    tokens = [output["token_ids"] for output in outputs]
    assert {len(one) for one in tokens} == {SAMPLE_TOKENS}
    exact = torch.cat(models.log_probabilities(folders["target"], prompts, tokens)).exp()
    drafted = torch.cat(models.log_probabilities(folders["draft"], prompts, tokens)).exp()
    chosen = torch.tensor(tokens).flatten()
    for favourite in (exact.argmax(1), drafted.argmax(1)):
        expected = exact.gather(1, favourite[:, None]).squeeze(1)
        variance = (expected * (1 - expected)).sum()
        deviation = ((chosen == favourite).sum() - expected.sum()) / variance.sqrt()
        print(f"{method}: {deviation:+.2f} deviations of {len(chosen)} tokens")
        assert variance > 300  # a fraction of 3 % too many would show
        assert deviation.abs() < 4.5
    # Where the token lies among all, the most probable first: uniform, up to its own width.
    order = exact.argsort(1, descending=True)
    place = (order == chosen[:, None]).int().argmax(1)
    before = exact.gather(1, order).cumsum(1)
    generator = torch.Generator().manual_seed(0)
    width = exact.gather(1, chosen[:, None]).squeeze(1)
    uniform = before.gather(1, place[:, None]).squeeze(1) - width * torch.rand(
        len(chosen), generator=generator, dtype=torch.float64
    )
    counts = torch.histc(uniform, 20, 0, 1)
    mean = len(chosen) / 20
    statistic = ((counts - mean) ** 2 / mean).sum()
    print(f"{method}: chi-square {statistic:.1f} of 19 degrees of freedom")
    assert statistic < 60


@shown("speed", "steps that verify drafts are replayed from graphs, and so are EAGLE's own steps")
@method
def test_steps_are_replayed(reports: Reports, method: str) -> None:
    """A request alone: the model's Python runs for its prompt, and not again."""
    model, draft = reports[method]["by_batch"][-1]
    assert model == 1
    if "eagle" in method:
        assert draft == 1
    # The engine does not capture the steps of a draft model.
    assert (draft > LONG / (1 + DRAFTS)) == ("draft_model" in method)
    assert reports["none"]["by_batch"][-1] == [1, 0]


@shown("answers", "bfloat16: drafts and hidden states in float32, as the model's")
def test_half_precision(reports: Reports, folders: dict[str, Path]) -> None:
    """Tokens are the model's with its weights rounded, but for what the cache's rounding decides
    where two are as good."""
    prompts = [asked.certain()[number][1]["token_ids"] for number in HALF]
    tokens = [output["token_ids"] for output in reports["half"]["outputs"]]
    exact = models.log_probabilities(folders["target"], prompts, tokens, torch.bfloat16)
    for one, chosen in zip(exact, tokens, strict=True):
        assert len(chosen) == asked.NEW_TOKENS
        behind = one.max(1).values - one.gather(1, torch.tensor(chosen)[:, None]).squeeze(1)
        assert behind.max() < HALF_TIE


@pytest.mark.slow
@shown("several devices", "tensor parallelism, with n-grams, a draft model and EAGLE")
@shown("several devices", "pipeline parallelism, with n-grams")
def test_several_devices(reports: Reports, folders: dict[str, Path], tmp_path: Path) -> None:
    engine = ENGINE | {"model": str(folders["target"])}
    ways = [(name, "tensor") for name in ("ngram", "draft_model", "eagle")] + [
        ("ngram", "pipeline")
    ]
    jobs = {
        f"{name}-{way}": {
            "engine": engine
            | {"speculative_config": speculative(name, folders), f"{way}_parallel_size": 2},
            "requests": requests(),
            "batches": [CERTAIN],
        }
        for name, way in ways
    }
    found = run(jobs, tmp_path, ANVIL_DEVICES="2", ANVIL_SHARE_CORES="1")
    for name, report in found.items():
        assert report["counters"]["vllm:spec_decode_num_accepted_tokens"] > 0, name
        for one, other in zip(reports["none"]["outputs"], report["outputs"], strict=False):
            assert _without_logprobs(one) == _without_logprobs(other), name


@shown("answers", "in bfloat16 the tokens are SmolLM2's in float32, but for proven ties")
def test_smollm2_in_bfloat16(smollm2: Path, engine_run: EngineRun, reference: Reference) -> None:
    """As tests/e2e/test_smollm2.py without speculation."""
    greedy = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "min_tokens": NEW_TOKENS}
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    engine = {
        "model": str(smollm2),
        "max_model_len": 512,
        "max_num_seqs": 8,
        "speculative_config": config | {"prompt_lookup_min": 1},
    }
    asking = [{"token_ids": prompt, "params": greedy} for prompt in reference.prompts]
    outputs = engine_run(engine, asking)["outputs"]
    diverging = []
    for number, (output, expected) in enumerate(zip(outputs, reference.tokens, strict=True)):
        tokens = output["token_ids"]
        assert len(tokens) == NEW_TOKENS
        if tokens != expected:
            first = next(i for i in range(NEW_TOKENS) if tokens[i] != expected[i])
            diverging.append(reference.gaps[number][first].item())
    assert len(diverging) <= 2 and all(gap < 0.02 for gap in diverging), diverging
