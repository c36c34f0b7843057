# SPDX-License-Identifier: Apache-2.0
"""Registers what this package has in place of the device's operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.plugin.batch_invariance import elementwise
from vllm_anvil.plugin.batch_invariance.original import KEY, Original, has_kernel, schema_of
from vllm_anvil.plugin.batch_invariance.products import PRODUCTS
from vllm_anvil.plugin.batch_invariance.reductions import REDUCTIONS

# Operators of which no such form is here, and that a model might call: a product or an attention
# within them, whose order of sums is PyTorch's. Their names, without overloads.
REFUSED = (
    *("_addmm_activation", "_cdist_forward", "_grouped_mm", "_int4mm", "_scaled_mm"),
    *("_native_multi_head_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_transformer_encoder_layer_fwd", "_trilinear", "_weight_int4pack_mm_for_cpu"),
    *("_weight_int8pack_mm", "addbmm", "mkldnn_rnn_layer", "segment_reduce"),
)

_library: torch.library.Library | None = None


def overloads(name: str) -> Iterator[str]:
    """Full names of an operator's overloads that the device has a kernel for: "mm", "mm.out"."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return
    for overload in packet.overloads():
        full = name if overload == "default" else f"{name}.{overload}"
        if has_kernel(f"aten::{full}"):
            yield full


def install() -> None:
    """Replaces the device's operators in this process, for good. Doing it again changes nothing."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # PyTorch warns of the first operator that is registered in place of another.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, kernel in {**PRODUCTS, **REDUCTIONS}.items():
            _replace(_library, name, kernel)
        for name in ("add.Tensor", "sub.Tensor"):
            _replace(_library, name, elementwise.scaled)
        for name in elementwise.ELEMENTWISE:
            for full in overloads(name):
                if not full.endswith("out") and "grad_input" not in full:
                    _replace(_library, full, elementwise.compute)
        for name in REFUSED:
            for full in overloads(name):
                _library.impl(full, _refusal(name), KEY, allow_override=True)


def _replace(library: torch.library.Library, name: str, kernel: Callable[..., Any]) -> None:
    """The operator, what writes to a given tensor, and what writes to its first argument."""
    new = partial(kernel, Original(f"aten::{name}"))
    library.impl(name, new, KEY, allow_override=True)
    for full in _writing_out(name):
        library.impl(full, partial(_into, _out_names(full), new), KEY, allow_override=True)
    for full in _writing_first(name):
        library.impl(full, partial(_in_place, new), KEY, allow_override=True)


def _types(name: str, out: bool = False) -> list[str]:
    """Of an operator's arguments, those that it takes for results apart from the others."""
    return [str(one.type) for one in schema_of(name).arguments if one.is_out == out]


def _writing_out(name: str) -> Iterator[str]:
    """The overload that takes the arguments of `name` and `out`."""
    for full in overloads(name.partition(".")[0]):
        if _types(full, out=True) and _types(full) == _types(name):
            yield full


def _writing_first(name: str) -> Iterator[str]:
    """The overload that takes the arguments of `name` and writes to the first. Its own name need
    not follow from it: `pow_.Scalar` is that of `pow.Tensor_Scalar`."""
    for full in overloads(f"{name.partition('.')[0]}_"):
        if _types(full) == _types(name):
            yield full


def _out_names(full: str) -> tuple[str, ...]:
    return tuple(one.name for one in schema_of(full).arguments if one.is_out)


def _into(names: tuple[str, ...], new: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result written to the tensors that are given for it, which get its shape."""
    targets = [kwargs.pop(name) for name in names]
    results = new(*args, **kwargs)
    if isinstance(results, Tensor):
        return targets[0].resize_(results.shape).copy_(results)
    return tuple(
        target.resize_(result.shape).copy_(result)
        for target, result in zip(targets, results, strict=True)
    )


def _in_place(new: Callable[..., Any], first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return first.copy_(new(first, *args, **kwargs))


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"VLLM_BATCH_INVARIANT=1: torch.ops.aten.{name} on the anvil device depends on the "
            "batch, and nothing stands in its place. Unset the variable, or have the model call "
            "another operator"
        )

    return refuse
