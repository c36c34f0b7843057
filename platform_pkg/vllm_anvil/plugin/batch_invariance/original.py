# SPDX-License-Identifier: Apache-2.0
"""An operator as the device has it, for what stands in its place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KEY = "PrivateUse1"


class Original:
    """Calls the device's kernel of an operator, also after another one has been registered.

    Args:
        name: "aten::mm" or "aten::mm.out".
    """

    def __init__(self, name: str) -> None:
        self._kernel = torch.library.get_kernel(name, KEY)
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
        arguments = schema_of(name.removeprefix("aten::")).arguments
        self._takes_tensor = [isinstance(one.type, torch.TensorType) for one in arguments]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(
            takes and isinstance(one, int | float | complex) for takes, one in self._given(args)
        ):
            args = tuple(
                _as_tensor(one, args) if takes and not isinstance(one, Tensor) else one
                for takes, one in self._given(args)
            )
        return self._kernel.call_boxed(self._keys, *args, **kwargs)

    def _given(self, args: tuple[Any, ...]) -> zip[tuple[bool, Any]]:
        return zip(self._takes_tensor, args, strict=False)


def _as_tensor(number: Any, args: tuple[Any, ...]) -> Any:
    """What the dispatcher hands to Python as a number and takes from it as a tensor only: one that
    leaves the result its dtype."""
    if not isinstance(number, int | float | complex):
        return number
    tensor = next(one for one in args if isinstance(one, Tensor))
    wide = torch.result_type(tensor, number)
    if tensor.dim() > 0 and wide in (torch.bfloat16, torch.float16):
        wide = torch.float32  # rounded by the operator, after it has computed
    return torch.scalar_tensor(number, dtype=wide)


def schema_of(name: str) -> Any:
    """Of an operator of PyTorch: "mm", "mm.out"."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")._schema


def has_kernel(name: str) -> bool:
    """Whether there is such an operator, and the device has a kernel of its own for it."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY)
    except RuntimeError:  # no such operator; TorchScript has more overloads than the dispatcher
        return False
