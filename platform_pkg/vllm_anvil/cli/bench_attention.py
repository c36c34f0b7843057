# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench attention`: implementations of the attention contract side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from anvil_attention.bench.problem import Problem
    from anvil_attention.bench.suite import LayerOptions

DEFAULT_BATCHES = ("8q1s2k", "q1k", "q512_8q1s1k")
DEFAULT_SHAPE = "smollm2"


def attention(
    batches: Annotated[
        list[str] | None,
        typer.Argument(
            help="Batches, such as q2k (a prefill of 2048 tokens), 8q1s4k (8 decodes on 4096) or "
            f"2q2k_32q1s1k. Default: {' '.join(DEFAULT_BATCHES)}.",
            show_default=False,
        ),
    ] = None,
    impl: Annotated[
        list[str] | None,
        typer.Option(
            help="native, reference, triton, sdpa, engine, an installed entry point, or your own "
            "as module:function or file.py:function; may be repeated. Default: all there are.",
            show_default=False,
        ),
    ] = None,
    model_shape: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Heads and options of a model, such as llama-3-8b; may be repeated. Default: "
            f"{DEFAULT_SHAPE}.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads of a shape by hand.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Its KV heads; default: as heads.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Its head size.")] = None,
    value_head_size: Annotated[
        int | None, typer.Option(help="Its values' head size, where another.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    kv_dtype: Annotated[
        str, typer.Option(help="Of the cache: auto, fp8_e4m3, fp8_e5m2, int8, or a dtype.")
    ] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens of a block of the cache.")] = 32,
    layout: Annotated[
        str,
        typer.Option(
            help="Order of the cache in memory, as the engine names it: LBHNC (heads, then tokens "
            "of a block), LBNHC (tokens, then heads), LHBNC, BLHNC, BLNHC, BHLNC."
        ),
    ] = "LBHNC",
    window: Annotated[
        int | None, typer.Option(help="Sliding window; 0: none. Default: the model's.")
    ] = None,
    soft_cap: Annotated[
        float | None, typer.Option(help="Soft cap of the logits; 0: none. Default: the model's.")
    ] = None,
    sinks: Annotated[bool | None, typer.Option(help="Attention sinks.")] = None,
    alibi: Annotated[bool | None, typer.Option(help="ALiBi slopes.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="anvil, cpu, cuda, or any device of torch. Default: cuda where there is a GPU, "
            "else anvil, else cpu.",
            show_default=False,
        ),
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(help="Problems from a YAML or JSON file.", metavar="FILE")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Attention calls of a recorded step.", metavar="FILE")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="What others are compared with. Default: engine, sdpa, or the first that runs.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 7,
    min_time: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that a measurement takes at least.")
    ] = 50.0,
    pause: Annotated[
        float,
        typer.Option(min=0.0, help="Milliseconds between measurements, for threads to rest."),
    ] = 50.0,
    memory: Annotated[
        float | None,
        typer.Option(min=0.0, help="GiB that inputs may take. Default: a quarter of what is free."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds that your implementation may take for one check."),
    ] = 120.0,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write everything as JSON; - is standard output."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one row per result.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw a roofline and bars (.png, .svg, .pdf)."),
    ] = None,
) -> None:
    """Check and time implementations of paged attention side by side.

    Exit status 0 if all that ran are right, 1 if one failed or nothing could be measured, 2 for
    options that make no sense.
    """
    from anvil_attention.bench import plot
    from anvil_attention.bench.implementations import candidates
    from anvil_attention.bench.suite import LayerOptions
    from vllm_anvil.cli import bench_attention_run

    try:
        target = bench_attention_run.device_of(device)
        options = LayerOptions(
            dtype=dtype,
            kv_dtype=kv_dtype,
            block_size=block_size,
            layout=layout,
            window=window,
            soft_cap=soft_cap,
            sinks=sinks,
            alibi=alibi,
        )
        by_hand = (heads, kv_heads, head_size, value_head_size)
        problems = _problems(
            batches or [], model_shape or [], by_hand, options, suite, replay, target.type
        )
        chosen = candidates(impl or [])
        names = [candidate.name for candidate in chosen]
        if baseline is not None and baseline not in names:
            _wrong(f"--baseline {baseline!r} is not among those measured: {', '.join(names)}")
        if plot_file is not None:
            plot.require_matplotlib()
    except (ValueError, ModuleNotFoundError) as error:
        _wrong(str(error))
    outputs = bench_attention_run.Outputs(json_file, csv_file, plot_file)
    settings: dict[str, Any] = {
        "repeats": repeats,
        "min_time_s": min_time / 1e3,
        "pause_s": pause / 1e3,
        "timeout_s": timeout,
        "baseline": baseline,
        "seed": seed,
    }
    gigabytes = None if memory is None else int(memory * 2**30)
    raise typer.Exit(
        bench_attention_run.run(problems, chosen, target, settings, gigabytes, outputs)
    )


def _problems(
    batches: list[str],
    shapes: list[str],
    by_hand: tuple[int | None, int | None, int | None, int | None],
    options: LayerOptions,
    suite: Path | None,
    replay: Path | None,
    device: str,
) -> list[Problem]:
    """What the options ask for. Raises ValueError for what cannot be."""
    from anvil_attention.bench.model_shapes import ModelShape, model_shape
    from anvil_attention.bench.suite import suite_problems

    found: list[Problem] = []
    if replay is not None:
        from anvil_attention.bench.replay import recorded_problems

        found += recorded_problems(replay, device)
    if suite is not None:
        found += suite_problems(suite, options, device)
    heads, kv_heads, head_size, value_head_size = by_hand
    layers = [model_shape(name) for name in shapes]
    if heads is not None or head_size is not None:
        if heads is None or head_size is None:
            raise ValueError("a shape by hand needs both --heads and --head-size")
        kv_heads = heads if kv_heads is None else kv_heads
        name = f"{heads}x{head_size}" if kv_heads == heads else f"{heads}/{kv_heads}x{head_size}"
        layers.append(ModelShape(name, heads, kv_heads, head_size, value_head_size))
    elif kv_heads is not None or value_head_size is not None:
        raise ValueError("--kv-heads and --value-head-size go with --heads and --head-size")
    if found and not batches and not layers:
        return found
    for shape in layers or [model_shape(DEFAULT_SHAPE)]:
        found += [options.problem(shape, b, device) for b in batches or DEFAULT_BATCHES]
    return found


def _wrong(message: str) -> NoReturn:
    raise typer.BadParameter(message)
