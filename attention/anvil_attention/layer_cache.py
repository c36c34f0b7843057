# SPDX-License-Identifier: Apache-2.0
"""A layer's cache as the engine describes it: its dtype, its views, its scales."""

from typing import Any, NamedTuple

import torch
from vllm.config import ModelConfig
from vllm.platforms import current_platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

# The engine allocates these as bytes.
FLOAT8_CACHES = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def cache_dtype(kv_cache_dtype: str, model_config: ModelConfig) -> torch.dtype:
    """What the elements of a cache are that the engine calls by that name."""
    if kv_cache_dtype in FLOAT8_CACHES:
        return FLOAT8_CACHES[kv_cache_dtype]
    return kv_cache_dtype_str_to_dtype(kv_cache_dtype, model_config)


def split_kv_cache(
    kv_cache: torch.Tensor, head_size: int, kv_cache_dtype: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value views of a layer's cache as the runner allocates it.

    Args:
        kv_cache: [num_blocks, num_kv_heads, block_size, head_size + value_head_size], with the
            strides of whichever `KVCacheLayout` was resolved.
        head_size: elements of a key.
        kv_cache_dtype: the engine's name for the dtype.

    Returns:
        Views [num_blocks, block_size, num_kv_heads, head_size] and
        [num_blocks, block_size, num_kv_heads, value_head_size] of the same memory, in the dtype
        that the name means.
    """
    if kv_cache_dtype in FLOAT8_CACHES:
        kv_cache = kv_cache.view(FLOAT8_CACHES[kv_cache_dtype])
    key_cache, value_cache = kv_cache.transpose(1, 2).tensor_split((head_size,), dim=3)
    return key_cache, value_cache


class Scales(NamedTuple):
    """What the numbers in a layer's cache are multiplied by when they are read."""

    k_scale: float = 1.0
    v_scale: float = 1.0

    @classmethod
    def of(cls, layer: Any) -> "Scales":
        """The engine sets them on layers that may have a quantised cache, with the weights."""
        return cls(getattr(layer, "_k_scale_float", 1.0), getattr(layer, "_v_scale_float", 1.0))


NO_SCALES = Scales()


def query_dtypes(model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """What dtypes the queries of a model may have: a platform may compute between weights in
    another one than theirs, which it decides when they are loaded."""
    dtypes = getattr(current_platform, "hidden_state_dtypes", None)
    return (model_dtype,) if dtypes is None else dtypes(model_dtype)
