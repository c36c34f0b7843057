# SPDX-License-Identifier: Apache-2.0
"""Every ANVIL_* environment variable: its type, default, meaning and parser.

This module is the one description of the variables. The package reads them here, `vllm-anvil
doctor` reports them from here, and `docs/reference/environment.md` is this module's output::

    python -m vllm_anvil.envs > docs/reference/environment.md

`envs.ANVIL_DEVICES` and the like read the process's environment at each access, so a change made
with `os.environ` is seen. A variable that is set but blank counts as unset. The device runtime
parses its own variables by the same rules, for programs that do not come through here. Neither
torch nor vllm is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_anvil.env_values import (
    MAX_DEVICES,
    attention_name,
    choice,
    delay,
    device_count,
    device_indices,
    flag,
    host_cores,
    layers,
    memory_size,
    op_names,
    step_range,
)

if TYPE_CHECKING:
    ANVIL_TARGET: str
    ANVIL_STRICT: bool
    ANVIL_AUTOLOAD: bool
    ANVIL_DEVICES: int
    ANVIL_SHARE_CORES: bool
    ANVIL_HOST_CORES: int
    ANVIL_VISIBLE_DEVICES: tuple[int, ...] | None
    ANVIL_DEVICE_MEMORY: int | None
    ANVIL_ISA: str | None
    ANVIL_TRITON_OVERRIDES: bool
    ANVIL_LAYER_FUSION: bool
    ANVIL_PACK_WEIGHTS: bool
    ANVIL_ROUND_INPUTS: str
    ANVIL_ATTENTION_IMPL: str
    ANVIL_RECORD: str | None
    ANVIL_RECORD_LIMIT: int
    ANVIL_RECORD_STEPS: range
    ANVIL_RECORD_LAYERS: tuple[int, ...] | str
    ANVIL_RECORD_OPS: tuple[str, ...] | None
    ANVIL_LAUNCH_BLOCKING: bool
    ANVIL_SANITIZE: bool
    ANVIL_DEBUG_DELAY: int
    ANVIL_DEBUG_POISON: bool

TARGETS = ("auto", "anvil", "cuda", "off")
ROUNDINGS = ("none", "most", "all")
ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")


class EnvError(ValueError):
    """A variable holds a value that cannot be used; the message names it and what is accepted."""


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    `parse` is one of `env_values`, or does what they do.
    """

    name: str
    accepts: str
    default: Any
    default_text: str
    meaning: str
    parse: Callable[[str], Any]

    def read(self, environ: Mapping[str, str]) -> Any:
        """The typed value in `environ`, or the default. Raises EnvError for an unusable value."""
        text = environ.get(self.name, "")
        if not text.strip():
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvError(
                f"{self.name}={text!r}: {error}. "
                f"Correct it or unset it (default: {self.default_text})."
            ) from None


