# SPDX-License-Identifier: Apache-2.0
"""Routing a Triton kernel's launches to a function, with the launch grid.

Every launch, `kernel[grid](...)` as well as those that autotuners and heuristics make, ends in the
kernel's `run`. An attribute of that name on the kernel object itself comes before the method of its
class, so the object stays what and where it is: whoever imported it, holds it or derives a cache
key from it needs no change, and compiling it goes on as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

# Called with the grid and the arguments of one launch by the kernel's own names, constants
# included, and says whether it did the work. If not, it has done nothing, and the compiled kernel
# is launched.
Override = Callable[..., bool]

Grid = tuple[int, int, int]


def refusal(kernel: Any, override: Override) -> str | None:
    """Why `override` cannot stand in for `kernel`, or None."""
    expected = getattr(kernel, "arg_names", None)
    if expected is None or not hasattr(kernel, "run"):
        return "it is not a Triton kernel here"
    found = list(inspect.signature(override).parameters)
    if found != ["grid", *expected]:
        return (
            f"its parameters are ({', '.join(found[1:])}), but the kernel's are "
            f"({', '.join(expected)})"
        )
    return None


def route(kernel: Any, override: Override) -> None:
    """Sends launches of `kernel` to `override`, which `refusal` has nothing to say against."""
    if not isinstance(vars(kernel).get("run"), _Route):
        kernel.run = _Route(kernel, override)


def restore(kernel: Any) -> None:
    """Undoes `route`; does nothing to a kernel that is not routed."""
    if isinstance(vars(kernel).get("run"), _Route):
        del kernel.run


class _Route:
    """What stands for a kernel's `run`."""

    def __init__(self, kernel: Any, override: Override):
        self._compiled = kernel.run
        self._override = override
        self._names = tuple(kernel.arg_names)
        self._defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(kernel.fn).parameters.items()
            if parameter.default is not parameter.empty
        }

    def __call__(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not warmup:
            arguments = self._arguments(args, kwargs)
            if arguments is not None:
                dimensions = grid(arguments) if callable(grid) else grid
                if self._override((*dimensions, 1, 1)[:3], **arguments):
                    return None
        return self._compiled(*args, grid=grid, warmup=warmup, **kwargs)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The kernel's arguments, without options such as `num_warps`. None where they do not fit,
        which Triton reports best."""
        given = dict(zip(self._names, args, strict=False))
        if len(args) > len(self._names) or not given.keys().isdisjoint(kwargs):
            return None
        given = self._defaults | given | kwargs
        try:
            return {name: given[name] for name in self._names}
        except KeyError:
            return None
