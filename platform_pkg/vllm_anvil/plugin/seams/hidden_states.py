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
    were written.
Checked against
    vllm 0.32.
Unnecessary when
    The engine has a setting for the dtype of hidden states.
Test that fails then
    tests/plugin/test_seams.py::test_hidden_states_is_needed
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from vllm_anvil.plugin.custom_ops.embedding import AnvilVocabParallelEmbedding
from vllm_anvil.plugin.custom_ops.norm import AnvilLayerNorm

logger = init_logger("vllm.plugins.anvil.hidden_states")

HALF = (torch.bfloat16, torch.float16)
NORMS = (RMSNorm, GemmaRMSNorm, AnvilLayerNorm)


def adapt(model: torch.nn.Module, config: VllmConfig) -> None:
    widen(model)


def widen(model: torch.nn.Module) -> bool:
    """Lets hidden states of a half-precision model be float32 where all its layers allow it.

    Returns whether they are. Nothing changes for a model that holds a parameter outside the layers
    known to follow their input's dtype: torch's own layers, for one, insist on one dtype.
    """
    embeddings = [m for m in model.modules() if isinstance(m, AnvilVocabParallelEmbedding)]
    if not embeddings or embeddings[0].weight.dtype not in HALF:
        return False
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not _follows_input(module):
            logger.info(
                "Hidden states stay in %s: %s (%s) does not take any other dtype.",
                embeddings[0].weight.dtype,
                name,
                type(module).__name__,
            )
            return False
    for embedding in embeddings:
        embedding.hidden_dtype = torch.float32
    for module in model.modules():
        if isinstance(module, LogitsProcessor):
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
    return True


def _follows_input(module: torch.nn.Module) -> bool:
    if isinstance(module, LinearBase):
        return isinstance(module.quant_method, UnquantizedLinearMethod)
    return isinstance(module, (AnvilVocabParallelEmbedding, ParallelLMHead, MLAAttention, *NORMS))