_ALL = (
    Variable(
        "ANVIL_TARGET",
        "auto, anvil, cuda or off",
        "auto",
        "auto",
        "What the platform plugin takes when vLLM asks it. `auto`: the anvil device, except where "
        "a CUDA GPU and a CUDA build of vLLM are both present: there the plugin steps aside and "
        "says how to choose. `anvil`: the anvil device, also beside a GPU. `cuda`: the CUDA "
        "reference path, which is vLLM's CUDA platform with Anvil's attention and with ops by "
        "their plain-torch references (docs/howto/cuda.md); without a GPU or a CUDA build of vLLM "
        "it is an error that says what is missing. "
        "`off`: the plugin steps aside, and the engine behaves as if Anvil were not installed.",
        choice(*TARGETS),
    ),
    Variable(
        "ANVIL_STRICT",
        "0 or 1",
        False,
        "0",
        "With `1`, whatever would be logged as an error while vLLM selects its platform (a "
        "missing or mismatched `_C`, an unsupported vLLM, an unknown `ANVIL_TARGET`, an unusable "
        "variable) ends the process with one message, instead of leaving the engine to another "
        "platform.",
        flag,
    ),
    Variable(
        "ANVIL_AUTOLOAD",
        "0 or 1",
        False,
        "0",
        'With `1`, `import torch` registers the device by itself, so that `torch.device("anvil")` '
        "works in any program. Without it, `import vllm_anvil.device` registers it. It is off by "
        "default since a registered device also becomes what `torch.accelerator` means.",
        flag,
    ),
    Variable(
        "ANVIL_DEVICES",
        f"whole number from 1 to {MAX_DEVICES}",
        1,
        "1",
        "How many devices the host's cores and memory are cut into.",
        device_count,
    ),
    Variable(
        "ANVIL_SHARE_CORES",
        "0 or 1",
        False,
        "0",
        "With `1`, `ANVIL_DEVICES` may be more than the host has cores: each device then has one "
        "core, which it shares with others. For trying out many ranks on a small machine.",
        flag,
    ),
    Variable(
        "ANVIL_HOST_CORES",
        "whole number from 0 to 1024",
        0,
        "0",
        "How many cores belong to no device, for the engine's Python and its HTTP server, which "
        "else take their time from the devices' threads. `vllm-anvil bench e2e` with and without "
        "it tells what is faster on a machine. Of two cores, leaving one makes a step of SmolLM2 "
        "no slower for one request, which is bound by memory, and 1.4 times as long for 8.",
        host_cores,
    ),
    Variable(
        "ANVIL_VISIBLE_DEVICES",
        "device indices separated by commas",
        None,
        "all devices",
        "Which of the `ANVIL_DEVICES` devices this process sees, and in which order: the first "
        "named becomes `anvil:0`. vLLM sets it for its ranks.",
        device_indices,
    ),
    Variable(
        "ANVIL_DEVICE_MEMORY",
        "bytes, or a number with KiB, MiB, GiB or TiB (`8GiB`); at least 2 MiB",
        None,
        "derived from the host",
        "Hard limit of each device's memory. By default it is derived from what the cgroup, the "
        "NUMA nodes and the host leave free, with headroom for the rest of the process.",
        memory_size,
    ),
    Variable(
        "ANVIL_ISA",
        "scalar, avx2, avx512 or avx512_bf16",
        None,
        "the best that the machine runs",
        "Forces the instruction set of the device's kernels. Naming one that the machine cannot "
        "run is an error.",
        choice(*ISAS),
    ),
    Variable(
        "ANVIL_TRITON_OVERRIDES",
        "0 or 1",
        True,
        "1",
        "With `0`, all of vLLM's Triton kernels are compiled and run as they are, also those that "
        "the platform has a faster native implementation of: for comparison and debugging.",
        flag,
    ),
    Variable(
        "ANVIL_PACK_WEIGHTS",
        "0 or 1",
        True,
        "1",
        "With `0`, weights of linear layers stay as they are loaded instead of being packed in the "
        "order in which products read them: for comparison, and for programs that want the memory "
        "of a weight itself.",
        flag,
    ),
    Variable(
        "ANVIL_ROUND_INPUTS",
        "`none`, `most` or `all`",
        "none",
        "none",
        "What of the inputs of packed half-precision weights is rounded to their dtype: `none`; "
        "`most`, where one pair of each four of a bfloat16 model keeps twice as many bits; or "
        "`all`, as other engines do. Prompts and large batches then run at the rate of the "
        "processor's bfloat16 dot products: with `most` in two thirds of the time, with `all` in "
        "half, and farther from float32's results (docs/design/precision.md).",
        choice(*ROUNDINGS),
    ),
    Variable(
        "ANVIL_LAYER_FUSION",
        "0 or 1",
        True,
        "1",
        "With `0`, attention layers call the norms of queries and keys, the rotary embedding and "
        "the write of keys and values one by one, instead of one op for all where a layer allows "
        "it: for comparison and debugging. Results are the same bits either way.",
        flag,
    ),
    Variable(
        "ANVIL_ATTENTION_IMPL",
        "`native`, `reference`, `triton`, module:function, path/to/file.py:function, or the name "
        "of an entry point in the group vllm_anvil.attention_impls",
        "native",
        "native",
        "The attention that the engine serves with. Anything but `reference` is checked against "
        "it, for the geometry of each of the model's layers, before the engine starts "
        "(docs/howto/custom_attention.md).",
        attention_name,
    ),
    Variable(
        "ANVIL_SLEEP_FOLDER",
        "a folder on a disk",
        "/var/tmp",
        "/var/tmp",
        "Where an engine that sleeps at level 1 keeps its weights, in files without names that are "
        "gone when it wakes or ends (docs/howto/sleep_mode.md). One in memory is refused.",
        str.strip,
    ),
    Variable(
        "ANVIL_RECORD",
        "a folder",
        None,
        "unset",
        "Serving steps are recorded there, one file each, to be replayed on any device "
        "(docs/howto/record_and_replay.md). Steps are numbered on from those that are there. "
        "Recording is slow.",
        str.strip,
    ),
    Variable(
        "ANVIL_RECORD_LIMIT",
        "a size, as ANVIL_DEVICE_MEMORY",
        256 << 20,
        "256MiB",
        "What all recorded steps in the folder may take together; at the limit recording ends.",
        memory_size,
    ),
    Variable(
        "ANVIL_RECORD_STEPS",
        "a number, or first-last",
        range(32),
        "32",
        "How many of the engine's steps are recorded from its start, or which, counted from 0.",
        step_range,
    ),
    Variable(
        "ANVIL_RECORD_LAYERS",
        "ends, all, or layer numbers separated by commas",
        "ends",
        "ends",
        "The layers of which calls are recorded; `ends`: the first, the middle and the last. What "
        "runs outside of layers is always recorded.",
        layers,
    ),
    Variable(
        "ANVIL_RECORD_OPS",
        "names separated by commas",
        None,
        "all but those with weights",
        "The ops that are recorded, by their names in torch.ops.anvil, and `paged_attention`. "
        "Those of `linear`, `packed_linear`, `pack_linear`, `unpack_linear` and `packed_embedding` "
        "hold a whole weight.",
        op_names,
    ),
    Variable(
        "ANVIL_COMM",
        "auto or gloo",
        "auto",
        "auto",
        "What carries collectives between ranks. `auto`: memory that the ranks share; gloo for a "
        "group of which some rank runs on another host or in another process namespace. `gloo`: "
        "gloo for every group, for comparison and debugging. Results are the same bits either way.",
        choice("auto", "gloo"),
    ),
    Variable(
        "ANVIL_LAUNCH_BLOCKING",
        "0 or 1",
        False,
        "0",
        "With `1`, every operation on a stream runs on the calling thread before the call returns, "
        "so that an error surfaces at the call that caused it.",
        flag,
    ),
    Variable(
        "ANVIL_SANITIZE",
        "0 or 1",
        False,
        "0",
        "With `1`, the stream sanitizer watches every command and reports memory that is used on "
        "two streams without an order, used after it was freed, pinned memory changed while a copy "
        "from it is queued, and graphs over freed memory, with the call sites. Slow.",
        flag,
    ),
    Variable(
        "ANVIL_DEBUG_DELAY",
        "microseconds, 0 to 1000000",
        0,
        "0",
        "Before each command the device waits a random time of up to this, to bring out code that "
        "relies on a command having run already.",
        delay,
    ),
    Variable(
        "ANVIL_DEBUG_POISON",
        "0 or 1",
        False,
        "0",
        "With `1`, freed memory, and new memory that was not asked to be zero, is filled with 0xFF "
        "bytes (NaN in every floating-point format).",
        flag,
    ),
)

