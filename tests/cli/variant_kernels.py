# SPDX-License-Identifier: Apache-2.0
"""A plugin of the engine with kernels that depend on the batch: VARIANT_KERNEL chooses one.

Each computes what the device's own does, but in another order where there is more than one row.
"""

from __future__ import annotations

import os
from typing import Any

KEY = "PrivateUse1"
_libraries: list[Any] = []


def register() -> None:
    if _libraries:
        return
    import torch

    import vllm_anvil.device  # noqa: F401  registers what is replaced

    library = torch.library.Library("anvil", "IMPL")
    _libraries.append(library)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def original(name: str) -> Any:
        kernel = torch.library.get_kernel(f"anvil::{name}", KEY)
        return lambda *args: kernel.call_boxed(keys, *args)

    def replace(name: str, function: Any) -> None:
        library.impl(name, function, KEY, allow_override=True)

    linear, norm, fused_norm = map(original, ("packed_linear", "rms_norm", "fused_add_rms_norm_"))
    attention = original("paged_attention")

    def packed_linear(
        x: Any,
        packed: Any,
        columns: Any,
        bias: Any = None,
        dtype: Any = None,
        input_dtype: Any = None,
        rows_in_use: Any = None,
        keep_remainders: Any = False,
    ) -> Any:
        """The depth in two halves."""
        if x.numel() <= x.shape[-1]:
            return linear(
                x, packed, columns, bias, dtype, input_dtype, rows_in_use, keep_remainders
            )
        half = packed.shape[1] // 2
        cut = half * (packed.shape[3] if packed.dim() == 4 else 1)
        parts = ((x[..., :cut], packed[:, :half]), (x[..., cut:], packed[:, half:]))
        first, second = (
            linear(
                one.contiguous(),
                weight.contiguous(),
                columns,
                None,
                torch.float32,
                input_dtype,
                rows_in_use,
                keep_remainders,
            )
            for one, weight in parts
        )
        result = first + second
        return (result if bias is None else result + bias).to(dtype or x.dtype)

    def normed(x: Any, weight: Any, epsilon: float) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (wide * scale * weight.float()).to(x.dtype)

    def rms_norm(x: Any, weight: Any, epsilon: Any, *others: Any) -> Any:
        """In float32 throughout."""
        one = x.numel() == x.shape[-1]
        return norm(x, weight, epsilon, *others) if one else normed(x, weight, epsilon)

    def fused_add_rms_norm_(x: Any, residual: Any, weight: Any, epsilon: Any, *others: Any) -> None:
        if x.numel() == x.shape[-1]:
            fused_norm(x, residual, weight, epsilon, *others)
        else:
            residual.add_(x)
            x.copy_(normed(residual, weight, epsilon))

    def paged_attention(*args: Any) -> Any:
        """Keys are split as the batch has it, from nine requests on: more than the engine's
        start looks at."""
        names = [one.name for one in torch.ops.anvil.paged_attention.default._schema.arguments]
        given = list(args) + [None] * (len(names) - len(args))
        given[names.index("batch_invariant")] = len(given[names.index("seq_lens")]) < 9
        return attention(*given)

    chosen = os.environ.get("VARIANT_KERNEL")
    if chosen == "matmul":
        replace("packed_linear", packed_linear)
    if chosen == "norm":
        replace("rms_norm", rms_norm)
        replace("fused_add_rms_norm_", fused_add_rms_norm_)
    if chosen == "attention":
        replace("paged_attention", paged_attention)
