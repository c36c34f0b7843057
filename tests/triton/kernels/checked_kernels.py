# SPDX-License-Identifier: Apache-2.0
"""Which tests check which Triton kernels, read from the tests' `checks` marks.

python tests/triton/kernels/checked_kernels.py   a line for each kernel: its name and its tests
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent


class _Names:
    """The module's constants, as far as marks are written with them."""

    def __init__(self, module: ast.Module):
        self._values: dict[str, ast.expr] = {}
        for statement in module.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._values[statement.targets[0].id] = statement.value

    def evaluate(self, node: ast.expr) -> object:
        """The value of a mark's argument: constants, formatted strings, lists made of those."""
        names = {
            name: self.evaluate(self._values[name])
            for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if name in self._values
        }
        return eval(compile(ast.Expression(node), "<mark>", "eval"), names)


def _marks(test: ast.FunctionDef) -> Iterator[ast.Call]:
    for decorator in test.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.checks":
                yield node


def checked_kernels(folder: Path = FOLDER) -> dict[str, list[str]]:
    """Kernel ("module:qualified name") -> the tests that check it ("file::function")."""
    result: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.glob("test_*.py")):
        module = ast.parse(path.read_text())
        names = _Names(module)
        for test in module.body:
            if not isinstance(test, ast.FunctionDef):
                continue
            for mark in _marks(test):
                arguments = ast.List(elts=mark.args, ctx=ast.Load())
                ast.copy_location(arguments, mark)
                for kernel in names.evaluate(arguments):  # type: ignore[attr-defined]
                    result[str(kernel)].add(f"{path.name}::{test.name}")
    return {kernel: sorted(tests) for kernel, tests in sorted(result.items())}


if __name__ == "__main__":
    for kernel, tests in checked_kernels().items():
        print(kernel, *tests)
