# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of a serving engine: a file format that every machine with torch reads.

A file holds tensors, numbers and strings in plain dicts, written by `torch.save` and read with
`weights_only=True`, so that reading one runs nothing. All tensors are on the CPU.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "vllm-anvil recorded step"
# Raised when a reader of the version before would misread a file.
VERSION = 1
PAGED_ATTENTION = "paged_attention"

# Fields of an AttentionSpec that the op `paged_attention` takes as arguments.
_OPTIONS_OF_SPEC = ("scale", "sliding_window", "logits_soft_cap")


class RecordingError(ValueError):
    """A file is no recording that can be read; the message names it and says why."""


@dataclass(frozen=True)
class RecordedCall:
    """One call of an op.

    Attributes:
        op: its name in torch.ops.anvil.
        arguments: by name, as they were before the call. For `paged_attention` they are the fields
            of `anvil_attention.contract.AttentionCall`, with `spec` as a dict whose dtypes are
            names and without the workspace; `output` holds zeros. Caches and other tables hold
            only those blocks or rows that the call uses, renumbered.
        results: after the call: "result" (or "result0", "result1" of a tuple) for what was
            returned, and the name of each argument that was written to.
        where: the layer that made the call, or "".
    """

    op: str
    arguments: dict[str, Any]
    results: dict[str, Tensor]
    where: str = ""

    def op_arguments(self) -> dict[str, Any]:
        """The arguments under the names of the op's schema: others than `arguments` for
        `paged_attention` only, whose schema takes options one by one."""
        if self.op != PAGED_ATTENTION:
            return dict(self.arguments)
        arguments = dict(self.arguments)
        spec = arguments.pop("spec")
        arguments |= {name: spec[name] for name in _OPTIONS_OF_SPEC}
        if isinstance(arguments["causal"], Tensor):
            arguments |= {"causal": True, "causal_per_request": arguments["causal"]}
        return arguments


@dataclass(frozen=True)
class Recording:
    """One step.

    Attributes:
        meta: what it was recorded from: versions, model, step, device, as strings and numbers.
        calls: in their order.
    """

    meta: dict[str, Any]
    calls: tuple[RecordedCall, ...]

    def to_bytes(self) -> bytes:
        """The contents of a file."""
        stream = io.BytesIO()
        calls = [
            {
                "op": call.op,
                "where": call.where,
                "arguments": {n: _encoded(v) for n, v in call.arguments.items()},
                "results": dict(call.results),
            }
            for call in self.calls
        ]
        # A string of another class, such as torch.__version__, would not be read again.
        meta = {n: str(v) if isinstance(v, str) else v for n, v in self.meta.items()}
        content = {"format": FORMAT, "version": VERSION, "meta": meta, "calls": calls}
        torch.save(content, stream)
        return stream.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file; whoever reads meanwhile sees all of it or none."""
        write_whole(Path(path), self.to_bytes())


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file under another name first. Raises OSError and leaves nothing behind."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Recording:
    """Reads a recorded step. Raises RecordingError when there is none that can be read."""
    if not Path(path).is_file():
        raise RecordingError(f"there is no recording {path}")
    try:
        # torch reads tensors without looking at their checksums.
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip()
        if changed is not None:
            raise zipfile.BadZipFile(f"{changed} has changed since it was written")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecordingError(f"{path} is damaged or no recorded step: {reason}") from error
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise RecordingError(f"{path} is no recorded step: it was written by something else")
    if content.get("version") != VERSION:
        raise RecordingError(
            f"{path} has version {content.get('version')} of the format, and this package reads "
            f"version {VERSION}: record the step anew, or replay it with the package that wrote it"
        )
    try:
        calls = tuple(
            RecordedCall(
                op=call["op"],
                arguments={n: _decoded(v) for n, v in call["arguments"].items()},
                results=dict(call["results"]),
                where=call["where"],
            )
            for call in content["calls"]
        )
        return Recording(dict(content["meta"]), calls)
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"{path} is damaged: {type(error).__name__} at {error} while reading its calls"
        ) from error


# A dtype among the arguments is written as its name behind "torch.", which no other string has.


def _encoded(value: Any) -> Any:
    return str(value) if isinstance(value, torch.dtype) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value
