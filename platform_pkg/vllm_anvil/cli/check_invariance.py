# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil check-invariance`: the options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_anvil.cli.bench_e2e import DEMO_MODEL


def check_invariance(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Folder of a model. Default: {DEMO_MODEL}.", show_default=False
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16 or float32; auto: the checkpoint's own.")
    ] = "auto",
    mode: Annotated[
        bool,
        typer.Option(
            help="Serve with VLLM_BATCH_INVARIANT=1; --no-mode shows what breaks without."
        ),
    ] = True,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this way of serving; may be repeated: graphs, chunks, eager, "
            "prefix-caching, pre-emption, tensor-parallel. Default: all that the devices allow."
        ),
    ] = None,
    combinations: Annotated[
        int, typer.Option(min=2, help="Batches that requests meet in; other ways get a quarter.")
    ] = 16,
    largest: Annotated[int, typer.Option(min=2, max=256, help="Requests of a batch.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of a request, at most.")] = 16,
    kv_cache_dtype: Annotated[str, typer.Option(help="As the engine's option.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of prompts, parameters and batches.")] = 0,
    bisect: Annotated[
        bool, typer.Option(help="Where a result differs, look for the first op that does.")
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds that an engine may take for its start or one batch."),
    ] = 600.0,
    json: Annotated[
        str | None, typer.Option(help='Write all findings to this file; "-": standard output.')
    ] = None,
) -> None:
    """Ask the same requests alone and among others, and compare tokens and log-probabilities bit
    for bit.

    Exit status 0 if no bit differs, 1 if one does or an engine failed, 2 if the request is wrong.
    """
    from vllm_anvil.cli import check_invariance_run

    request = check_invariance_run.InvarianceRequest(
        model=model,
        dtype=dtype,
        timeout_s=timeout,
        seed=seed,
        json=json,
        mode=mode,
        ways=tuple(way or ()),
        combinations=combinations,
        largest=largest,
        tokens=tokens,
        kv_cache_dtype=kv_cache_dtype,
        bisect=bisect,
    )
    raise typer.Exit(check_invariance_run.run(request))
