# SPDX-License-Identifier: Apache-2.0
"""A picture of a comparison: what each side reaches of the floor, and their ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_anvil.bench.comparison import Comparison, Row
from vllm_anvil.bench.scenario import Kind

COLOURS = ("#0072b2", "#d55e00")
ENDINGS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Raises ModuleNotFoundError where no plots can be made, ValueError for a wrong ending."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"--plot {path}: end its name with {', '.join(ENDINGS)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "--plot needs matplotlib: pip install 'vllm-anvil[bench]'"
        ) from None


def draw(comparison: Comparison, model: str, path: Path) -> None:
    """Writes one small chart per scenario: bars of the sides' medians with the range of their
    runs, and the floor as a line."""
    from matplotlib.figure import Figure

    rows = comparison.rows()
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(3.2 * columns, 0.6 + 3.2 * lines), layout="constrained")
    figure.suptitle(f"{model}, {comparison.dtype}")
    for place, row in enumerate(rows, 1):
        _bars(figure.add_subplot(lines, columns, place), row)
    figure.savefig(path, dpi=120)


def _bars(axes: Any, row: Row) -> None:
    factor, unit = _unit(row)
    for place, figures in enumerate(row.figures.values()):
        values = [value * factor for value in figures.values]
        median = figures.median * factor
        reach = [[median - min(values)], [max(values) - median]]
        axes.bar(place, median, 0.7, color=COLOURS[place % len(COLOURS)], yerr=reach, capsize=4)
        axes.text(place, 0, f"{median:.3g}", ha="center", va="bottom", color="white")
    # The floor of each side is that of its own minutes.
    for place, name in enumerate(row.figures):
        if name in row.of_floor:
            floor = row.of_floor[name] * row.figures[name].median * factor
            axes.hlines(floor, place - 0.35, place + 0.35, color="black", linewidth=2)
    ratio = "" if row.ratio is None else f": {row.ratio:.2f}x"
    axes.set_title(f"{row.scenario.name}{ratio}", fontsize="medium")
    axes.set_xticks(range(len(row.figures)), list(row.figures))
    axes.set_ylabel(unit)


def _unit(row: Row) -> tuple[float, str]:
    if row.scenario.kind is Kind.MEMORY:
        return 2**-30, "GiB"
    if row.scenario.kind is Kind.DECODE:
        return 1e3, "ms a step"
    return 1.0, "s"
