# SPDX-License-Identifier: Apache-2.0
"""The commands of `vllm-anvil bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_anvil.cli import bench_attention, bench_comm, bench_e2e

app = typer.Typer(
    name="bench",
    help="Time ops, attention, collectives and the whole engine, beside what else can do the same.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def bench() -> None:
    """Time ops, attention, collectives and the whole engine, beside what else can do the same."""


@app.command()
def ops(
    device: Annotated[
        str, typer.Option(help="Where to run: anvil, cpu, cuda, or any other device of torch.")
    ] = "anvil",
    op: Annotated[
        list[str] | None, typer.Option(help="Only this op; may be repeated. Default: all.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="How long to time each implementation of a case.")
    ] = 0.3,
    json: Annotated[
        str | None, typer.Option(help='Write all figures to this file; "-": standard output.')
    ] = None,
) -> None:
    """Time ops on realistic sizes, each checked before it is timed.

    Exit status 0 if all results were right, 1 if not, 2 if the request is wrong.
    """
    from vllm_anvil.cli import bench_ops

    request = bench_ops.Request(device, tuple(op or ()), seconds, json)
    raise typer.Exit(bench_ops.run(request))


app.command()(bench_attention.attention)
app.command()(bench_e2e.e2e)
app.command()(bench_comm.comm)