VARIABLES: dict[str, Variable] = {variable.name: variable for variable in _ALL}

# What an engine's ranks on another host do not take over from the first: each host has its own.
OF_A_HOST = ("ANVIL_DEVICES", "ANVIL_VISIBLE_DEVICES", "ANVIL_DEVICE_MEMORY", "ANVIL_ISA")

# Variables of vLLM that decide whether the platform plugin is asked at all.
VLLM_VARIABLES = {
    "VLLM_TARGET_DEVICE": "With `cpu`, vLLM takes its own CPU platform before it asks any plugin.",
    "VLLM_PLUGINS": "Comma-separated allowlist of plugin names, without spaces. When it is set, "
    "`anvil` must be in it. An empty value allows none.",
}


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The typed value of one variable, from `environ` or the process's environment.

    Raises KeyError for a name that is not in VARIABLES, EnvError for an unusable value.
    """
    return VARIABLES[name].read(os.environ if environ is None else environ)


def errors(environ: Mapping[str, str] | None = None) -> list[str]:
    """One message for each variable whose value cannot be used; empty when all is well."""
    environ = os.environ if environ is None else environ
    found = []
    for variable in _ALL:
        try:
            variable.read(environ)
        except EnvError as error:
            found.append(str(error))
    if not found:
        devices = get("ANVIL_DEVICES", environ)
        beyond = [i for i in get("ANVIL_VISIBLE_DEVICES", environ) or () if i >= devices]
        if beyond:
            found.append(
                f"ANVIL_VISIBLE_DEVICES={environ['ANVIL_VISIBLE_DEVICES']!r}: there is no device "
                f"{beyond[0]}, since ANVIL_DEVICES is {devices}. Raise ANVIL_DEVICES or name "
                f"indices below {devices}."
            )
    return found


def validate(environ: Mapping[str, str] | None = None) -> None:
    """Raises EnvError with every message of `errors()` when a variable cannot be used."""
    found = errors(environ)
    if found:
        raise EnvError("\n".join(found))


def unknown(environ: Mapping[str, str] | None = None) -> list[str]:
    """Names in the environment that begin with ANVIL_ and mean nothing, sorted: mostly typing
    errors."""
    environ = os.environ if environ is None else environ
    return sorted(n for n in environ if n.startswith("ANVIL_") and n not in VARIABLES)


def unknown_messages(environ: Mapping[str, str] | None = None) -> list[str]:
    """One message for each name of `unknown()`."""
    return [
        f"Unknown Anvil environment variable detected: {name}. Known ones: {', '.join(VARIABLES)}."
        for name in unknown(environ)
    ]


def markdown() -> str:
    """The reference page, docs/reference/environment.md."""
    lines = [
        "# Environment variables",
        "",
        "<!-- Generated by `python -m vllm_anvil.envs`; edit platform_pkg/vllm_anvil/envs.py. -->",
        "",
        "A variable that is set but blank counts as unset. A value that cannot be used is an error",
        "that names the variable and what it accepts. `vllm-anvil doctor` shows what is set.",
        "",
        "| Variable | Accepts | Default | Meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{v.name}` | {v.accepts} | {v.default_text} | {v.meaning} |" for v in _ALL]
    lines += [
        "",
        "## Variables of vLLM that decide whether the plugin is asked",
        "",
        "| Variable | Meaning |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in VLLM_VARIABLES.items()]
    return "\n".join(lines) + "\n"


def __getattr__(name: str) -> Any:
    if name in VARIABLES:
        return get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    print(markdown(), end="")
