# SPDX-License-Identifier: Apache-2.0
"""Doctor's report for people: a verdict in plain sentences, then tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.cli.doctor import Report


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report to `console`, by default standard output."""
    console = console or Console(highlight=False)
    _verdict(report, console)
    console.print(_versions(report))
    console.print(_devices(report))
    if report.host_cores is not None:
        console.print(f"{_placement(report.host_cores)}\n")
    if report.isa is not None:
        console.print(
            f"Instruction set: [bold]{escape(str(report.isa['active']))}[/]; this machine runs "
            f"{escape(', '.join(report.isa['supported']))}. ANVIL_ISA forces one.\n"
        )
    if report.engine:
        console.print(_engine(report))
    _ray(report, console)
    console.print(_plugins(report))
    if report.endpoints:
        console.print(_endpoints(report))
    console.print(_environment(report))
    for problem in report.problems:
        console.print(f"[yellow]![/] {escape(problem)}", soft_wrap=True)


def _verdict(report: Report, console: Console) -> None:
    if report.uses_anvil:
        if report.engine.get("device_type") == "cuda":
            where = "the CUDA reference path"
        else:
            where = f"device {report.devices[0]['device'] if report.devices else 'anvil'}"
        console.print(f"[green]vLLM uses Anvil here[/] ({where}).")
    elif report.resolved is not None:
        console.print(
            "[red]vLLM does not use Anvil here[/]: it chooses the platform "
            f"{escape(report.resolved)}."
        )
    else:
        console.print("[red]vLLM does not use Anvil here[/]: it does not get a platform at all.")
    console.print(f"Why: {escape(report.explanation)}", soft_wrap=True)
    if report.remedy:
        console.print(f"What to do: {escape(report.remedy)}", soft_wrap=True)
    if not report.agree:
        expected = report.predicted + ("" if report.prediction_certain else ", not for certain")
        console.print(
            f"From the facts below, {escape(expected)} was expected; vLLM gave "
            f"{escape(report.resolved or 'an error')}.",
            soft_wrap=True,
        )
        if report.resolve_error is not None and report.resolve_error not in report.explanation:
            console.print(f"vLLM said: {escape(report.resolve_error)}", soft_wrap=True)
    console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _versions(report: Report) -> Table:
    table = _table("Versions", "Package", "Installed", "Supported", "")
    for row in report.versions:
        mark = "[green]ok[/]" if row.ok else "[red]not supported[/]"
        table.add_row(
            row.name,
            escape(row.installed or "not installed"),
            row.supported or "-",
            mark if row.installed is not None else "[red]missing[/]",
        )
    return table


def _placement(host_cores: int) -> str:
    if host_cores == 0:
        return "The engine's Python runs on the devices' cores. ANVIL_HOST_CORES leaves it its own."
    cores = "1 core is" if host_cores == 1 else f"{host_cores} cores are"
    return f"{cores} left to the engine's Python by ANVIL_HOST_CORES."


def _devices(report: Report) -> Table | str:
    if not report.devices:
        return f"[bold]Devices[/]: none: {escape(report.device_error or 'none found')}\n"
    table = _table("Devices", "Device", "Name", "Cores", "NUMA node", "Memory", "Free")
    for device in report.devices:
        node = device["numa_node"]
        table.add_row(
            device["device"],
            escape(device["name"]),
            f"{len(device['cores'])} ({ranges(device['cores'])})",
            "all" if node < 0 else str(node),
            f"{device['total_memory'] / 2**30:.1f} GiB",
            f"{device['free_memory'] / 2**30:.1f} GiB",
        )
    return table


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5", the way the kernel writes sets of CPUs."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _engine(report: Report) -> Table:
    table = _table("What vLLM runs here", "Part", "Choice")
    parts = ["class", "device_name", "worker", "model_runner", "attention_backend"]
    # Only Anvil's own backend has a choice of implementations.
    if "attention_implementation" in {
        *(name for name, value in report.engine.items() if value is not None),
        *report.engine.get("errors", {}),
    }:
        parts.append("attention_implementation")
    for part in parts:
        value = report.engine.get(part)
        label = "platform" if part == "class" else part.replace("_", " ")
        table.add_row(label, escape(str(value)) if value else "[red]unknown[/]")
    table.add_row("communicator", escape(str(report.engine.get("communicator") or "none")))
    return table


def _ray(report: Report, console: Console) -> None:
    """How several hosts serve together, which the option for it does not tell."""
    if not report.ray["commands"]:
        return
    if report.ray["version"] is None:
        console.print("[bold]Ray[/]: not installed; 'vllm-anvil\\[ray]' brings it.\n")
        return
    console.print(
        f"[bold]Ray[/] {report.ray['version']}, for --distributed-executor-backend ray, is started "
        "on this host with"
    )
    for where, command in report.ray["commands"].items():
        console.print(f"  {where}: {escape(command)}", soft_wrap=True)
    console.print()


def _plugins(report: Report) -> Table | str:
    if not report.plugins:
        return "[bold]Platform plugins[/]: none is installed.\n"
    table = _table("Platform plugins that vLLM can ask", "Name", "Distribution", "Object", "Asked")
    for plugin in report.plugins:
        asked = f"no ({plugin['skipped_by']})" if plugin["skipped_by"] else "yes"
        row = (plugin["name"], plugin["distribution"], plugin["value"], asked)
        table.add_row(*map(escape, row))
    return table


def _endpoints(report: Report) -> Table:
    table = _table("Endpoint plugins", "Name", "Distribution", "Object", "Its routes")
    for plugin in report.endpoints:
        opened = "opened" if plugin["loaded"] else f"by VLLM_PLUGINS=anvil,{plugin['name']}"
        row = (plugin["name"], plugin["distribution"], plugin["value"], opened)
        table.add_row(*map(escape, row))
    return table


def _environment(report: Report) -> Table:
    table = _table("Environment", "Variable", "Value", "Default")
    for setting in report.environment:
        if setting.value is None:
            value = "[dim]not set[/]"
        else:
            value = escape(repr(setting.value) if setting.value == "" else setting.value)
            if setting.error is not None:
                value = f"[red]{value}[/]"
        table.add_row(setting.name, value, setting.default)
    return table
