# SPDX-License-Identifier: Apache-2.0
"""The native kernels as an implementation of the contract: ``torch.ops.anvil.paged_attention``.

It imports without the library `_C`, and then refuses every layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import paged_attention_op
from .contract import AttentionImplementation, AttentionSpec, GraphSupport, Unsupported

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
KV_DTYPES = (*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
DEVICES = ("anvil", "cpu")


def attend(
    *, causal: bool | Tensor = True, workspace: Tensor | None = None, **arguments: Any
) -> None:
    """``torch.ops.anvil.paged_attention`` with the arguments of `contract.AttentionCall`.

    Raises:
        Unsupported: there is no native form for the query's device.
    """
    device = arguments["query"].device.type
    if not _is_native(device):
        raise Unsupported(_no_kernel(device))
    per_request = causal if isinstance(causal, Tensor) else None
    torch.ops.anvil.paged_attention(
        causal=True if per_request is not None else causal,
        causal_per_request=per_request,
        **arguments,
    )


def refuses(spec: AttentionSpec) -> str | None:
    """Why a layer cannot be served, or None: see `contract.AttentionImplementation`."""
    if not _is_native(spec.device):
        return _no_kernel(spec.device)
    if spec.dtype not in DTYPES:
        return f"the native attention takes queries of {_names(DTYPES)}, not {_name(spec.dtype)}"
    if spec.kv_dtype not in KV_DTYPES:
        return (
            f"the native attention reads caches of {_names(KV_DTYPES)}, not {_name(spec.kv_dtype)}"
        )
    return None


def _is_native(device_type: str) -> bool:
    paged_attention_op.register()
    if device_type not in DEVICES:
        return False
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("anvil::paged_attention", key)


def _no_kernel(device_type: str) -> str:
    if device_type in DEVICES:
        return "the native attention is part of the compiled library, which is not loaded"
    return f"there is no native attention for {device_type} tensors, only for {_names(DEVICES)}"


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _names(things: tuple[object, ...]) -> str:
    names = [_name(thing) for thing in things]
    return f"{', '.join(names[:-1])} and {names[-1]}"


native_attention = AttentionImplementation(
    name="native",
    function=attend,
    refuses=refuses,
    graph_support=GraphSupport.ALWAYS,
    batch_invariant=True,
    checks_blocks=True,
)
