# SPDX-License-Identifier: Apache-2.0
"""Gets a kernel of the engine as Triton's object, also from modules that cannot be imported here.

Some modules want libraries or hardware that the kernels in them do not need, and some define a
kernel only on one vendor's platform or when a function is called. Their source is then run
statement by statement, and what fails is left out; a kernel that needs something left out fails to
compile with a message of its own.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITFunction

from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction, package_root

_piecewise: dict[str, ModuleType] = {}


class MissingKernel(Exception):
    """The module has no such kernel on this machine; says why."""


def triton_kernel(kernel: TritonFunction) -> Any:
    """The kernel as the module has it: a `JITFunction`, or what autotunes or completes one.

    `MissingKernel` where it cannot be had.
    """
    found = None
    try:
        found = _attribute(importlib.import_module(kernel.module), kernel.qualname)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = "the module does not define it"
    if jit_function(found) is None:
        module = _run_piecewise(kernel.module)
        name = kernel.qualname.rpartition("<locals>.")[2] if kernel.is_local else kernel.qualname
        if kernel.is_local:
            _run_inside(module, kernel.qualname)
        found = _attribute(module, name)
    if jit_function(found) is None:
        raise MissingKernel(f"{kernel.module} does not give it here: {reason}")
    return found


def jit_function(kernel: Any) -> Any:
    """The `JITFunction` below the autotuner and the heuristics, if any; None if it is no kernel."""
    while kernel is not None and not isinstance(kernel, JITFunction):
        kernel = getattr(kernel, "fn", None)
    return kernel


def _attribute(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _file_of(module: str) -> Path:
    """The file of a module, without importing the packages that it is in."""
    package, *parts = module.split(".")
    path = package_root(package).joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _run_piecewise(name: str) -> ModuleType:
    """The module as far as its statements run, which `sys.modules` does not get to know."""
    if name in _piecewise:
        return _piecewise[name]
    file = _file_of(name)
    module = ModuleType(name)
    module.__file__ = str(file)
    is_package = file.name == "__init__.py"
    module.__package__ = name if is_package else name.rpartition(".")[0]
    _piecewise[name] = module
    _run_statements(ast.parse(file.read_bytes()).body, module)
    return module


def _run_statements(statements: Iterable[ast.stmt], module: ModuleType) -> None:
    for statement in statements:
        if isinstance(statement, ast.If):
            # What is for another platform is wanted here, and so the test does not matter; of two
            # definitions of a name, the one for where the test holds.
            _run_statements([*statement.orelse, *statement.body], module)
        elif isinstance(statement, ast.Try):
            _run_statements([*statement.body, *statement.orelse], module)
        elif isinstance(statement, ast.ImportFrom):
            _run_import(statement, module)
        else:
            _run_statement(statement, module)


def _run_statement(statement: ast.stmt, module: ModuleType) -> bool:
    code = compile(ast.Module([statement], []), module.__file__ or "", "exec", dont_inherit=True)
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit):
        return False
    return True


def _run_import(statement: ast.ImportFrom, module: ModuleType) -> None:
    if _run_statement(statement, module):
        return
    base = (module.__package__ or "").split(".")
    base = base[: len(base) - statement.level + 1] if statement.level else []
    source = ".".join([*base, *filter(None, [statement.module])])
    if source.split(".")[0] != module.__name__.split(".")[0] or not _file_of(source).is_file():
        return
    other = _run_piecewise(source)
    for alias in statement.names:
        if hasattr(other, alias.name):
            setattr(module, alias.asname or alias.name, getattr(other, alias.name))
        elif _file_of(f"{source}.{alias.name}").is_file():
            inner = _run_piecewise(f"{source}.{alias.name}")
            setattr(module, alias.asname or alias.name, inner)


def _run_inside(module: ModuleType, qualname: str) -> None:
    """Runs what stands in a function as if it stood in the module, as far as it runs."""
    outer = qualname.split(".<locals>.")[0]
    body = ast.parse(Path(module.__file__ or "").read_bytes()).body
    for part in outer.split("."):
        named = (
            s for s in body if isinstance(s, ast.FunctionDef | ast.ClassDef) and s.name == part
        )
        body = next(named).body
    wanted = ast.FunctionDef | ast.Import | ast.ImportFrom | ast.Assign
    _run_statements([s for s in body if isinstance(s, wanted)], module)
