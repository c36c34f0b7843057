# SPDX-License-Identifier: Apache-2.0
"""Finds the Triton functions of an installed package by reading its source; imports none of it.

A *kernel* is a `triton.jit` function that the package launches, as far as its source tells: it is
launched somewhere by name, or is autotuned, or no other Triton function refers to it. The others
are device functions, which kernels call.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

TUNERS = ("autotune", "heuristics")
LAUNCHERS = ("run", "warmup")
Definition = ast.FunctionDef | ast.AsyncFunctionDef
# A module and a name in it.
Reference = tuple[str, str]


@dataclass(frozen=True)
class Launch:
    """A place where a kernel is launched: what it passes by position and by name, and what stands
    around the call, from the function that makes it out to the module."""

    positional: tuple[ast.expr, ...]
    named: dict[str, ast.expr]
    scopes: tuple[ast.AST, ...]


@dataclass(frozen=True)
class TritonFunction:
    """A function under `triton.jit`.

    `name` is "module:qualified name"; `constexprs` are those of `arguments` that are annotated so.
    """

    module: str
    qualname: str
    file: str
    line: int
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...]
    defaults: tuple[str, ...]
    tuned: bool
    launchable: bool
    launches: tuple[Launch, ...] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.module}:{self.qualname}"

    @property
    def is_local(self) -> bool:
        """Whether the function comes to be only when the one around it is called."""
        return "<locals>" in self.qualname


def package_root(package: str) -> Path:
    """The folder of an installed package; `ModuleNotFoundError` where there is none."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package} is installed", name=package)
    return Path(spec.submodule_search_locations[0])


def triton_functions(root: Path, package: str) -> list[TritonFunction]:
    """Every Triton function below the folder `root`, which is the package's, by name."""
    modules = [
        _Module(path, _module_name(path, root, package))
        for path in sorted(root.rglob("*.py"))
        # Most files have none, and parsing all of them takes ten times as long.
        if all(word in path.read_bytes() for word in (b"triton", b"jit"))
    ]
    launches: dict[Reference, list[Launch]] = defaultdict(list)
    for module in modules:
        for reference, launch in module.launches:
            launches[reference].append(launch)
    referred: set[Reference] = set().union(*(module.referred for module in modules))
    found = {}
    for module in modules:
        for qualname, definition in module.functions.items():
            key = module.name, qualname.rpartition("<locals>.")[2]
            tuned = any(
                _called_name(decorator) in TUNERS for decorator in definition.decorator_list
            )
            arguments = definition.args
            positional = [*arguments.posonlyargs, *arguments.args]
            names = [argument.arg for argument in positional]
            function = TritonFunction(
                module=module.name,
                qualname=qualname,
                file=str(module.path.relative_to(root.parent)),
                line=definition.lineno,
                arguments=tuple(names),
                constexprs=tuple(a.arg for a in positional if _is_constexpr(a)),
                defaults=tuple(names[len(names) - len(arguments.defaults) :]),
                tuned=tuned,
                launchable=tuned or key in launches or key not in referred,
                launches=tuple(launches.get(key, ())),
            )
            found[function.name] = function
    return [found[name] for name in sorted(found)]


def kernels(root: Path, package: str) -> list[TritonFunction]:
    """Those of `triton_functions` that are launched."""
    return [function for function in triton_functions(root, package) if function.launchable]


