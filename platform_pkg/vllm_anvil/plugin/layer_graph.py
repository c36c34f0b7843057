# SPDX-License-Identifier: Apache-2.0
"""The `forward` of an attention module as a graph, in which rotary embedding and attention become
one step.

A model's attention module calls its projection, perhaps a norm of queries and keys, the rotary
embedding and the attention layer, each as a submodule. torch.fx runs `forward` with stand-ins for
the tensors and notes what is called with what. Where rotary embedding's results go to the attention
and nowhere else, the calls between may be made at once; where anything else happens to them,
`rewrite` finds no place and the module stays as it is. No model has to be known by name.
"""

from __future__ import annotations

import inspect
import linecache
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

# (positions, query, key, value) -> the attention's output
Step = Callable[..., Any]
# (name of the query's norm, of the key's, of what projects both) -> whether the step does the work
# of the norms, too, and writes to the result of the projection
TakesNorms = Callable[[str, str, str], bool]

# Methods whose result has the elements of the tensor in the same order.
_VIEWS = frozenset({"view", "reshape", "flatten", "unflatten", "view_as"})
# What may be left without a reader once the calls between are gone.
_PURE = frozenset({getattr, operator.getitem, operator.floordiv, operator.mul, operator.add})


class Unfit(Exception):
    """The module cannot be rewritten; the message says why."""


class _Proxy(fx.Proxy):
    """Stands for a tensor, or for what is read off it."""

    def __len__(self) -> int:
        # Python asks before it iterates; see _Tracer.iter.
        return 1 if _is_leading_shape(self.node) else super().__len__()  # type: ignore[no-any-return]


class _Tracer(fx.Tracer):
    """Every submodule is one call."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor) and not isinstance(a, nn.Parameter):
            # It would be frozen into the graph, with what it holds now.
            raise Unfit("it reads a tensor that is no argument and no parameter")
        return super().create_arg(a)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        # *x.shape[:-1]: hidden states are [num_tokens, size] wherever the engine runs a model.
        if _is_leading_shape(obj.node):
            return iter([obj[0]])  # type: ignore[index]
        return super().iter(obj)


def rewrite(
    module: nn.Module, attention: str, rotary: str, step: Step, takes_norms: TakesNorms
) -> Callable[..., Any]:
    """`module.forward` with `step` in place of the calls of `rotary` and `attention`, which are
    names of submodules; and of two norms before, where `takes_norms` allows it.

    The module itself is not changed. What the graph does not see, and so must not matter, is
    attributes of the module that change later.

    Raises:
        Unfit: other things happen in between, or `forward` is of a kind that has no such graph.
    """
    graph = _graph_of(module)
    site = _Site(graph, attention, rotary)
    norms = site.norms()
    if norms is not None and not takes_norms(*norms):
        site.leave_norms()
    site.replace(step)
    return _compiled(graph, module)


def _graph_of(module: nn.Module) -> fx.Graph:
    for parameter in inspect.signature(type(module).forward).parameters.values():
        if parameter.default is not parameter.empty:
            raise Unfit(f"what {parameter.name} is decides what it does")
    before = dict(vars(module))
    try:
        return _Tracer().trace(module)
    except Unfit:
        raise
    except Exception as error:  # whatever code that was written for tensors raises
        raise Unfit(f"it has no graph: {type(error).__name__}: {error}") from error
    finally:
        if vars(module) != before:
            vars(module).clear()
            vars(module).update(before)
            raise Unfit("it keeps something of a call in itself")


class _Site:
    """The calls to replace.

    Attributes:
        sources: what the step gets for the query and the key.
    """

    def __init__(self, graph: fx.Graph, attention: str, rotary: str) -> None:
        self._graph = graph
        self._attention = _only_call(graph, attention)
        self._rotary = _only_call(graph, rotary)
        self._norms: list[fx.Node] = []
        self._replaced = [self._attention, self._rotary]
        results = self._attention.args[:2]
        if len(self._attention.args) != 3 or self._attention.kwargs:
            raise Unfit(f"{attention} is not called with a query, a key and a value alone")
        if len(self._rotary.args) != 3 or self._rotary.kwargs:
            raise Unfit(f"{rotary} is not called with positions, a query and a key alone")
        for number, result in enumerate(results):
            path, origin = _views_above(result)
            if not _is_item(origin, self._rotary, number):
                raise Unfit(f"something happens between {rotary} and {attention}")
            if any(len(node.users) != 1 for node in (*path, origin)):
                raise Unfit(f"results of {rotary} go elsewhere than to {attention}")
            self._replaced += [*path, origin]
        if len(self._rotary.users) != 2:
            raise Unfit(f"results of {rotary} go elsewhere than to {attention}")
        self.sources = list(self._rotary.args[1:])

    def norms(self) -> tuple[str, str, str] | None:
        """Two submodules that query and key come from, and the one that these read from, if nothing
        but the step would read the same: it writes there. They become part of what is replaced."""
        found: list[tuple[fx.Node, list[fx.Node], fx.Node]] = []
        projections: set[str | None] = set()
        for source in self.sources:
            path, norm = _views_above(source)
            if norm.op != "call_module" or len(norm.args) != 1 or norm.kwargs:
                return None
            before, origin = _views_above(norm.args[0])
            chain = [*path, norm, *before]
            if any(_readers(node) != 1 for node in chain):
                return None
            found.append((norm, chain, origin))
            projections.add(_projection_of(origin))
        projection = projections.pop()
        if projection is None or projections:
            return None
        self._kept = list(self.sources), list(self._replaced)
        self.sources = [origin for _, _, origin in found]
        self._replaced += [node for _, chain, _ in found for node in chain]
        return str(found[0][0].target), str(found[1][0].target), projection

    def leave_norms(self) -> None:
        self.sources, self._replaced = self._kept

    def replace(self, step: Step) -> None:
        positions, value = self._rotary.args[0], self._attention.args[2]
        with self._graph.inserting_before(self._attention):
            node = self._graph.call_function(step, (positions, *self.sources, value))
        self._attention.replace_all_uses_with(node)
        for old in reversed(list(self._graph.nodes)):
            if not old.users and (old in self._replaced or _is_pure(old)):
                self._graph.erase_node(old)
        if any(old in self._graph.nodes for old in self._replaced):
            raise Unfit("what lies between the projection and the attention is used elsewhere")


def _only_call(graph: fx.Graph, name: str) -> fx.Node:
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        raise Unfit(f"{name} is called {len(calls)} times")
    return calls[0]


def _views_above(node: Any) -> tuple[list[fx.Node], fx.Node]:
    """The views of a tensor that `node` is the last of, and the tensor's own node."""
    path: list[fx.Node] = []
    while isinstance(node, fx.Node) and node.op == "call_method" and node.target in _VIEWS:
        path.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node):
        raise Unfit("a query, a key or a value is missing")
    return path, node


