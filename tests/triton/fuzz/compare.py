# SPDX-License-Identifier: Apache-2.0
"""Runs a program on the device's backend and compares the memory after it with the reference's."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)
from fuzz import reference
from fuzz.formats import from_torch, to_torch
from fuzz.inputs import inputs_of
from fuzz.programs import PointerArgument, Program
from fuzz.source import kernel_source
from vllm_anvil.triton_backend.emit import HostCpu, objects, target

# The least that the backend compiles for: AVX2 without AVX512, whose masks and gathers differ.
LEAST = HostCpu("x86-64-v3", "")


@contextmanager
def _compiling_for(cpu: HostCpu | None) -> Iterator[None]:
    """Kernels compiled inside are for that processor; for this one where it is None."""
    if cpu is None:
        yield
        return
    with (
        mock.patch.object(target, "host_cpu", lambda: cpu),
        mock.patch.object(objects, "host_cpu", lambda: cpu),
    ):
        yield


def run_compiled(program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The storages after the compiled program."""
    tensors = [
        to_torch(storage.dtype, array.copy())
        for storage, array in zip(program.storages, inputs, strict=True)
    ]
    if program.on_device:
        tensors = [tensor.to("anvil") for tensor in tensors]
    arguments: list[object] = []
    for argument in program.arguments:
        if isinstance(argument, PointerArgument):
            arguments.append(tensors[program.storages.index(argument.storage)][argument.offset :])
        else:
            arguments.append(argument.value)
    with tempfile.TemporaryDirectory() as folder:
        module = _module(Path(folder) / f"program_{program.seed}.py", kernel_source(program))
        with _compiling_for(LEAST if program.for_least_processor else None):
            module.kernel[program.grid](*arguments)
    if program.on_device:
        torch.anvil.synchronize()
    return [
        from_torch(storage.dtype, tensor.cpu())
        for storage, tensor in zip(program.storages, tensors, strict=True)
    ]


def _module(path: Path, text: str) -> ModuleType:
    """Triton reads functions' sources from their files."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        linecache.getlines(str(path))
    finally:
        del sys.modules[path.stem]
    return module


def difference(program: Program) -> str | None:
    """What is wrong with the compiled program's results; None where they are right.

    Raises what the compiler raises, and `reference.BadProgram`.
    """
    inputs = inputs_of(program)
    expected = reference.run(program, inputs)
    found = run_compiled(program, inputs)
    for number, storage in enumerate(program.storages):
        wrong = _wrong(found[number], expected.arrays[number], expected.errors[number])
        if wrong.any():
            first = int(np.argmax(wrong))
            return (
                f"{storage.name} ({storage.dtype}): {int(wrong.sum())} of {wrong.size} elements, "
                f"first [{first}]: {found[number][first]!r} for {expected.arrays[number][first]!r}"
            )
    return None


def _wrong(found: np.ndarray, expected: np.ndarray, error: np.ndarray) -> np.ndarray:
    if found.dtype.kind != "f":
        return found != expected
    with np.errstate(all="ignore"):
        both_nan = np.isnan(found) & np.isnan(expected)
        same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        close = (error > 0) & ((distance <= error) | (found == expected))
    return ~(both_nan | same | close | np.isinf(error))


def failure(program: Program) -> str | None:
    """What goes wrong with a program, errors of the compiler included; None where nothing does."""
    try:
        return difference(program)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        return f"{type(cause).__name__}: {lines[-1]}"


def same_kind(first: str | None, second: str | None) -> bool:
    """Whether two failures are of one kind: both wrong results, or the same error."""
    if first is None or second is None:
        return False
    return _kind(first) == _kind(second)


def _kind(failure: str) -> str:
    return "wrong" if " elements, first [" in failure else failure.partition(":")[0]
