# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil profile`: the options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_anvil.cli.bench_e2e import DEMO_MODEL


def profile(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Folder of a model. Default: {DEMO_MODEL}.", show_default=False
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Instead of a model, a shape, as for `vllm-anvil bench e2e`."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16 or float32; auto: the checkpoint's own.")
    ] = "auto",
    scenario: Annotated[
        str,
        typer.Option(
            help="decode-1, decode-8, decode-32, prefill, long-context, "
            "decode:BATCHxPROMPT+TOKENS or prefill:BATCHxPROMPT."
        ),
    ] = "decode-8",
    top: Annotated[int, typer.Option(min=1, help="Ops that are shown.")] = 20,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the engine may take.")
    ] = 1800.0,
    json: Annotated[
        str | None, typer.Option(help='Write all figures to this file; "-": standard output.')
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Write a timeline for chrome://tracing or ui.perfetto.dev."),
    ] = None,
) -> None:
    """Show where a step of the engine goes: ops on the device, phases of the host, idle time.

    Exit status 0 if all was measured, 1 if not, 2 if the request is wrong.
    """
    from vllm_anvil.cli import profile_run

    request = profile_run.ProfileRequest(
        model=model,
        shape=shape,
        dtype=dtype,
        baseline="none",
        scenarios=(scenario,),
        timeout_s=timeout,
        json=json,
        trace=trace,
        top=top,
    )
    raise typer.Exit(profile_run.run(request))
