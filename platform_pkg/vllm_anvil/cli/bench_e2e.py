# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench e2e`: the options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEMO_MODEL = Path("models/SmolLM2-135M-Instruct")


def e2e(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Folder of a model. Default: {DEMO_MODEL}.", show_default=False
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Instead of a model, the shape of one with made-up weights and no tokenizer: "
            "smollm2-135m, smollm2-360m, qwen3-0.6b, llama-3.2-1b, llama-3.2-3b.",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16 or float32; auto: the checkpoint's own.")
    ] = "auto",
    baseline: Annotated[
        str,
        typer.Option(help="What to compare with: in-tree, the engine's own CPU platform, or none."),
    ] = "in-tree",
    baseline_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Python of an environment with the engine alone. Default: .venv-baseline's, "
            "which `make baseline` makes.",
            show_default=False,
        ),
    ] = None,
    baseline_eager: Annotated[
        bool, typer.Option("--baseline-eager", help="The baseline without its compiler.")
    ] = False,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="decode-1, decode-8, decode-32, prefill, long-context, start-up, memory, "
            "decode:BATCHxPROMPT+TOKENS or prefill:BATCHxPROMPT; may be repeated. Default: all "
            "that have names.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each side, in turn.")] = 3,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="With the engine's prefix cache.")
    ] = False,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Measure servers under load instead: latencies at each --rate."
        ),
    ] = False,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Online: requests per second; may be repeated. Default: 1, 2 and 4.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Online: requests at each rate.")] = 50,
    input_tokens: Annotated[int, typer.Option(min=1, help="Online: of each request.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=2, help="Online: of each request.")] = 64,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that one process may take.")
    ] = 1800.0,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    json: Annotated[
        str | None,
        typer.Option(help='Write everything to this file after each run; "-": standard output.'),
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Draw bars and floors (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Serve the same prompts with Anvil and with the engine's own platform, in turn.

    Exit status 0 if all was measured and Anvil gave the same tokens to the same prompts in all of
    its runs, 1 if not, 2 if the request is wrong.
    """
    from vllm_anvil.cli import bench_e2e_run

    request = bench_e2e_run.Request(
        model=model,
        shape=shape,
        dtype=dtype,
        baseline=baseline,
        baseline_python=baseline_python,
        baseline_eager=baseline_eager,
        scenarios=tuple(scenario or ()),
        repeats=repeats,
        prefix_caching=prefix_caching,
        timeout_s=timeout,
        seed=seed,
        json=json,
        plot=plot,
    )
    if online:
        from vllm_anvil.cli import bench_e2e_online

        load = bench_e2e_online.Load(
            tuple(rate or bench_e2e_online.RATES), requests, input_tokens, output_tokens
        )
        raise typer.Exit(bench_e2e_online.run(request, load))
    raise typer.Exit(bench_e2e_run.run(request))
