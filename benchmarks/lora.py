# SPDX-License-Identifier: Apache-2.0
"""Decoding with adapters beside the same requests without.

    python benchmarks/lora.py [--model DIR] [--batch 8] [--adapters 4] [--rank 16] [--json]

Two engines with default settings answer the same prompts in turn. One of them has adapters of all
linear layers, with random weights, and its requests take turns with them. Before anything is timed,
its answers without an adapter are held against the other engine's, and its answers with adapters
against those of each request alone: both may part only at ties. Prompts are in the prefix cache
when it is timed, so that a run is decode steps alone. Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_process import EngineProcess, answers, check, reply

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9
PROMPT_TOKENS = 48
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZE = 0.06  # of the elements of an adapter's matrices: answers are others, and no noise


def save_adapter(folder: Path, model: str, rank: int, seed: int) -> None:
    """An adapter of all linear layers, as PEFT writes it."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, layer in layers.named_modules():
        if name.rpartition(".")[2] in TARGETS:
            columns, depth = layer.weight.shape
            for which, size in (("A", (rank, depth)), ("B", (columns, rank))):
                matrix = torch.randn(size, generator=generator) * SIZE
                weights[f"base_model.model.{name}.lora_{which}.weight"] = matrix
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


# ------------------------------------------------------------------ one engine, in its own process


def serve(job: dict[str, Any]) -> None:
    """Answers lines of stdin: "plain", "adapted" and "alone" with tokens and their margins, "time"
    with seconds."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    folders = job["adapters"]
    adapters: dict[str, Any] = {}
    if folders:
        adapters = {
            "enable_lora": True,
            "max_loras": len(folders),
            "max_lora_rank": job["rank"],
        }
    batch = job["batch"]
    llm = LLM(job["model"], max_model_len=1024, max_num_seqs=max(8, batch), **adapters)
    prompts: list[Any] = [
        {"prompt_token_ids": [100 + 7 * number + token for token in range(PROMPT_TOKENS)]}
        for number in range(batch)
    ]
    requests = [LoRARequest(f"adapter{i}", 1 + i, folder) for i, folder in enumerate(folders)]
    given = [requests[i % len(requests)] for i in range(batch)] if requests else None
    limits: dict[str, Any] = {"temperature": 0, "max_tokens": job["tokens"], "ignore_eos": True}

    def answered(chosen: list[int], adapted: bool) -> list[dict[str, Any]]:
        outputs = llm.generate(
            [prompts[i] for i in chosen],
            SamplingParams(logprobs=2, **limits),
            lora_request=[given[i] for i in chosen] if adapted and given else None,
            use_tqdm=False,
        )
        return answers(outputs)

    reply("ready")
    everyone = list(range(batch))
    for line in sys.stdin:
        what = line.strip()
        if what == "time":
            start = time.perf_counter()
            llm.generate(
                prompts,
                SamplingParams(detokenize=False, **limits),
                lora_request=given,
                use_tqdm=False,
            )
            reply(time.perf_counter() - start)
        elif what == "alone":
            reply([answered([i], True)[0] for i in everyone])
        else:
            reply(answered(everyone, what == "adapted"))


# ------------------------------------------------------------------ the comparison


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    adapters = [folder / f"adapter{number}" for number in range(options.adapters)]
    for number, adapter in enumerate(adapters):
        save_adapter(adapter, options.model, options.rank, number)
    job = {name: getattr(options, name) for name in ("model", "batch", "tokens", "rank")}
    plain = EngineProcess(__file__, job | {"adapters": []})
    adapted = EngineProcess(__file__, job | {"adapters": [str(one) for one in adapters]})
    try:
        expected = plain.ask("plain")
        check("without an adapter", expected, adapted.ask("plain"))
        together = adapted.ask("adapted")
        check("in a batch", adapted.ask("alone"), together)
        if any(a["tokens"] == b["tokens"] for a, b in zip(expected, together, strict=True)):
            raise SystemExit("an adapter changes nothing: there is nothing to measure")
        for engine in (plain, adapted):
            engine.ask("time")
        rounds = [(plain.ask("time"), adapted.ask("time")) for _ in range(ROUNDS)]
    finally:
        plain.close()
        adapted.close()
    made = options.batch * options.tokens
    return {
        "plain_tokens_per_s": made / statistics.median(one for one, _ in rounds),
        "adapted_tokens_per_s": made / statistics.median(other for _, other in rounds),
        "ratio": statistics.median(one / other for one, other in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct"))
    parser.add_argument("--batch", type=int, default=8, help="requests at a time")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16, help="one that --max-lora-rank takes")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each request")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(json.loads(options.serve))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.batch} x {options.tokens} tokens, {options.adapters} of rank {options.rank}")
    print(f"  without       {result['plain_tokens_per_s']:8.1f} tokens/s")
    print(f"  with          {result['adapted_tokens_per_s']:8.1f} tokens/s")
    print(f"  ratio         {result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
