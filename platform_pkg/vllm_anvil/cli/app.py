# SPDX-License-Identifier: Apache-2.0
"""The commands and options of `vllm-anvil`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_anvil import selection
from vllm_anvil.cli import bench, triton
from vllm_anvil.cli import check_invariance as check_invariance_command
from vllm_anvil.cli import doctor as doctor_command
from vllm_anvil.cli import profile as profile_command

app = typer.Typer(
    name="vllm-anvil",
    help="Anvil: the host's cores and memory as an accelerator for vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app)
app.add_typer(triton.app)
app.command()(profile_command.profile)
app.command()(check_invariance_command.check_invariance)


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


@app.command()
def parity(
    device: Annotated[
        str, typer.Option(help="Where to run: anvil, cpu, cuda, or any other device of torch.")
    ] = "anvil",
    isa: Annotated[
        str | None,
        typer.Option(help='Instruction set of the native kernels; "all": each that runs here.'),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Only this op; may be repeated. Default: all.")
    ] = None,
    text: Annotated[
        str, typer.Option("-k", help='Only cases with this text in "namespace::op case".')
    ] = "",
    engine: Annotated[
        bool, typer.Option(help="Run the engine's own CPU kernels beside, where vLLM is installed.")
    ] = True,
    replay: Annotated[
        str | None, typer.Option(help="Run the calls of this recording instead of the tables'.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(help='Write all results to this file; "-": standard output.')
    ] = None,
    html: Annotated[
        str | None, typer.Option(help="Write a page with plots of the errors to this file.")
    ] = None,
) -> None:
    """Compare ops on a device with float64, and with the engine's own kernels.

    Exit status 0 if all passed, 1 if something failed, 2 if the request is wrong.
    """
    from vllm_anvil.cli import parity as parity_command

    request = parity_command.Request(device, isa, tuple(op or ()), text, engine, replay, json, html)
    raise typer.Exit(parity_command.run(request))