def _is_item(node: fx.Node, of: fx.Node, number: int) -> bool:
    return node.target is operator.getitem and node.args == (of, number)


def _reads_shape(node: fx.Node) -> bool:
    return node.target is getattr and bool(node.args[1] == "shape")


def _readers(node: fx.Node) -> int:
    """How many nodes look at the elements."""
    return sum(
        not (_reads_shape(user) or (user.target == "view_as" and user.args[0] is not node))
        for user in node.users
    )


def _projection_of(node: fx.Node) -> str | None:
    """The submodule that a tensor is a part of the result of, `call(...)[0].split(...)[i]`, if that
    part and all the others have one reader each."""
    split = _item_of(node)
    if split is None or split.op != "call_method" or split.target != "split":
        return None
    whole = split.args[0]
    call = _item_of(whole)
    if call is None or call.op != "call_module":
        return None
    for parts in (split, call):
        numbers = [user.args[1] for user in parts.users if user.target is operator.getitem]
        if len(numbers) != len(parts.users) or len(set(numbers)) != len(numbers):
            return None
    return str(call.target) if _readers(node) == _readers(whole) == 1 else None


def _item_of(node: Any) -> Any:
    """What `node` is an item of, or None."""
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        return node.args[0]
    return None


def _is_leading_shape(node: fx.Node) -> bool:
    """x.shape[:-1]"""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return _reads_shape(node.args[0]) and bool(node.args[1] == slice(None, -1))


def _is_pure(node: fx.Node) -> bool:
    return (node.op == "call_function" and node.target in _PURE) or (
        node.op == "call_method" and node.target in _VIEWS
    )


def _compiled(graph: fx.Graph, module: nn.Module) -> Callable[..., Any]:
    """The graph as a method of the module, with its source for tracebacks."""
    code = graph.python_code("self")
    file = f"<forward of {type(module).__name__} {id(module):#x} with one step>"
    linecache.cache[file] = (len(code.src), None, code.src.splitlines(keepends=True), file)
    names = dict(code.globals)
    exec(compile(code.src, file, "exec"), names)
    return types.MethodType(names["forward"], module)