def _module_name(path: Path, root: Path, package: str) -> str:
    parts = [package, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def _called_name(decorator: ast.expr) -> str:
    """The last name of a decorator, called or not: "jit" of `@triton.jit(debug=True)`."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _dotted(target).rpartition(".")[2]


def _launched(call: ast.Call) -> ast.expr | None:
    """What `call` launches, if it has the form of a launch."""
    target = call.func
    if isinstance(target, ast.Subscript):
        return target.value
    if isinstance(target, ast.Attribute) and target.attr in LAUNCHERS:
        return target.value
    return None


def _dictionaries(function: Definition, scopes: tuple[ast.AST, ...]) -> Iterator[Launch]:
    """The calls of `dict` in a function, each as a launch."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _dotted(node.func) == "dict":
            named = {word.arg: word.value for word in node.keywords if word.arg is not None}
            yield Launch((), named, (function, *scopes))


def _dotted(node: ast.expr) -> str:
    """ "a.b.c" of an expression that is just that, "" of any other."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


@dataclass
class _Module:
    """What a module's source says: its Triton functions, and which functions it launches and
    refers to, by the module that has them."""

    path: Path
    name: str
    functions: dict[str, Definition] = field(default_factory=dict)
    launches: list[tuple[Reference, Launch]] = field(default_factory=list)
    _calls: list[tuple[ast.Call, tuple[ast.AST, ...]]] = field(default_factory=list)
    _definitions: list[tuple[Definition | ast.ClassDef, tuple[ast.AST, ...]]] = field(
        default_factory=list
    )
    referred: set[Reference] = field(default_factory=set)

    def __post_init__(self) -> None:
        tree = ast.parse(self.path.read_bytes())
        self._imports: dict[str, Reference] = {}
        self._visit(tree, (tree,), "")
        # Imports may stand after what uses them.
        self.functions = {
            name: function for name, function in self.functions.items() if self._is_triton(function)
        }
        for qualname, definition in self.functions.items():
            own = self.name, qualname.rpartition("<locals>.")[2]
            names = (n for n in ast.walk(definition) if isinstance(n, ast.Name | ast.Attribute))
            self.referred |= {self._resolve(node) for node in names} - {own}
        for call, scopes in self._calls:
            named = {word.arg: word.value for word in call.keywords if word.arg is not None}
            kernel = _launched(call)
            if kernel is not None:
                launch = Launch(tuple(call.args), named, scopes)
                self.launches.append((self._resolve(kernel), launch))
        for scope, scopes in self._definitions:
            if isinstance(scope, ast.ClassDef):
                self.launches += self._launches_of_class(scope, scopes)
            else:
                self.launches += self._launches_of_dispatcher(scope, scopes)

    def _visit(self, node: ast.AST, scopes: tuple[ast.AST, ...], prefix: str) -> None:
        """Notes, of what stands in `node`, the imports, functions, classes and launches."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                if child.decorator_list:
                    self.functions[prefix + child.name] = child
                self._definitions.append((child, (child, *scopes)))
                self._visit(child, (child, *scopes), f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                self._definitions.append((child, (child, *scopes)))
                self._visit(child, (child, *scopes), f"{prefix}{child.name}.")
            elif isinstance(child, ast.Import | ast.ImportFrom):
                self._imports.update(self._imported(child))
            elif not isinstance(child, ast.Name | ast.Constant | ast.expr_context):
                if isinstance(child, ast.Call):
                    self._calls.append((child, scopes))
                self._visit(child, scopes, prefix)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Reference]]:
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, (alias.name, "")) for alias in node.names)
            return
        package = self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]
        base = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
        source = ".".join([*(base if node.level else ()), node.module or ""]).strip(".")
        for alias in node.names:
            yield alias.asname or alias.name, (source, alias.name)

    def _is_triton(self, definition: Definition) -> bool:
        return any(self._is_jit(decorator) for decorator in definition.decorator_list)

    def _is_jit(self, decorator: ast.expr) -> bool:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute):
            return _dotted(target) == "triton.jit"
        source = self._imports.get(_dotted(target), ("", ""))
        return source[0].split(".")[0] == "triton" and source[1] == "jit"

    def _launches_of_class(
        self, owner: ast.ClassDef, scopes: tuple[ast.AST, ...]
    ) -> Iterator[tuple[Reference, Launch]]:
        """Of a `VllmTritonJitKernel`, whose methods give what is launched as dictionaries."""
        kernels = [name for name in self.functions if name.startswith(f"{owner.name}.")]
        methods = [method for method in owner.body if isinstance(method, Definition)]
        for method in methods if len(kernels) == 1 else ():
            for launch in _dictionaries(method, scopes):
                yield (self.name, kernels[0]), launch

    def _launches_of_dispatcher(
        self, dispatcher: Definition, scopes: tuple[ast.AST, ...]
    ) -> Iterator[tuple[Reference, Launch]]:
        """Of a function under `triton_kernel_dispatcher_with_warmup(kernel=, warmup_inputs=)`, or
        of a kernel under it."""
        for decorator in dispatcher.decorator_list:
            if isinstance(decorator, ast.Call) and "warmup" in _called_name(decorator):
                words = {word.arg: word.value for word in decorator.keywords}
                kernel = self._resolve(words.get("kernel", ast.Name(dispatcher.name)))
                yield from ((kernel, launch) for launch in _dictionaries(dispatcher, scopes[1:]))
                inputs = words.get("warmup_inputs", decorator)
                for function in ast.iter_child_nodes(scopes[-1]):
                    if isinstance(function, Definition) and function.name == _dotted(inputs):
                        for launch in _dictionaries(function, scopes[1:]):
                            yield kernel, launch

    def _resolve(self, node: ast.expr) -> Reference:
        """Where the thing that an expression names is defined, as far as the imports tell."""
        first, _, rest = _dotted(node).partition(".")
        if not first.isidentifier() or first not in self._imports:
            return self.name, _dotted(node)
        module, name = self._imports[first]
        return (module, name) if name and not rest else (f"{module}.{name}".strip("."), rest)
