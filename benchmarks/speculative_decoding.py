# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with speculation beside the same without.

    python benchmarks/speculative_decoding.py MODEL [--config JSON] [--batch 1] [--json]

Two engines with default settings, one of them with `--speculative-config`, continue the same
repetitive prompts, in turn. Their tokens are compared before anything is timed; they may part only
at ties. Prompts are in the prefix cache when it is timed, so
that a run is decode steps alone. Figures are medians over rounds; `accepted` is the share of drafts
that were kept, `a step` how many tokens a step gave.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from engine_process import EngineProcess, answers, check, reply

ROUNDS = 9
CONFIG = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
FUNCTION = """\
def {0}_of(values):
    return [value.{0} for value in values if value.{0} is not None]


"""
NAMES = ("name", "size", "colour", "weight", "length", "price", "owner", "origin")


def prompt(number: int) -> str:
    """Functions that differ by a name, as generated code has them."""
    names = [*NAMES[number % len(NAMES) :], *NAMES[: number % len(NAMES)]]
    return "".join(FUNCTION.format(name) for name in names)


# ------------------------------------------------------------------ one engine, in its own process


def serve(job: dict[str, Any]) -> None:
    """Answers lines of stdin: "check" with tokens and their margins, "time" with seconds and what
    was drafted meanwhile."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        job["model"],
        max_model_len=2048,
        max_num_seqs=max(8, job["batch"]),
        speculative_config=job["config"],
        disable_log_stats=False,
    )
    prompts = [prompt(number) for number in range(job["batch"])]
    limits: dict[str, Any] = {"temperature": 0, "max_tokens": job["tokens"], "ignore_eos": True}

    def counters() -> dict[str, float]:
        return {
            metric.name.removeprefix("vllm:spec_decode_num_"): metric.value  # type: ignore[attr-defined]
            for metric in llm.get_metrics()
            if metric.name.startswith("vllm:spec_decode_num_") and hasattr(metric, "value")
        }

    reply("ready")
    for line in sys.stdin:
        if line.strip() == "check":
            outputs = llm.generate(prompts, SamplingParams(logprobs=2, **limits), use_tqdm=False)
            reply(answers(outputs))
            continue
        before, start = counters(), time.perf_counter()
        llm.generate(prompts, SamplingParams(detokenize=False, **limits), use_tqdm=False)
        seconds = time.perf_counter() - start
        reply({"seconds": seconds} | {k: v - before[k] for k, v in counters().items()})


# ------------------------------------------------------------------ the comparison


def measure(options: argparse.Namespace) -> dict[str, Any]:
    job = {"model": options.model, "batch": options.batch, "tokens": options.tokens}
    configs = (None, json.loads(options.config))
    engines = [EngineProcess(__file__, job | {"config": config}) for config in configs]
    try:
        check("with speculation", *(engine.ask("check") for engine in engines))
        rounds = [[engine.ask("time") for engine in engines] for _ in range(ROUNDS)]
    finally:
        for engine in engines:
            engine.close()
    plain, speculative = (
        statistics.median(one[side]["seconds"] for one in rounds) for side in (0, 1)
    )
    counted = rounds[-1][1]
    made = options.batch * options.tokens
    return {
        "plain_tokens_per_s": made / plain,
        "speculative_tokens_per_s": made / speculative,
        "ratio": statistics.median(a["seconds"] / b["seconds"] for a, b in rounds),
        "accepted": counted["accepted_tokens"] / max(1, counted["draft_tokens"]),
        "tokens_per_step": 1 + counted["accepted_tokens"] / max(1, counted["drafts"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--config", default=json.dumps(CONFIG), help="as --speculative-config")
    parser.add_argument("--batch", type=int, default=1, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each request")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(json.loads(options.serve))
        return
    result = measure(options)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.batch} x {options.tokens} tokens, {json.loads(options.config)['method']}")
    print(f"  without       {result['plain_tokens_per_s']:8.1f} tokens/s")
    print(f"  with          {result['speculative_tokens_per_s']:8.1f} tokens/s")
    print(f"  ratio         {result['ratio']:8.2f}x")
    print(f"  accepted      {result['accepted']:8.0%} of drafts")
    print(f"  a step        {result['tokens_per_step']:8.2f} tokens")


if __name__ == "__main__":
    main()
