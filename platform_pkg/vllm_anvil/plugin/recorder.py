# SPDX-License-Identifier: Apache-2.0
"""Records steps of the engine: calls of ops and of the attention, with their data, into files.

`ANVIL_RECORD` turns it on; docs/howto/record_and_replay.md is for users. Around a step the recorder
is a dispatch mode, which sees every call of torch.ops.anvil, and the observer of the attention
backend. Outside of the steps to record it is neither.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle
from vllm.logger import init_logger

from vllm_anvil.plugin import attention
from vllm_anvil.testing.compaction import Compacted, compact
from vllm_anvil.testing.recording import PAGED_ATTENTION, RecordedCall, Recording, write_whole

logger = init_logger("vllm.plugins.anvil.recorder")


class Recorder:
    """Records the steps of one worker.

    Args:
        folder: of the files. Steps are numbered on from those that are there, and count towards
            `limit` with them.
        limit: bytes that all recorded steps in the folder may take.
        steps: which of the worker's steps, counted from 0.
        ops: names of ops.
        meta: what every file says about where it comes from.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit: int,
        steps: range,
        ops: frozenset[str],
        meta: Mapping[str, Any],
    ) -> None:
        self._folder, self._limit, self._steps, self._ops = folder, limit, steps, ops
        self._meta = dict(meta)
        self._mode = _SeeOps(self)
        self._step = -1  # the engine's current one
        self._step_meta: dict[str, int] = {}
        self._calls: list[RecordedCall] = []
        self._bytes = 0  # of the calls
        self._where = ""
        self._wanted = True  # whether the layer that runs is to be recorded
        self._stopped = False
        self._hooks: list[RemovableHandle] = []
        present = sorted(folder.glob("step-*.pt"))
        self._used = sum(path.stat().st_size for path in present)
        numbers = [int(m[1]) for p in present if (m := re.fullmatch(r"step-([0-9]+)", p.stem))]
        self._number = max(numbers, default=-1) + 1

    # ------------------------------------------------------------------ what the worker calls

    def watch_layers(self, model: torch.nn.Module, layers: Mapping[str, bool]) -> None:
        """Leaves out what runs inside of some layers; what runs outside of all is recorded.

        Args:
            layers: name of each layer's module in `model` -> whether it is to be recorded.
        """
        for name, module in model.named_modules():
            if name in layers:
                self._hooks += [
                    module.register_forward_pre_hook(self._entering(name, layers[name])),
                    module.register_forward_hook(self._leaving),
                ]

    @contextmanager
    def step(self, **meta: int) -> Iterator[None]:
        """A step's forward pass. What is recorded is written when the step ends.

        Args:
            meta: what the file says about the step besides its number.
        """
        self.end_step()
        self._step += 1
        self._step_meta = {"step": self._step, **meta}
        self._where, self._wanted = "", True
        if self._step >= self._steps.stop and not self._stopped:
            self._stop(f"{len(self._steps)} steps were recorded (ANVIL_RECORD_STEPS)")
        with self.part_of_step():
            yield

    @contextmanager
    def part_of_step(self) -> Iterator[None]:
        """More of the current step, such as its sampling."""
        if self._stopped or self._step not in self._steps:
            yield
            return
        attention.set_observer(self._see_attention)
        try:
            with self._mode:
                yield
        finally:
            attention.set_observer(None)

    def end_step(self) -> None:
        """Writes the current step, if something of it was recorded."""
        calls, self._calls, self._bytes = self._calls, [], 0
        if not calls:
            return
        content = Recording(self._meta | self._step_meta, tuple(calls)).to_bytes()
        if self._used + len(content) > self._limit:
            self._stop_at_limit()
            return
        path = self._folder / f"step-{self._number:06d}.pt"
        try:
            write_whole(path, content)
        except OSError as error:
            self._stop(f"{path} could not be written: {error.strerror or error}")
            return
        self._used += len(content)
        self._number += 1

    # ------------------------------------------------------------------ what is recorded

    def call_op(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs an op, and records the call where it is to be."""
        schema = function._schema  # type: ignore[attr-defined]  # an OpOverload
        name = schema.name.removeprefix("anvil::")
        if not self._wanted or self._stopped or name not in self._ops - {PAGED_ATTENTION}:
            return function(*args, **kwargs)
        given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        before = self._compacted(name, given)
        returned = function(*args, **kwargs)
        if before is not None:
            written = [
                a.name
                for a in schema.arguments
                if a.alias_info is not None and a.alias_info.is_write
            ]
            self._add(name, self._where, before, _results(returned, given, written))
        return returned

    def _see_attention(self, layer: str, call: Any) -> Callable[[], None] | None:
        if not self._wanted or self._stopped or PAGED_ATTENTION not in self._ops:
            return None
        given = {f.name: getattr(call, f.name) for f in dataclasses.fields(call)}
        before = self._compacted(PAGED_ATTENTION, given | {"spec": _plain(call.spec)})
        if before is None:
            return None
        return lambda: self._add(PAGED_ATTENTION, layer, before, {"output": call.output})

    def _compacted(self, name: str, given: dict[str, Any]) -> Compacted | None:
        try:
            return compact(name, given)
        except Exception as error:
            # What the op itself will say about such arguments is for the engine to hear.
            logger.warning_once(
                "ANVIL_RECORD: a call of %s cannot be recorded: %s: %s",
                name,
                type(error).__name__,
                error,
            )
            return None

    def _add(self, name: str, where: str, before: Compacted, results: Mapping[str, Tensor]) -> None:
        after = before.results(results)
        size = sum(
            _OVERHEAD + value.nbytes
            for value in (*before.arguments.values(), *after.values())
            if isinstance(value, Tensor)
        )
        if self._used + self._bytes + size > self._limit:
            self._stop_at_limit()
            return
        self._bytes += size
        self._calls.append(RecordedCall(name, before.arguments, after, where))

    # ------------------------------------------------------------------ layers, and the end

    def _entering(self, name: str, wanted: bool) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            self._where, self._wanted = name, wanted

        return hook

    def _leaving(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._where, self._wanted = "", True

    def _stop_at_limit(self) -> None:
        self._stop(f"the limit of {self._limit} bytes is reached (ANVIL_RECORD_LIMIT)")

    def _stop(self, reason: str) -> None:
        if not self._stopped:
            self._stopped = True
            for hook in self._hooks:
                hook.remove()
            logger.info("ANVIL_RECORD=%s: recording ends: %s", self._folder, reason)


# What a file holds for a tensor besides its data, at most.
_OVERHEAD = 1024


class _SeeOps(TorchDispatchMode):
    """Hands the calls of torch.ops.anvil to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace != "anvil":
            return func(*args, **(kwargs or {}))
        return self._recorder.call_op(func, args, kwargs or {})


def _results(returned: Any, given: Mapping[str, Any], written: list[str]) -> dict[str, Tensor]:
    """Results under the names that vllm_anvil.testing.op_case gives them."""
    results: dict[str, Tensor] = {}
    if isinstance(returned, Tensor):
        results["result"] = returned
    elif returned is not None:
        results |= {f"result{i}": value for i, value in enumerate(returned)}
    return results | {name: given[name] for name in written if isinstance(given[name], Tensor)}


def _plain(spec: Any) -> dict[str, Any]:
    """A dataclass as a dict, with names for dtypes."""
    return {
        name: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        for name, value in dataclasses.asdict(spec).items()
    }
