# SPDX-License-Identifier: Apache-2.0
"""The commands of `vllm-anvil triton`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

app = typer.Typer(
    name="triton",
    help="The engine's Triton kernels on the device.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def triton() -> None:
    """The engine's Triton kernels on the device."""


@app.command()
def inventory(
    name: Annotated[
        str | None, typer.Argument(help="Only kernels whose name has this in it.")
    ] = None,
    area: Annotated[
        list[str] | None, typer.Option(help="Only kernels of this area; may be repeated.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help='List only kernels in this state, such as "failing"; may be repeated.'),
    ] = None,
    compile_now: Annotated[
        bool,
        typer.Option("--compile", help="Compile the kernels now; otherwise the records tell."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="With --compile: how many to compile at once.")
    ] = len(os.sched_getaffinity(0)),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of the kernels as JSON.")
    ] = False,
) -> None:
    """List the Triton kernels of the installed vLLM, each with what the device makes of it.

    Exit status 0 if every kernel listed compiles, is overridden, or is refused for a known reason;
    1 otherwise.
    """
    from vllm_anvil.cli import triton_inventory

    chosen = triton_inventory.Choice(name or "", tuple(area or ()), tuple(state or ()))
    raise typer.Exit(triton_inventory.run(chosen, processes if compile_now else 0, as_json=as_json))
