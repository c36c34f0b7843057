# SPDX-License-Identifier: Apache-2.0
"""A parity run as one self-contained HTML file with plots of the errors."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from vllm_anvil.cli.parity_report import problems
from vllm_anvil.cli.parity_run import Run
from vllm_anvil.testing.report import OpSummary, by_op, share
from vllm_anvil.testing.result import SHARE_BINS, Result

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .2em .8em; border-bottom: 1px solid #ddd }
td.number { text-align: right } .failed { color: #b00020 } .ok { color: #0a7a2f }
figure { margin: 1em 0 } img { max-width: 100% } li { overflow-wrap: anywhere }
"""


def page(device: str, runs: Sequence[Run]) -> str:
    """The whole document."""
    title = f"Parity of {html.escape(device)}"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>",
        f"<style>{_STYLE}</style><h1>{title}</h1>",
        "<p>Errors against float64, as fractions of what is allowed: above 1 is too far.</p>",
    ]
    for run in runs:
        parts.append(_section(run))
    return "\n".join(parts) + "\n</html>\n"


def _section(run: Run) -> str:
    summaries = by_op(run.results)
    isa = run.ready.get("isa")
    parts = [f"<h2>{html.escape(run.plan.device + (f', {isa}' if isa else ''))}</h2>"]
    found = problems([run])
    if run.interrupted:
        found.append("the run was interrupted")
    parts += [_list(found), _table(run, summaries)]
    for summary in summaries:
        results = [result for result in run.results if result.op == summary.op]
        parts.append(_op(_anchor(run, summary), summary, results))
    return "\n".join(parts)


def _table(run: Run, summaries: Sequence[OpSummary]) -> str:
    peers = sorted({name for summary in summaries for name in summary.peers})
    head = ["Op", "Implementation", "Cases", "Calls", "Worst error"]
    head += [text for peer in peers for text in (f"{peer}'s worst", f"from {peer}'s")] + [""]
    rows = ["".join(f"<th>{html.escape(text)}</th>" for text in head)]
    for summary in summaries:
        numbers = [str(summary.cases), str(summary.calls), share(summary.worst)]
        for peer in peers:
            numbers += [share(summary.peers.get(peer)), share(summary.apart.get(peer))]
        mark = "ok" if summary.passed else "failed"
        implementation = run.ready["implementations"].get(summary.op, "")
        rows.append(
            f"<td><a href='#{_anchor(run, summary)}'>{html.escape(summary.op)}</a></td>"
            f"<td>{html.escape(implementation)}</td>"
            + "".join(f"<td class='number'>{html.escape(number)}</td>" for number in numbers)
            + f"<td class='{mark}'>{mark}</td>"
        )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _op(anchor: str, summary: OpSummary, results: Sequence[Result]) -> str:
    failures = [line for result in summary.failed for line in result.failures()]
    name = html.escape(summary.op)
    return (
        f"<h3 id='{anchor}'>{name}</h3>{_list(failures)}"
        f"<figure><img alt='Errors of {name}' src='{_plot(summary, results)}'></figure>"
    )


def _anchor(run: Run, summary: OpSummary) -> str:
    return html.escape(f"{run.ready.get('isa')}-{summary.op}")


def _list(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<ul class='failed'>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def _plot(summary: OpSummary, results: Sequence[Result]) -> str:
    """How many elements have which error, and the worst error of each case, as a data URL."""
    figure, (elements, cases) = pyplot.subplots(1, 2, figsize=(11, 3.2), layout="constrained")
    edges = [2.0**exponent for exponent in (SHARE_BINS[0] - 1, *SHARE_BINS, SHARE_BINS[-1] + 1)]
    for name, counts in summary.shares.items():
        total = sum(counts)
        if total:
            label = "op" if name == "op" else f"{name}'s kernel"
            elements.stairs([count / total for count in counts], edges, label=label)
    elements.set(xscale="log", yscale="log", xlabel="error / allowed", ylabel="share of elements")
    elements.axvline(1.0, color="tab:red", linestyle=":")
    if elements.get_legend_handles_labels()[0]:
        elements.legend(loc="upper left", fontsize="small")
    names = list(dict.fromkeys(result.case for result in results))
    ceiling = 2.0 ** (SHARE_BINS[-1] + 1)
    for name in summary.shares:
        shown = [r for r in results if r.implementation == name and r.skipped is None]
        heights = [min(r.worst, ceiling) if r.passed or r.worst else ceiling for r in shown]
        places = [names.index(r.case) for r in shown]
        cases.scatter(places, [max(h, edges[0]) for h in heights], s=9, alpha=0.6, label=name)
    cases.axhline(1.0, color="tab:red", linestyle=":")
    cases.set(yscale="log", ylabel="worst error / allowed", xlabel="case", xlim=(-1, len(names)))
    cases.set_ylim(edges[0] / 2, ceiling * 2)
    if len(names) <= 24:
        cases.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="xx-small")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    pyplot.close(figure)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
