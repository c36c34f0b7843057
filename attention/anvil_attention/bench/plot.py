# SPDX-License-Identifier: Apache-2.0
"""A picture of a run: the roofline, and the fraction of the ceiling as bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .results import ProblemResult, Results

MOST_BARS = 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")


def require_matplotlib() -> None:
    """Raises ModuleNotFoundError, with the remedy, where plots cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "--plot needs matplotlib: pip install 'vllm-anvil[bench]'"
        ) from None


def plot(results: Results, path: Path) -> None:
    """Writes the picture, in the format of the file's ending.

    Raises ValueError where nothing was timed, or for an ending that matplotlib does not know.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    timed = [p for p in results.problems if any(m.sample for m in p.measured)]
    if not timed:
        raise ValueError(f"{path} was not written: nothing was timed")
    names = [n for n in results.names if any(_sample(p, n) is not None for p in timed)]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = 4.5 + 0.28 * min(len(timed), MOST_BARS) * len(names) / 2
    figure = Figure(figsize=(11, height), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(4, max(2.0, height - 4.5)))
    figure.suptitle(f"Attention on {results.machine['device']} ({results.machine['name']})")
    _roofline(above, timed, names, colours)
    _bars(below, timed[:MOST_BARS], names, colours)
    figure.savefig(path, dpi=120)


def _sample(result: ProblemResult, name: str) -> float | None:
    """Median seconds."""
    return next((m.sample.median for m in result.measured if m.name == name and m.sample), None)


def _roofline(
    axes: Any, timed: list[ProblemResult], names: list[str], colours: dict[str, str]
) -> None:
    """Operations per second over operations per byte; ceilings are the best that were seen."""
    bandwidth = max(p.bytes_per_second for p in timed)
    peak = max(p.operations_per_second for p in timed)
    intensities = [p.cost.operations / p.cost.moved_bytes for p in timed]
    ridge = peak / bandwidth
    ends = (min(*intensities, ridge) / 2, max(*intensities, ridge) * 2)
    axes.plot(
        [ends[0], ridge, ends[1]],
        [ends[0] * bandwidth / 1e9, peak / 1e9, peak / 1e9],
        color="black",
        linewidth=1.5,
        label=f"ceilings: {bandwidth / 1e9:.0f} GB/s, {peak / 1e9:.0f} GFLOP/s",
    )
    for name in names:
        points = [
            (intensity, result.cost.operations / seconds / 1e9)
            for result, intensity in zip(timed, intensities, strict=True)
            if (seconds := _sample(result, name)) is not None
        ]
        axes.scatter(*zip(*points, strict=True), s=28, color=colours[name], label=name, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte moved", ylabel="GFLOP/s")
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize="small")


def _bars(axes: Any, timed: list[ProblemResult], names: list[str], colours: dict[str, str]) -> None:
    thickness = 0.8 / len(names)
    for index, name in enumerate(names):
        places, lengths = [], []
        for row, result in enumerate(timed):
            seconds = _sample(result, name)
            if seconds is not None:
                places.append(row + (index - (len(names) - 1) / 2) * thickness)
                lengths.append(100 * result.ideal_seconds / seconds)
        axes.barh(places, lengths, thickness, color=colours[name], label=name)
    axes.set_yticks(range(len(timed)), [p.problem.label for p in timed], fontsize="small")
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=1)
    axes.set(xlabel="percent of the binding ceiling")
    axes.grid(True, axis="x", linewidth=0.3)
