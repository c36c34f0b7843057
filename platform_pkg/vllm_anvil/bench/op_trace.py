# SPDX-License-Identifier: Apache-2.0
"""What each op of a model gave for each token of one request: to find the first that differs.

Around a step it is a dispatch mode, and the observer of the attention; modules say by hooks which
of them runs. Steps must run op by op. Rows of tokens are told from others by their number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anvil_attention.observers import set_observer

# Of its results nothing is known before something is written to them.
UNWRITTEN = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


@dataclass(frozen=True)
class Seen:
    """One op's result for one token.

    Attributes:
        module: name of the innermost module that ran; "" outside of the model.
        op: "anvil::packed_linear".
        digest: of the row's bits.
    """

    module: str
    op: str
    digest: bytes


@dataclass
class Difference:
    """The first op whose result for a token is not the same.

    Attributes:
        position: of the token in its request.
        op, module: as in `Seen`.
        other: the op in its place in the other run, where that is another one.
    """

    position: int
    module: str
    op: str
    other: str | None = None


@dataclass
class Pass:
    """What was seen of one step: an op's rows, one digest each."""

    calls: list[tuple[str, str, list[bytes]]] = field(default_factory=list)


class OpTrace(TorchDispatchMode):
    """Sees the steps of one worker in this process.

    Args:
        runner: Model Runner V2, with its model loaded.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner
        self._modules: list[str] = []
        self._within = False  # an attention, which is one op
        self._now: Pass | None = None
        self._rows = 0
        self.tokens: dict[str, dict[int, list[list[Seen]]]] = {}  # request -> position -> passes
        for name, module in runner.get_model().named_modules():
            module.register_forward_pre_hook(self._entering(name))
            module.register_forward_hook(self._leaving)

    @contextmanager
    def watching(self, worker: Any) -> Iterator[None]:
        """Watches the worker's steps meanwhile."""
        run = worker.execute_model

        def execute_model(scheduled: Any) -> Any:
            self._rows = scheduled.total_num_scheduled_tokens
            if not self._rows:
                return run(scheduled)
            self._now = Pass()
            set_observer(self._see_attention)
            try:
                with self:
                    output = run(scheduled)
            finally:
                set_observer(None)
            self._keep(self._runner.execute_model_state.input_batch)
            return output

        worker.execute_model = execute_model
        try:
            yield
        finally:
            worker.execute_model = run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        if not self._within and self._modules and name not in UNWRITTEN and not func.is_view:
            self._see(name, [result, *_written(func, args, kwargs)])
        return result

    def _see(self, op: str, results: list[Any]) -> None:
        rows = [b""] * self._rows
        found = False
        for result in _tensors(results):
            if result.dim() and result.shape[0] == self._rows and result.device.type != "cpu":
                found = True
                flat = result.detach().cpu().contiguous().view(torch.uint8).reshape(self._rows, -1)
                for number, row in enumerate(flat.numpy()):
                    rows[number] += row.tobytes()
        if found and self._now is not None:
            digests = [blake2b(row, digest_size=8).digest() for row in rows]
            self._now.calls.append((self._modules[-1], op, digests))

    def _see_attention(self, layer: str, call: Any) -> Callable[[], None]:
        self._within = True

        def written() -> None:
            self._within = False
            modules, self._modules = self._modules, [layer]
            self._see("paged_attention", [call.output])
            self._modules = modules

        return written

    def _keep(self, batch: Any) -> None:
        """Gives the step's rows to the requests and positions that they are of."""
        assert self._now is not None
        starts = batch.query_start_loc_np
        for number, request in enumerate(batch.req_ids):
            places = self.tokens.setdefault(request, {})
            first = int(batch.num_computed_tokens_np[number])
            for row in range(int(starts[number]), int(starts[number + 1])):
                seen = [Seen(module, op, rows[row]) for module, op, rows in self._now.calls]
                places.setdefault(first + row - int(starts[number]), []).append(seen)
        self._now = None

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda module, args: self._modules.append(name)

    def _leaving(self, module: Any, args: Any, output: Any) -> None:
        self._modules.pop()


def first_difference(
    alone: dict[int, list[list[Seen]]], together: dict[int, list[list[Seen]]]
) -> Difference | None:
    """The first token with a different result, and the first op that gave it.

    Later tokens are not looked at: they follow from it. A token that was computed several times,
    because its request had to make room, is compared each time.
    """
    for position in sorted(alone):
        expected = alone[position][0]
        for found in together.get(position, []):
            for one, other in zip(expected, found, strict=False):
                if (one.module, one.op) != (other.module, other.op):
                    return Difference(position, one.module, one.op, f"{other.op} ({other.module})")
                if one.digest != other.digest:
                    return Difference(position, one.module, one.op)
    return None


def _tensors(values: list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(list(value))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an op writes to."""
    arguments = func._schema.arguments
    given = dict(zip((one.name for one in arguments), args, strict=False)) | kwargs
    return [given.get(one.name) for one in arguments if one.alias_info and one.alias_info.is_write]
