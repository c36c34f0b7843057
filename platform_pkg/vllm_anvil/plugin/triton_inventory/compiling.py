# SPDX-License-Identifier: Apache-2.0
"""Puts a kernel's specimens through the compiler, and says what became of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import ASTSource

from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction, package_root
from vllm_anvil.plugin.triton_inventory.loading import MissingKernel, jit_function, triton_kernel
from vllm_anvil.plugin.triton_inventory.specimen import Specimen, specimen
from vllm_anvil.plugin.triton_inventory.specimens import exceptions
from vllm_anvil.triton_backend.compiler import AnvilTritonBackend
from vllm_anvil.triton_backend.emit import host_cpu
from vllm_anvil.triton_backend.errors import UnsupportedKernel

# How far to go: Triton's front end alone, or to machine code.
FRONT_END, OBJECT = "ttir", "obj"


@dataclass(frozen=True)
class Outcome:
    """What became of a kernel: compiled, or the reason why not."""

    reason: str = ""
    seconds: float = 0.0

    @property
    def compiled(self) -> bool:
        return not self.reason


def compile_kernel(kernel: TritonFunction, last_stage: str = OBJECT) -> Outcome:
    """Compiles all specimens of a kernel, from its source up to `last_stage`; stores nothing."""
    begin = time.perf_counter()
    reason = ""
    try:
        found = triton_kernel(kernel)
        for one in exceptions(kernel):
            stages(jit_function(found), specimen(kernel, found, one), kernel.arguments, last_stage)
    except Exception as error:
        reason = explain(error)
    return Outcome(reason, time.perf_counter() - begin)


def stages(
    function: Any, launch: Specimen, arguments: tuple[str, ...], last_stage: str = OBJECT
) -> dict[str, Any]:
    """What each stage of the compiler makes of `function` with the arguments of a specimen.

    Raises what the front end, the lowering or LLVM raises.
    """
    target = GPUTarget("cpu", host_cpu().name, 1)
    backend = AnvilTritonBackend(target)
    options = backend.parse_options({"num_warps": 4})
    signature = launch.signature(arguments)
    source = ASTSource(
        function,
        signature,
        {(arguments.index(name),): value for name, value in launch.constants.items()},
        # What torch allocates is aligned, and Triton's launcher finds out.
        {
            (index,): [["tt.divisibility", 16]]
            for index, type_ in enumerate(signature.values())
            if type_.startswith("*")
        },
    )
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    result: Any = source.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    made: dict[str, Any] = {}
    passes: dict[str, Any] = {}
    backend.add_stages(passes, options, Language.TRITON)
    metadata: dict[str, Any] = {"name": function.__name__}
    for name, run in passes.items():
        result = run(result, metadata)
        made[name] = result
        if name == last_stage:
            break
    # The module lives in the context.
    made["context"] = context
    return made


def explain(error: BaseException) -> str:
    """One line: what the compiler does not understand, and where."""
    if isinstance(error, UnsupportedKernel | MissingKernel):
        return _one_line(str(error))
    message, place = "", ""
    cause: BaseException | None = error
    while cause is not None:
        # Triton's front end wraps an error once for each call that leads to it.
        text = getattr(cause, "error_message", None) or str(cause)
        source_line = _source_line(str(cause))
        place = source_line or place
        message = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
        cause = cause.__cause__
    return _one_line(message.split("\n\n")[0]) + (f" (at `{place}`)" if place else "")


def _source_line(text: str) -> str:
    """The line above the caret with which Triton points at the place."""
    lines = text.split("\n")
    carets = [number for number, line in enumerate(lines) if re.fullmatch(r"\s*\^\s*", line)]
    return lines[carets[0] - 1].strip() if carets and carets[0] else ""


def _one_line(text: str) -> str:
    """On one line, with paths that begin where the engine does."""
    folder = f"{package_root('vllm').parent}/"
    return re.sub(r"\s+", " ", text.replace(folder, "")).strip()[:300]
