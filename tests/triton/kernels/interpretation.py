# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter made to run vLLM's kernels, as far as it can.

What remains: it compares and adds bfloat16 as the integers that hold it, rounds to it towards zero,
and has no maximum of nothing but NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _let_vllm_see_the_interpreter() -> None:
    """Registers an active driver that compiles nothing, which is all that vLLM looks for."""
    from triton.backends import Backend, backends
    from triton.backends.driver import DriverBase

    class InterpreterDriver(DriverBase):
        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            raise NotImplementedError("the interpreter has no target")

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("the interpreter has no launcher")

        def get_benchmarker(self) -> Any:
            raise NotImplementedError("the interpreter is not measured")

    backends["cpu"] = Backend(compiler=None, driver=InterpreterDriver)


def _give_the_interpreter_boolean_masks() -> None:
    """It keeps an i1 as what NumPy made of it and then refuses to load or store with that."""
    from triton.runtime import interpreter

    def narrowed(mask: Any) -> Any:
        if mask.data.dtype != bool:
            mask = interpreter.TensorHandle((mask.data & 1).astype(bool), mask.dtype)
        return mask

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def masked_load(self: Any, ptrs: Any, mask: Any, *args: Any) -> Any:
        return load(self, ptrs, narrowed(mask), *args)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        return store(self, ptrs, value, narrowed(mask), *args)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _give_the_interpreter_libdevice() -> None:
    """The functions of libdevice that the kernels use; to the interpreter they are empty."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def element_wise(function: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*values: Any, **_: Any) -> Any:
            first = values[0]
            result = np.asarray(function(*(v.handle.data for v in values)))
            return tl.tensor(TensorHandle(result, first.dtype), first.type)

        return apply

    libdevice.log1p = element_wise(np.log1p)
    libdevice.isnan = element_wise(lambda x: np.isnan(x).astype(x.dtype))


class _LoopIndex(int):
    """An index of a loop, which kernels may cast; to the interpreter it is Python's integer."""

    def to(self, dtype: Any) -> int:
        return int(self)


def _give_the_interpreter_loop_indices() -> None:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_core

    def patch_with_indices(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        plain = lang.range
        scope.set_attr(lang, "range", lambda *a, **k: map(_LoopIndex, plain(*a, **k)))

    interpreter._patch_lang_core = patch_with_indices


def prepare() -> None:
    """Call before vLLM is imported, with TRITON_INTERPRET=1 set."""
    _let_vllm_see_the_interpreter()
    _give_the_interpreter_boolean_masks()
    _give_the_interpreter_libdevice()
    _give_the_interpreter_loop_indices()
