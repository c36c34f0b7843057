# SPDX-License-Identifier: Apache-2.0
"""A specimen: how the engine launches a kernel, so far as the compiler needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics

from vllm_anvil.plugin.triton_inventory import evidence, names
from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction
from vllm_anvil.plugin.triton_inventory.evidence import Size, Tensor, Unknown
from vllm_anvil.plugin.triton_inventory.loading import jit_function
from vllm_anvil.plugin.triton_inventory.specimens.area import Dtype
from vllm_anvil.plugin.triton_inventory.usage import pointer_arguments, switches


@dataclass(frozen=True)
class Specimen:
    """The arguments of one launch.

    `types` has Triton's name of the type of each argument that is passed at run time ("*fp32",
    "i32"), `constants` the value of every other one.
    """

    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)

    def signature(self, arguments: tuple[str, ...]) -> dict[str, str]:
        """By argument, in the kernel's order, as Triton's front end takes it."""
        return {name: self.types.get(name, "constexpr") for name in arguments}


def specimen(kernel: TritonFunction, found: Any, exceptions: Mapping[str, Any]) -> Specimen:
    """The specimen of `kernel`, which is the Triton object `found`.

    `exceptions` are those of its arguments for which neither the launches in the source nor the
    names tell the right thing: strings that name types, or values.
    """
    pointers = pointer_arguments(jit_function(found))
    tuned = _tuned(found)
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for name in kernel.arguments:
        is_constant = name in kernel.constexprs
        if name in exceptions:
            value = exceptions[name]
            if isinstance(value, Dtype):
                value = getattr(tl, value.name)
        elif name in tuned:
            value = tuned[name]
        else:
            value = _argument(kernel, name, found, is_constant, name in pointers)
        if isinstance(value, str) and not is_constant:
            types[name] = value
        else:
            constants[name] = value
    return Specimen(types, constants)


def _argument(
    kernel: TritonFunction, name: str, found: Any, is_constant: bool, is_pointer: bool
) -> Any:
    if is_constant:
        return _constant(kernel, name, found)
    value = next(_known(kernel, name), None)
    if is_pointer or isinstance(value, Tensor):
        known = [v.element for v in _known(kernel, name) if isinstance(v, Tensor) and v.element]
        return "*" + (known[0] if known else names.element(name))
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if value == 1 and isinstance(value, int):
        # Triton compiles ones in, such as the stride of the last dimension.
        return value
    if isinstance(value, int | Size):
        return "i32"
    return names.scalar(name)


def _expressions(kernel: TritonFunction, name: str) -> Any:
    for launch in kernel.launches:
        expression = evidence.passed(launch, kernel.arguments).get(name)
        if expression is not None:
            yield expression, launch.scopes


def _known(kernel: TritonFunction, name: str) -> Any:
    for expression, scopes in _expressions(kernel, name):
        try:
            yield evidence.evaluate(expression, scopes)
        except Unknown:
            continue


def _constant(kernel: TritonFunction, name: str, found: Any) -> Any:
    for expression, scopes in _expressions(kernel, name):
        try:
            return evidence.number(expression, scopes)
        except Unknown:
            continue
    if name in kernel.defaults:
        return jit_function(found).signature.parameters[name].default
    value = names.constant(name)
    if name in switches(jit_function(found)) and not isinstance(value, bool):
        return not names.is_off(name)
    return value


def _tuned(found: Any) -> dict[str, Any]:
    """What the first configuration of an autotuner says, and what heuristics find of tensors that
    are all there."""
    values: dict[str, Any] = {}
    while found is not jit_function(found):
        if isinstance(found, Autotuner):
            values |= found.configs[0].kwargs
        elif isinstance(found, Heuristics):
            values |= {name: names.constant(name) for name in found.values if name not in values}
        found = found.fn
    return values
