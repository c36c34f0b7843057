# SPDX-License-Identifier: Apache-2.0
"""Runs `vllm-anvil check-invariance`: engines one after the other, a table, the op to blame."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.bench import side
from vllm_anvil.bench.invariance import BLOCK, WAYS, Check, Found, Outcome, Way
from vllm_anvil.bench.invariance_requests import draw_targets
from vllm_anvil.bench.served_model import ServedModel
from vllm_anvil.cli.bench_e2e_run import Request, reporting, telling
from vllm_anvil.cli.output_file import write

LONGEST_PROMPT = 200


@dataclass(frozen=True)
class InvarianceRequest(Request):
    """What the command line asks for."""

    mode: bool = True
    ways: tuple[str, ...] = ()
    combinations: int = 16
    largest: int = 64
    tokens: int = 16
    kv_cache_dtype: str = "auto"
    bisect: bool = True

    def chosen_ways(self, devices: int) -> tuple[str, ...]:
        """Raises ValueError for a name that there is not, and for devices that there are not."""
        for name in self.ways:
            if name not in WAYS:
                raise ValueError(f"--way {name}: there are {', '.join(WAYS)}")
        if "tensor-parallel" in self.ways and devices < 2:
            raise ValueError(
                "--way tensor-parallel needs two devices, and there is one: set ANVIL_DEVICES=2 "
                "(and ANVIL_SHARE_CORES=1 where there is one core)"
            )
        return self.ways or WAYS


def run(request: InvarianceRequest) -> int:
    """Checks and reports; returns the exit status."""
    return reporting(request, lambda _, console, folder: _run(request, console, folder))


def _run(request: InvarianceRequest, console: Console, folder: Path) -> int:
    import vllm_anvil.device as anvil

    devices = anvil.device_count()
    names = request.chosen_ways(devices)
    model = request.served_model(folder)
    dtype = model.dtype(request.dtype)
    request.check_dtype(dtype)
    check = _check(request, model, dtype, folder)
    outcomes: list[Outcome] = []
    references: dict[bool, list[dict[str, Any]]] = {}
    traced: dict[str, Any] | None = None
    with telling(console) as tell:
        for way in check.ways(names, request.combinations, devices):
            # Requests alone are the first engine's, with graphs; several ranks have their own.
            own = way.own_reference
            if own not in references and way.name not in ("graphs", "chunks") and not own:
                references[own], _ = check.serve(Way("graphs", {}, ()), None, tell)
            references[own], outcome = check.serve(way, references.get(own), tell)
            outcomes.append(outcome)
            if outcome.differing and request.bisect and traced is None:
                shown = _smallest(outcome.differing)
                traced = {**dataclasses.asdict(shown), **check.trace(way, shown, tell)}
    _show(request, model.name, dtype, outcomes, traced, console)
    if request.json is not None:
        write(request.json, json.dumps(_document(request, model, dtype, outcomes, traced)) + "\n")
    return 1 if any(outcome.differing for outcome in outcomes) else 0


def _check(request: InvarianceRequest, model: ServedModel, dtype: str, folder: Path) -> Check:
    positions = model.config.get("max_position_embeddings", LONGEST_PROMPT + request.tokens + 1)
    longest = min(LONGEST_PROMPT, positions - request.tokens - 1)
    if longest < 1:
        raise ValueError(f"{model.name} has {positions} positions: ask for fewer --tokens")
    length = longest + request.tokens + 1
    anvil = side.anvil()
    environment = {
        **anvil.environment,
        # The engine's core beside the program that drives it, which looks into it.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_BATCH_INVARIANT": str(int(request.mode)),
    }
    seed = str(request.seed)
    return Check(
        folder=folder,
        side=dataclasses.replace(anvil, environment=environment),
        engine={
            "model": str(model.folder),
            "dtype": dtype,
            "kv_cache_dtype": request.kv_cache_dtype,
            "max_model_len": length,
            "max_num_seqs": request.largest,
            "max_num_batched_tokens": max(512, request.largest, length),
            "block_size": BLOCK,
            "num_gpu_blocks_override": request.largest * -(-length // BLOCK) + 1,
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "seed": 0,
        },
        targets=draw_targets(seed, model.vocabulary, longest, request.tokens),
        vocabulary=model.vocabulary,
        longest=longest,
        tokens=request.tokens,
        largest=request.largest,
        timeout_s=request.timeout_s,
        seed=seed,
    )


def _smallest(differing: list[Found]) -> Found:
    """The one that is quickest to look into."""
    return min(differing, key=lambda one: (one.size, one.token is None, one.token or 0))


def _show(
    request: InvarianceRequest,
    model: str,
    dtype: str,
    outcomes: list[Outcome],
    traced: dict[str, Any] | None,
    console: Console,
) -> None:
    setting = f"VLLM_BATCH_INVARIANT={int(request.mode)}"
    console.print(f"[bold]{escape(model)}, {dtype}, {setting}[/]", soft_wrap=True)
    table = Table()
    table.add_column("Way")
    for title in ("Batches", "Compared", "Differ", "Other tokens", "Pre-empted", "Cached tokens"):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        differing = len(outcome.differing)
        table.add_row(
            outcome.way.name,
            str(len(outcome.way.batches)),
            str(outcome.compared),
            f"[red]{differing}[/]" if differing else "0",
            str(sum(one.tokens_differ for one in outcome.differing)),
            str(outcome.pre_emptions),
            str(outcome.cached),
        )
    console.print(table)
    if not any(outcome.differing for outcome in outcomes):
        compared = sum(outcome.compared for outcome in outcomes)
        console.print(f"[green]ok[/] no bit of {compared} requests differs", soft_wrap=True)
    elif traced is not None:
        console.print(f"[red]x[/] {escape(_blame(traced))}", soft_wrap=True)


def _blame(traced: dict[str, Any]) -> str:
    who = f"request {traced['target']} in a batch of {traced['size']} ({traced['way']})"
    found = traced["difference"]
    if found is None and traced["reproduced"]:
        return (
            f"{who}: every op of the model's forward pass gives the same bits, so that the "
            "difference comes from sampling or from a logits processor"
        )
    if found is None:
        return (
            f"{who} is the same op by op on one device: the difference comes from the way in "
            "which it is served"
        )
    text = (
        f"{who}: the first difference is the result of {found['op']} in {found['module']}, for "
        f"the token at position {found['position']}"
    )
    if found["other"] is not None:
        text += f"; in the batch {found['other']} ran in its place"
    return text


def _document(
    request: InvarianceRequest,
    model: ServedModel,
    dtype: str,
    outcomes: list[Outcome],
    traced: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "model": model.name,
        "dtype": dtype,
        "mode": request.mode,
        "ways": [
            {
                "way": outcome.way.name,
                "batches": len(outcome.way.batches),
                "compared": outcome.compared,
                "pre_emptions": outcome.pre_emptions,
                "cached": outcome.cached,
                "differing": [dataclasses.asdict(one) for one in outcome.differing],
            }
            for outcome in outcomes
        ],
        "first": traced,
    }
