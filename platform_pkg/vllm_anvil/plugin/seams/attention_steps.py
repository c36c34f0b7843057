# SPDX-License-Identifier: Apache-2.0
"""Seam: attention layers whose norms of queries and keys, rotary embedding and KV-cache write are
one op.

What vLLM does
    The attention modules of its models, `vllm.model_executor.models.llama.LlamaAttention` for one,
    call norms, rotary embedding and attention layer one by one. The engine fuses these by passes
    over a compiled graph (`RopeKVCacheFusionPass`, `QkNormRopeKvCachePattern`), which call the
    attention backend; nothing is compiled here.
What is changed
    Once a model is loaded, a module whose `forward` hands the results of its rotary embedding to
    its attention layer, and to nothing else, gets a `forward` that makes both calls by one step
    (plugin/layer_graph.py). The step is the backend's `fused_kv_cache_update`, and then the
    attention layer without a key and a value, which tells it that they are in the cache already.
    Where a call cannot be made at once (a run that has no cache yet, a dtype that the op does not
    take), the step calls the same layers one by one, as before. `ANVIL_LAYER_FUSION=0` leaves all
    modules as they are.
Checked against
    vllm 0.32.
Unnecessary when
    The engine's models call one layer for all of it, which a platform can replace.
Test that fails then
    tests/plugin/test_seams.py::test_attention_steps_is_needed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.v1.attention.backend import AttentionType

from vllm_anvil import envs
from vllm_anvil.plugin import layer_graph
from vllm_anvil.plugin.custom_ops import rotary as rotary_layers
from vllm_anvil.plugin.custom_ops.norm import AnvilGemmaRMSNorm, AnvilRMSNorm
from vllm_anvil.plugin.ir_kernels import PROVIDER
from vllm_anvil.plugin.op_arguments import DTYPES, note_fallback, takes, takes_in_place

logger = init_logger("vllm.plugins.anvil.attention_steps")


def adapt(model: nn.Module, config: VllmConfig) -> None:
    fuse(model, config)


def fuse(model: nn.Module, config: VllmConfig) -> list[str]:
    """Gives every attention module of the model that allows it one step for all that lies between
    its projection and its attention. Returns the names of these modules."""
    if not envs.ANVIL_LAYER_FUSION:
        return []
    own_norms = config.kernel_config.ir_op_priority.rms_norm[:1] == [PROVIDER]
    fused: list[str] = []
    for name, module in model.named_modules():
        children = dict(module.named_children())
        attentions = [n for n, child in children.items() if _writes_alone(child)]
        rotaries = [n for n, child in children.items() if _turns_by_op(child)]
        if len(attentions) != 1 or len(rotaries) != 1:
            continue
        step = _Step(children[attentions[0]], children[rotaries[0]])
        if step.rotary.head_size != step.attention.head_size:
            continue
        try:
            forward = layer_graph.rewrite(
                module,
                attentions[0],
                rotaries[0],
                step.run,
                step.takes_norms(module) if own_norms else _takes_none,
            )
        except layer_graph.Unfit as reason:
            logger.debug("%s (%s) keeps its ops apart: %s.", name, type(module).__name__, reason)
            continue
        module.forward = forward
        fused.append(name)
    if fused:
        logger.info("%d attention layers write queries, keys and values by one op.", len(fused))
    return fused


def _takes_none(*names: str) -> bool:
    return False


def _writes_alone(layer: nn.Module) -> bool:
    """Whether it is an attention layer that writes its own keys and values, by our backend."""
    return (
        type(layer) is Attention
        and layer.attn_type == AttentionType.DECODER
        and layer.kv_sharing_target_layer_name is None
        and layer.query_quant is None
        and not layer.attn_backend.forward_includes_kv_cache_update
        and hasattr(layer.impl, "fused_kv_cache_update")
        and layer.impl.fused_rope_kvcache_supported()
    )


def _turns_by_op(layer: nn.Module) -> bool:
    """Whether it is a rotary embedding of ours that is not turned off."""
    return isinstance(layer, RotaryEmbeddingBase) and rotary_layers.turns_by_table(layer)


@dataclass
class _Step:
    """What one attention module does between its projection and its output.

    Attributes:
        attention: the engine's attention layer.
        rotary: one of plugin/custom_ops/rotary.py.
        norms: of queries and keys, or None where the step does not norm.
    """

    attention: Any
    rotary: Any
    norms: tuple[Any, Any] | None = None

    def takes_norms(self, module: nn.Module) -> layer_graph.TakesNorms:
        """Makes two norms of a module a part of the step, if they are of a kind that the op
        computes, and if what they read is a new tensor."""

        def takes(*names: str) -> bool:
            layers: list[Any] = [module.get_submodule(name) for name in names]
            query_norm, key_norm, projection = layers
            if not (
                all(_norms_heads(norm, self.attention.head_size) for norm in layers[:2])
                and type(query_norm) is type(key_norm)
                and query_norm.variance_epsilon == key_norm.variance_epsilon
                # A layer with LoRA holds the one that it adds to.
                and isinstance(getattr(projection, "base_layer", projection), LinearBase)
            ):
                return False
            self.norms = (query_norm, key_norm)
            return True

        return takes

    def run(self, positions: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Any:
        """Queries and keys as the projection gives them -> what the attention layer gives.

        query, key and value: [num_tokens, heads * head_size] or [num_tokens, heads, head_size].
        """
        attention, slots = self.attention, None
        mapping = get_forward_context().slot_mapping
        if isinstance(mapping, dict):
            slots = mapping.get(attention.layer_name)
        if slots is None or not self._takes(positions, query, key, value, slots):
            return self._one_by_one(positions, query, key, value)
        rotary, norms = self.rotary, self.norms
        options: dict[str, Any] = {}
        if norms is not None:
            options = {
                "query_weight": _weight_of(norms[0]),
                "key_weight": _weight_of(norms[1]),
                "epsilon": norms[0].variance_epsilon,
                "weight_offset": 1.0 if isinstance(norms[0], AnvilGemmaRMSNorm) else 0.0,
            }
        if positions.dim() == 2:
            options |= {
                "mrope_section": rotary_layers.sections_of(rotary, positions),
                "mrope_interleaved": rotary.mrope_interleaved,
            }
        attention.impl.fused_kv_cache_update(
            query,
            key,
            value,
            positions,
            rotary.cos_sin_cache,
            rotary.is_neox_style,
            attention.kv_cache,
            slots,
            **options,
        )
        return attention(query, None, None)

    def _takes(
        self, positions: Tensor, query: Tensor, key: Tensor, value: Tensor, slots: Tensor
    ) -> bool:
        tokens, cache = positions.shape[-1], self.attention.kv_cache
        if (
            cache.dtype in DTYPES
            and rotary_layers.takes_positions(self.rotary, positions)
            and takes(value, self.rotary.cos_sin_cache)
            and takes_in_place(query, key)
            and query.dim() in (2, 3)
            and query.shape[0] == key.shape[0] == tokens
            and len(slots) <= tokens
        ):
            return True
        note_fallback("fused_kv_cache_update", positions=positions, query=query, key=key)
        return False

    def _one_by_one(self, positions: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Any:
        if self.norms is not None:
            size = self.attention.head_size
            query, key = (
                norm(states.unflatten(-1, (-1, size)) if states.dim() == 2 else states).view(
                    states.shape
                )
                for norm, states in zip(self.norms, (query, key), strict=True)
            )
        query, key = self.rotary(positions, query, key)
        return self.attention(query, key, value)


def _norms_heads(norm: nn.Module, head_size: int) -> bool:
    """Whether the op computes the norm, over a head."""
    return (
        type(norm) in (AnvilRMSNorm, AnvilGemmaRMSNorm)
        and norm._forward_method == norm.forward_oot
        and norm.weight.shape == (head_size,)
        and getattr(norm, "variance_size_override", None) is None
    )


def _weight_of(norm: Any) -> Tensor | None:
    return norm.weight if getattr(norm, "pass_weight", True) else None
