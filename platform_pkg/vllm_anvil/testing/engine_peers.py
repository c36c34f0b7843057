# SPDX-License-Identifier: Apache-2.0
"""The engine's own CPU kernels, with the signatures of ours, without importing the engine.

vLLM's kernels are in an extension module that registers ``torch.ops._C``; loading that library is
enough, and takes none of the engine's Python.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing.result import ENGINE

# The kernels go through rows in vectors of this many elements and take no remainder.
_VECTOR = 8
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class EngineUnavailable(Exception):
    """There are no kernels of the engine here; the message says why."""


def peers() -> dict[str, dict[str, Callable[..., Any]]]:
    """The engine's kernels, by our op's qualified name and then by ENGINE.

    Each takes CPU tensors, contiguous but for rows at a distance where said, and raises
    NotImplementedError for arguments that the engine's kernel does not take.

    Raises:
        EngineUnavailable: vLLM is not installed, or has no CPU kernels for this processor.
    """
    _load()
    own = (
        rms_norm,
        fused_add_rms_norm,
        fused_add_rms_norm_,
        silu_and_mul,
        gelu_and_mul,
        rotary_embedding,
    )
    return {f"anvil::{kernel.__name__}": {ENGINE: kernel} for kernel in own}


def _load() -> None:
    if hasattr(torch.ops._C, "rms_norm"):
        _require_cpu_kernels()
        return
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise EngineUnavailable("vLLM is not installed")
    folder = Path(next(iter(found.submodule_search_locations)))
    stem = _library_stem()
    libraries = sorted(folder.glob(f"{stem}.*so"))
    if not libraries:
        raise EngineUnavailable(f"the vLLM in {folder} has no {stem} library")
    try:
        torch.ops.load_library(str(libraries[0]))
    except OSError as error:
        raise EngineUnavailable(f"{libraries[0]} does not load: {error}") from error
    if not hasattr(torch.ops._C, "rms_norm"):
        raise EngineUnavailable(f"{libraries[0]} does not register torch.ops._C.rms_norm")
    _require_cpu_kernels()


def _require_cpu_kernels() -> None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key("_C::rms_norm", "CPU"):
        raise EngineUnavailable("the vLLM that is installed was built without CPU kernels")


def _library_stem() -> str:
    """As vLLM's CPU platform chooses among its libraries."""
    if platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_avx512_bf16_supported():
        return "_C"
    return "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise NotImplementedError(f"the engine's kernel {what}")


def _require_rows(width: int, *tensors: Tensor | None) -> None:
    """Contiguous tensors of one dtype, with rows of whole vectors."""
    given = [tensor for tensor in tensors if tensor is not None]
    dtypes = {tensor.dtype for tensor in given}
    _require(len(dtypes) == 1 and dtypes <= {*_DTYPES}, "takes one floating dtype for all")
    _require(all(tensor.is_contiguous() for tensor in given), "takes contiguous tensors")
    _require(width % _VECTOR == 0, f"takes rows of a multiple of {_VECTOR} elements")
    _require(all(tensor.numel() > 0 for tensor in given), "takes no empty tensors")


def _require_plain_norm(variance_size: int | None, weight_offset: float) -> None:
    _require(variance_size is None, "has no variance_size")
    _require(weight_offset == 0.0, "has no weight_offset")


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    _require_plain_norm(variance_size, weight_offset)
    _require_rows(x.shape[-1], x, weight)
    result = torch.empty_like(x)
    torch.ops._C.rms_norm(result, x, weight, epsilon)
    return result


def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> None:
    _require_plain_norm(variance_size, weight_offset)
    _require_rows(x.shape[-1], x, residual, weight)
    torch.ops._C.fused_add_rms_norm(x, residual, weight, epsilon)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    normed, total = x.clone(), residual.clone()
    fused_add_rms_norm_(normed, total, weight, epsilon, variance_size, weight_offset)
    return normed, total


def silu_and_mul(x: Tensor) -> Tensor:
    return _gated(torch.ops._C.silu_and_mul, x)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    kernels = {"none": "gelu_and_mul", "tanh": "gelu_tanh_and_mul"}
    return _gated(getattr(torch.ops._C, kernels[approximate]), x)


def _gated(kernel: Callable[[Tensor, Tensor], None], x: Tensor) -> Tensor:
    width = x.shape[-1] // 2
    _require_rows(width, x)
    result = x.new_empty(*x.shape[:-1], width)
    kernel(result, x)
    return result


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    mrope_section: list[int] | tuple[int, ...] = (),
    mrope_interleaved: bool = False,
) -> None:
    _require(positions.dim() == 1, "has no multimodal positions")
    _require(positions.dtype == torch.int64, "takes int64 positions")
    states = [tensor for tensor in (query, key) if tensor is not None]
    # Vectors end within a head, so that rows of any width do.
    _require_rows(_VECTOR, cos_sin_cache, *states)
    flat = [tensor.view(tensor.shape[0], -1) for tensor in states]
    torch.ops._C.rotary_embedding(
        positions, flat[0], flat[1] if key is not None else None, head_size, cos_sin_cache, is_neox
    )
