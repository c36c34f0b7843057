# SPDX-License-Identifier: Apache-2.0
"""Whether a model can fit the device at all, asked before any process is started.

The engine finds out exactly, by loading and profiling, many seconds later and in another process.
Here a lower bound is enough: the checkpoint's headers say how large the weights are, and the
configuration how large the KV cache of one request of the longest length is. What cannot be
bounded (quantised or remote checkpoints, models with caches of several kinds) is left to the
engine.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from vllm.config import ModelConfig, VllmConfig
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE, get_dtype_size

import vllm_anvil.device as anvil

MIB = 1 << 20


def check(config: VllmConfig) -> None:
    """Raises ValueError, with the figures and what to change, when the model cannot fit."""
    if config.model_config is None:
        return
    total = anvil.get_device_properties(0).total_memory
    budget = math.floor(total * config.cache_config.gpu_memory_utilization)
    weights = weight_bytes(config)
    token = cache_bytes_per_token(config)
    length = config.model_config.max_model_len
    if weights + token * length <= budget:
        return
    device = (
        f"the device has {total / MIB:.0f} MiB, of which gpu_memory_utilization="
        f"{config.cache_config.gpu_memory_utilization} leaves {budget / MIB:.0f} MiB"
    )
    raise_limit = "Raise ANVIL_DEVICE_MEMORY if the host has more to give"
    if weights >= budget:
        raise ValueError(
            f"The weights of {config.model_config.model} alone take {weights / MIB:.0f} MiB, and "
            f"{device}. {raise_limit}, or cut the model over devices with --tensor-parallel-size "
            "or --pipeline-parallel-size."
        )
    raise ValueError(
        f"One request of max_model_len={length} takes {token * length / MIB:.0f} MiB of KV cache "
        f"beside {weights / MIB:.0f} MiB of weights, and {device}. Set --max-model-len to at most "
        f"{(budget - weights) // token}, less what activations take, or let vLLM choose with "
        f"--max-model-len -1. {raise_limit}."
    )


def weight_bytes(config: VllmConfig) -> int:
    """At least so many bytes of weights on each device; 0 where it cannot be told."""
    model, directory = config.model_config, Path(config.model_config.model)
    if (
        config.load_config.load_format not in ("auto", "hf", "safetensors")
        or model.quantization is not None
        or model.multimodal_config is not None
        or not directory.is_dir()
    ):
        return 0
    elements = sum(
        math.prod(shape) for name, shape in _tensors(directory) if not _is_left_out(name, model)
    )
    parallel = config.parallel_config
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return elements * get_dtype_size(model.dtype) // ranks


def _tensors(directory: Path) -> Iterator[tuple[str, list[int]]]:
    """Name and shape of every tensor, each name once: some checkpoints come in two layouts."""
    seen = set()
    for file in sorted(directory.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name != "__metadata__" and name not in seen:
                seen.add(name)
                yield name, tensor["shape"]


def _is_left_out(name: str, model: ModelConfig) -> bool:
    """Whether the engine may not load a tensor: a head that is the embedding, layers of a
    draft model behind the last one, and tables that are computed."""
    text = model.hf_text_config
    if name == "lm_head.weight":
        return bool(getattr(text, "tie_word_embeddings", False))
    if not name.endswith((".weight", ".bias")):
        return True
    layers = getattr(text, "num_hidden_layers", None)
    number = re.search(r"\.layers\.(\d+)\.", f".{name}")
    return layers is not None and number is not None and int(number[1]) >= layers


def cache_bytes_per_token(config: VllmConfig) -> int:
    """Bytes of KV cache that each further token of a request takes on each device; 0 where layers
    keep different amounts."""
    model, cache = config.model_config, config.cache_config
    text = model.hf_text_config
    layer_types: set[str] = set(getattr(text, "layer_types", None) or ())
    if (
        model.original_max_model_len == -1
        or model.runner_type != "generate"
        or model.is_attention_free
        or model.is_encoder_decoder
        or model.get_sliding_window() is not None
        or model.attention_chunk_size is not None
        or layer_types - {"full_attention"}
        or getattr(text, "num_kv_shared_layers", None)
        or cache.kv_cache_memory_bytes is not None
        or cache.num_gpu_blocks_override is not None
    ):
        return 0
    dtype = STR_DTYPE_TO_TORCH_DTYPE.get(cache.cache_dtype, model.dtype)
    # Of a pipeline's stages one has at least so many.
    layers = model.get_total_num_hidden_layers() // config.parallel_config.pipeline_parallel_size
    heads = model.get_num_kv_heads(config.parallel_config)
    return 2 * layers * heads * model.get_head_size() * get_dtype_size(dtype)
