# SPDX-License-Identifier: Apache-2.0
"""A weight that exists in packed form alone and is a tensor ``[columns, depth]`` all the same, or
weights of several experts, ``[experts, columns, depth]``.

Who knows it multiplies with `PackedWeight.packed`. Whoever else touches it (a checksum, a state
dict, a weight loader, a layer that reads another's weight) meets a tensor of the weight's own
shape, dtype, strides and device. An op that reads it gets an unpacked copy, which lives as long as
the op; an op that writes to it, or to any view of it, has its result packed again, into the same
memory, so that graphs which were captured before compute with it. What can be neither raises.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map

from vllm_anvil.ops.gemm import pack_linear, unpack_linear
from vllm_anvil.references.gemm import depth_unit, packed_shape

View = Callable[[Tensor], Any]
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


class _Form:
    """The packed bits, which all views of one weight share."""

    def __init__(self, packed: Tensor, shape: tuple[int, ...]) -> None:
        self.packed, self.shape = packed, shape

    @classmethod
    def of(cls, weight: Tensor) -> _Form:
        if weight.dim() == 2:
            return cls(pack_linear(weight), tuple(weight.shape))
        columns, depth = weight.shape[1:]
        one = packed_shape(columns, depth, depth_unit(weight.dtype))
        form = cls(weight.new_empty((len(weight), *one)), tuple(weight.shape))
        form.pack(weight)
        return form

    def unpacked(self) -> Tensor:
        *experts, columns, depth = self.shape
        if not experts:
            return unpack_linear(self.packed, columns, depth)
        weight = self.packed.new_empty(self.shape)
        for packed, plain in zip(self.packed, weight, strict=True):
            plain.copy_(unpack_linear(packed, columns, depth))
        return weight

    def pack(self, weight: Tensor) -> None:
        if weight.dim() == 2:
            self.packed.copy_(pack_linear(weight))
            return
        for packed, plain in zip(self.packed, weight, strict=True):
            packed.copy_(pack_linear(plain))


class PackedWeight(Tensor):
    """A weight in packed form, or a view of one; see the module's documentation.

    Attributes:
        packed: what `pack_linear` made of it, or of each expert's, one behind the other. Of a view,
            the whole weight's.
    """

    _form: _Form
    _views: tuple[View, ...]  # what leads from the whole weight to this tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(weight: Tensor) -> PackedWeight:
        """The weight packed. A parameter becomes one of its own class, with its attributes.

        Args:
            weight: ``[columns, depth]`` or ``[experts, columns, depth]``, float32, bfloat16 or
                float16, rows contiguous; not changed.
        """
        kind = PackedWeight if type(weight) is Tensor else _packed_class(type(weight))
        result = _make(kind, _Form.of(weight.data), ())
        result.__dict__.update(weight.__dict__)
        return result

    @property
    def packed(self) -> Tensor:
        return self._form.packed

    @property
    def data(self) -> Tensor:
        """As of any tensor. What is assigned is packed, and must have the same shape and dtype."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError(
                f"a packed weight stays {self.dtype} of shape {tuple(self.shape)} and cannot "
                f"become {value.dtype} of shape {tuple(value.shape)}; ANVIL_PACK_WEIGHTS=0 keeps "
                "weights as they are loaded"
            )
        self.copy_(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        """A whole weight is copied as it is; a view becomes a weight of its own."""
        if id(self) not in memo:
            if self._views:
                memo[id(self)] = self.clone()
            else:
                form = _Form(self.packed.clone(), self._form.shape)
                copy = _make(type(self), form, ())
                copy.__dict__.update({**self.__dict__, "_form": form})
                memo[id(self)] = copy
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as the plain tensor."""
        return self.clone().__reduce_ex__(protocol)

    def tolist(self) -> Any:
        return self.clone().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.clone()!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:
            raise NotImplementedError(
                f"{func} would give a packed weight another shape or other memory; make a copy of "
                "it, or keep weights as they are loaded by ANVIL_PACK_WEIGHTS=0"
            )
        if func.is_view and isinstance(args[0], PackedWeight):
            return _view(args[0], func, args[1:], kwargs)

        weights: dict[_Form, Tensor] = {}

        def plain(value: Any) -> Any:
            if not isinstance(value, PackedWeight):
                return value
            if value._form not in weights:
                weights[value._form] = value._form.unpacked()
            return _follow(value._views, weights[value._form])

        result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        written = [
            value
            for argument, given in _arguments(func, args, kwargs)
            if argument.alias_info is not None and argument.alias_info.is_write
            for value in tree_iter(given)
            if isinstance(value, PackedWeight)
        ]
        for form in dict.fromkeys(value._form for value in written):
            form.pack(weights[form])
        returns = func._schema.returns
        if written and len(returns) == 1 and returns[0].alias_info is not None:
            return written[0]
        return result


@functools.cache
def _packed_class(kind: type) -> type:
    """The packed form of a class of parameters: an instance of that class, too."""
    return type(f"Packed{kind.__name__}", (PackedWeight, kind), {})


def _make(kind: type, form: _Form, views: tuple[View, ...]) -> PackedWeight:
    # Shapes are those of views of a weight without memory.
    weight = torch.empty(form.shape, dtype=form.packed.dtype, device="meta")
    like = _follow(views, weight)
    result: PackedWeight = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        kind,
        like.size(),
        strides=like.stride(),
        storage_offset=like.storage_offset(),
        dtype=like.dtype,
        device=form.packed.device,
    )
    result._form, result._views = form, views
    return result


def _follow(views: tuple[View, ...], weight: Tensor) -> Tensor:
    return functools.reduce(lambda tensor, view: view(tensor), views, weight)


def _view(base: PackedWeight, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a view op makes of a weight: nothing is unpacked until it is read."""
    if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
        return _make(PackedWeight, base._form, base._views)

    def view(tensor: Tensor) -> Any:
        return func(tensor, *args, **kwargs)

    several = len(func._schema.returns) != 1 or func._schema.returns[0].type.kind() == "ListType"
    if not several:
        return _make(PackedWeight, base._form, (*base._views, view))
    meta = torch.empty_strided(base.size(), base.stride(), dtype=base.dtype, device="meta")
    return [
        _make(PackedWeight, base._form, (*base._views, view, operator.itemgetter(i)))
        for i in range(len(view(meta)))
    ]


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(argument of the schema, what was given for it)."""
    named = {argument.name: argument for argument in func._schema.arguments}
    given = list(zip(func._schema.arguments, args, strict=False))
    return given + [(named[name], value) for name, value in kwargs.items()]
