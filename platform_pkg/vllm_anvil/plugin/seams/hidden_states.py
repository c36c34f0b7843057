# SPDX-License-Identifier: Apache-2.0
"""Seam: in which dtype a half-precision model computes between its weights.

What vLLM does
    A model's layers hand each other hidden states in the dtype of its weights, and round every
    intermediate result to it: `VocabParallelEmbedding` begins them so,
    `vllm.model_executor.layers.logits_processor.LogitsProcessor` rounds the last ones,
    `RotaryEmbedding` rounds its table.
What is changed
    A model made of layers that follow their input's dtype gets float32 hidden states: weights, KV
    cache and nothing else are in half precision. They are what has to be small. Rounding every
    intermediate result to bfloat16 costs most of bfloat16's error: for SmolLM2-135M the
    log-probability of a token is then up to 0.28 from float32's, and nearly half of greedy
    continuations part from it within 32 tokens (docs/design/precision.md). Other models run as they
    were written, all stages of a pipeline alike. What a stage receives from the one before it is
    received in float32 then.
Checked against
    vllm 0.32.
Unnecessary when
    The engine has a setting for the dtype of hidden states.
Test that fails then
    tests/plugin/test_seams.py::test_hidden_states_is_needed
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import PPMissingLayer

from vllm_anvil.plugin.custom_ops.embedding import AnvilVocabParallelEmbedding
from vllm_anvil.plugin.custom_ops.experts import AnvilUnquantizedFusedMoEMethod
from vllm_anvil.plugin.custom_ops.norm import AnvilLayerNorm

logger = init_logger("vllm.plugins.anvil.hidden_states")

HALF = {torch.bfloat16, torch.float16}
NORMS = (RMSNorm, GemmaRMSNorm, AnvilLayerNorm)


def adapt(model: torch.nn.Module, config: VllmConfig) -> None:
    fits = may_widen(model)
    if config.parallel_config.pipeline_parallel_size > 1:
        fits = _agreed(fits)
    if fits:
        widen(model)


def may_widen(model: torch.nn.Module) -> bool:
    """Whether all layers of a half-precision model, or of this stage of it, allow float32 hidden
    states.

    They do not where a parameter lies outside the layers known to follow their input's dtype:
    torch's own layers, for one, insist on one dtype.
    """
    modules = list(model.modules())
    # A later stage of a pipeline begins with what it is sent.
    begins = (AnvilVocabParallelEmbedding, PPMissingLayer)
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if not any(isinstance(module, begins) for module in modules) or not dtypes & HALF:
        return False
    for name, module in model.named_modules():
        # Tables of whole numbers, as draft models have for their vocabularies, have no say.
        computes = any(p.is_floating_point() for p in module.parameters(recurse=False))
        if computes and not _follows_input(module):
            logger.info(
                "Hidden states stay in half precision: %s (%s) does not take any other dtype.",
                name,
                type(module).__name__,
            )
            return False
    return True


def _agreed(fits: bool) -> bool:
    """Whether it fits on every stage of the pipeline, all of which ask."""
    vote = torch.tensor([fits], dtype=torch.int32)
    dist.all_reduce(vote, dist.ReduceOp.MIN, group=get_pp_group().cpu_group)
    return bool(vote.item())


def widen(model: torch.nn.Module) -> None:
    """Makes hidden states float32."""
    for module in model.modules():
        make_received = getattr(module, "make_empty_intermediate_tensors", None)
        if make_received is not None:
            in_float32: Any = functools.partial(_in_float32, make_received)
            module.make_empty_intermediate_tensors = in_float32
        if isinstance(module, AnvilVocabParallelEmbedding):
            module.hidden_dtype = torch.float32
        elif isinstance(module, LogitsProcessor):
            # Otherwise it rounds the hidden states to the model's dtype. The product takes them as
            # they are, and its logits are float32 (seams/unquantized_gemm.py).
            module.head_dtype = None
        elif isinstance(module, RotaryEmbeddingBase) and hasattr(module, "cos_sin_cache"):
            # Computed in float32, then rounded: sines of large angles lose what positions need.
            device = module.cos_sin_cache.device
            with device:
                module.cos_sin_cache = module._compute_cos_sin_cache().to(device, torch.float32)
        elif isinstance(module, MLAAttention):
            # The engine multiplies both sides of the attention by parts of kv_b_proj with
            # torch.bmm, which takes one dtype; these parts are the layer's own from now on.
            module.process_weights_after_loading(torch.float32)
    logger.info("Hidden states are float32; weights and KV cache are half precision.")


def is_widened(model: torch.nn.Module) -> bool:
    """Whether hidden states of the model were made float32."""
    return any(
        isinstance(module, AnvilVocabParallelEmbedding) and module.hidden_dtype == torch.float32
        for module in model.modules()
    )


def _in_float32(make: Any, batch_size: int, dtype: torch.dtype, device: torch.device) -> Any:
    return make(batch_size, torch.float32, device)


def _follows_input(module: torch.nn.Module) -> bool:
    if isinstance(module, RoutedExperts):
        return isinstance(module.quant_method, AnvilUnquantizedFusedMoEMethod)
    if isinstance(module, LinearBase):
        return isinstance(module.quant_method, UnquantizedLinearMethod)
    return isinstance(module, (AnvilVocabParallelEmbedding, ParallelLMHead, MLAAttention, *NORMS))
