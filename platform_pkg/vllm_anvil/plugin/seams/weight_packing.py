# SPDX-License-Identifier: Apache-2.0
"""Seam: the weights of linear layers, packed once a model is loaded.

What vLLM does
    A linear layer's weight stays as `vllm.model_executor.layers.linear.UnquantizedLinearMethod`
    makes it, rows of a checkpoint; `process_weights_after_loading` packs it on the engine's own CPU
    platform only.
What is changed
    A product streams its weight, and a weight that lies in the order of the product's kernel
    streams several times as fast. Layer by layer the parameter is replaced by a `PackedWeight` and
    its memory given back: at no time is more than one weight there twice. Where token embedding and
    language-model head are tied they stay one parameter, and the embedding reads its rows out of
    it. Left as they are: layers with quantisation, weights shared with a layer that is not known,
    an embedding that is only looked up, and `kv_b_proj` of multi-head latent attention, whose
    weight the attention reads and nobody multiplies with.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform what to do with weights that are loaded.
Test that fails then
    tests/plugin/test_seams.py::test_weight_packing_is_needed
"""

from __future__ import annotations

from collections import defaultdict

from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from vllm_anvil import envs
from vllm_anvil.ops.packed_weight import DTYPES, PackedWeight
from vllm_anvil.plugin.custom_ops.embedding import AnvilVocabParallelEmbedding

logger = init_logger("vllm.plugins.anvil.weight_packing")


def adapt(model: nn.Module, config: VllmConfig) -> None:
    pack(model)


def pack(model: nn.Module) -> int:
    """Packs what can be packed, and says how many weights that are.

    A weight that is packed already is left alone. ANVIL_PACK_WEIGHTS=0: nothing is packed.
    """
    if not envs.ANVIL_PACK_WEIGHTS:
        return 0
    read = {id(m.kv_b_proj) for m in model.modules() if isinstance(m, MLAAttention)}
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners[parameter].append((module, name))
    count = packed_bytes = 0
    # Every entry holds its parameter until it is done: one weight at a time is there twice.
    while owners:
        parameter, places = owners.popitem()
        modules = [module for module, _ in places]
        if not (
            _fits(parameter)
            and any(_multiplies(module) for module in modules)
            and all(
                name == "weight"
                and id(module) not in read
                and (_multiplies(module) or _looks_up(module))
                for module, name in places
            )
        ):
            continue
        packed = PackedWeight.of(parameter)
        for module, name in places:
            module._parameters[name] = packed  # type: ignore[assignment]
        count += 1
        packed_bytes += packed.packed.nbytes
        del parameter
    logger.info("Packed %d weights of linear layers, %.0f MiB.", count, packed_bytes / 2**20)
    return count


def _fits(parameter: nn.Parameter) -> bool:
    return (
        not isinstance(parameter, PackedWeight)
        and parameter.device.type == "anvil"
        and parameter.dtype in DTYPES
        and parameter.dim() == 2
        and parameter.numel() > 0
        and parameter.stride(1) == 1
    )


def _multiplies(module: nn.Module) -> bool:
    method = type(getattr(module, "quant_method", None))
    if isinstance(module, LinearBase):
        return method is UnquantizedLinearMethod
    return isinstance(module, ParallelLMHead) and method is UnquantizedEmbeddingMethod


def _looks_up(module: nn.Module) -> bool:
    method = type(getattr(module, "quant_method", None))
    return isinstance(module, AnvilVocabParallelEmbedding) and method is UnquantizedEmbeddingMethod
