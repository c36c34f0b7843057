# SPDX-License-Identifier: Apache-2.0
"""How Triton's arguments become the kernel's.

Triton passes every argument of the Python function, constants included, nested as its signature is;
the compiled kernel takes those that are left, flat. The native launcher (`_C.TritonLauncher`) is
told once, as a tree of descriptors, what to do with each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# What Triton passes before the kernel's own arguments.
LEADING = 9
# What a kernel's metadata says of one of its arguments: type, whether it reads and writes it.
ArgumentFact = Sequence[Any]


def make_launcher(src: Any, metadata: Any) -> Callable[..., None]:
    """The launcher of a compiled kernel, as Triton asks for it (`driver.launcher_cls`).

    Args:
        src: Triton's source object: `signature` maps parameters to types, "constexpr" among them.
        metadata: of the compiled kernel: `name`, `scratch_bytes`, `arguments`.

    Returns:
        A callable `(grid_x, grid_y, grid_z, stream, function, packed_metadata, launch_metadata,
        enter_hook, exit_hook, *arguments)`. The kernel runs on the current stream of the anvil
        device that its tensors are on; without one, at once.
    """
    from vllm_anvil import _C  # needs torch, which whoever launches has

    signature = list(src.signature.values())
    names = getattr(getattr(src, "fn", None), "arg_names", None) or list(src.signature)
    facts = iter(metadata.arguments)
    descriptors: list[Any] = []
    for name, type_ in zip(names, signature, strict=True):
        if _is_tensor_descriptor(type_):
            expanded = _expand_tensor_descriptor(type_)
            descriptors += [_describe(f"{name}.{i}", t, facts) for i, t in enumerate(expanded)]
        else:
            descriptors.append(_describe(str(name), type_, facts))
    left = len(list(facts))
    if left:
        raise ValueError(
            f"Triton kernel {metadata.name} takes {left} arguments more than its signature names"
        )
    launcher = _C.TritonLauncher(metadata.name, metadata.scratch_bytes, tuple(descriptors))
    if not any(map(_holds_tensor_descriptor, signature)):
        return launcher
    from triton.backends.driver import wrap_handle_tensordesc_impl

    take_apart = wrap_handle_tensordesc_impl(
        lambda *arguments: launcher(*arguments[:-1], *arguments[-1]),
        src.signature,
        [],
        _decompose_tensor_descriptor,
    )
    return lambda *arguments: take_apart(*arguments[:LEADING], arguments[LEADING:])


def _describe(name: str, type_: Any, facts: Iterator[ArgumentFact]) -> Any:
    if isinstance(type_, tuple):
        fields: list[Any] = []
        for i, field in enumerate(type_):
            if _is_tensor_descriptor(field):
                fields += [
                    _describe(f"{name}.{i}.{j}", one, facts)
                    for j, one in enumerate(_expand_tensor_descriptor(field))
                ]
            else:
                fields.append(_describe(f"{name}.{i}", field, facts))
        return (name, tuple(fields))
    if type_ == "constexpr":
        return None
    fact = next(facts, None)
    if fact is None:
        raise ValueError(f"the compiled kernel has no argument for {name}: {type_}")
    kind, reads, writes = fact
    if (kind == "ptr") != type_.startswith("*"):
        raise ValueError(f"the compiled kernel's argument for {name}: {type_} is of type {kind}")
    return (name, kind, bool(reads), bool(writes))


def _is_tensor_descriptor(type_: Any) -> bool:
    return isinstance(type_, str) and type_.startswith("tensordesc")


def _holds_tensor_descriptor(type_: Any) -> bool:
    if isinstance(type_, tuple):
        return any(map(_holds_tensor_descriptor, type_))
    return _is_tensor_descriptor(type_)


def _expand_tensor_descriptor(type_: str) -> list[str]:
    from triton.backends.driver import expand_signature

    return expand_signature([type_], None, "")


def _decompose_tensor_descriptor(descriptor: Any, _meta: Any, _base: Any) -> list[Any]:
    from triton.backends.driver import decompose_descriptor

    return decompose_descriptor(descriptor)
