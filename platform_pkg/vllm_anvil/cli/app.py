# SPDX-License-Identifier: Apache-2.0
"""The commands and options of `vllm-anvil`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_anvil import selection
from vllm_anvil.cli import doctor as doctor_command
from vllm_anvil.cli import triton

app = typer.Typer(
    name="vllm-anvil",
    help="Anvil: the host's cores and memory as an accelerator for vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(triton.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vllm-anvil {selection.version_of('vllm-anvil') or '(not installed)'}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Anvil: the host's cores and memory as an accelerator for vLLM."""


@app.command()
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that each probe of the engine may take.")
    ] = doctor_command.PROBE_TIMEOUT_S,
) -> None:
    """Explain which platform vLLM chooses here, and why.

    Exit status 0 if vLLM uses Anvil, 1 if it does not.
    """
    raise typer.Exit(doctor_command.run(as_json=as_json, timeout_s=timeout))
