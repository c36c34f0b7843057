# SPDX-License-Identifier: Apache-2.0
"""What the attention layers of one step need to know about its batch, and how it is built."""

from dataclasses import dataclass, field, replace
from functools import cache

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheSpec

from .batch_plan import BatchPlan, plan_batch
from .contract import GraphSupport
from .serving import served


@dataclass(frozen=True)
class LayerGeometry:
    """What layers must have in common to share a plan."""

    num_heads: int
    num_kv_heads: int
    head_size: int  # the larger of a key's and a value's
    sliding_window: int | None
    block_size: int | None  # None: the layer reads the batch's own keys instead of a cache


@dataclass
class AnvilAttentionMetadata(AttentionMetadata):
    """One step's batch, shared by the layers of a KV cache group.

    Tensors are the engine's own buffers and hold this step's values until the next one is
    prepared. Rows beyond `query_start_loc_host[-1]` and requests without query tokens are padding.
    """

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # [num_reqs + 1] int32, on the device
    seq_lens: torch.Tensor  # [num_reqs] int32, on the device
    block_table: torch.Tensor  # [num_reqs, max_blocks] int32, on the device
    slot_mapping: torch.Tensor  # [num_actual_tokens] int64, on the device; negative: padding
    causal: bool | torch.Tensor  # or [num_reqs], per request
    query_start_loc_host: list[int]
    seq_lens_host: list[int]
    _plans: dict[LayerGeometry, BatchPlan] = field(default_factory=dict, repr=False)
    _checked: set[tuple[int, int]] = field(default_factory=set, repr=False)

    def check_block_table(self, num_blocks: int, block_size: int, *, read_blindly: bool) -> None:
        """Refuses a block outside a cache of this size, by the first layer of a step only.

        Without a native kernel for the device the check costs more than the reference takes, whose
        gathers refuse what lies outside the memory themselves; then it is made only for an
        implementation that reads blindly what the table says. That one also waits for it: what
        depends on values is raised by the next wait for a stream, and later commands still run.

        Raises:
            IndexError: it names the request and the block.
        """
        key = (num_blocks, block_size)
        if key in self._checked:
            return
        if read_blindly or _checks_natively(self.block_table.device.type):
            torch.ops.anvil.check_block_table(
                self.block_table, self.query_start_loc, self.seq_lens, block_size, num_blocks
            )
            if read_blindly and self.block_table.device.type != "cpu":
                torch.accelerator.current_stream().synchronize()
        self._checked.add(key)

    def plan(self, geometry: LayerGeometry) -> BatchPlan:
        """The batch cut into tiles, once for all layers of a geometry."""
        if geometry not in self._plans:
            self._plans[geometry] = self._build_plan(geometry)
        return self._plans[geometry]

    def _build_plan(self, geometry: LayerGeometry) -> BatchPlan:
        seq_lens, block_table, causal = self.seq_lens_host, self.block_table, self.causal
        if geometry.block_size is None:
            # The batch's own keys lie packed, request after request: a cache of blocks of one
            # token, where a request's blocks follow one another.
            starts = torch.tensor(self.query_start_loc_host)
            lens = starts.diff()
            block_table = (starts[:-1, None] + torch.arange(int(lens.max()))).to(block_table.device)
            seq_lens, causal = lens.tolist(), False
        return plan_batch(
            self.query_start_loc_host,
            seq_lens,
            block_table,
            geometry.block_size or 1,
            num_heads=geometry.num_heads,
            num_kv_heads=geometry.num_kv_heads,
            head_size=geometry.head_size,
            causal=causal,
            sliding_window=geometry.sliding_window,
        )


@cache
def _checks_natively(device_type: str) -> bool:
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("anvil::check_block_table", key)


# A step is planned on the host; what is left to the graph is the implementation's.
_GRAPH_SUPPORT = {
    GraphSupport.NEVER: AttentionCGSupport.NEVER,
    GraphSupport.UNIFORM_DECODE: AttentionCGSupport.UNIFORM_BATCH,
    GraphSupport.ALWAYS: AttentionCGSupport.ALWAYS,
}


class AnvilAttentionMetadataBuilder(AttentionMetadataBuilder[AnvilAttentionMetadata]):
    """Builds `AnvilAttentionMetadata` once per step and KV cache group."""

    # Decodes are found by their length, wherever they are in the batch.
    reorder_batch_threshold: int | None = None
    supports_update_block_table: bool = True

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._speculates = vllm_config.speculative_config is not None
        if not served().is_reference:
            layers = vllm_config.compilation_config.static_forward_context
            for name in layer_names:
                layer = layers[name]
                layer.impl.admit(vllm_config, layer.head_size_v, kv_cache_spec.block_size)

    @classmethod
    def get_cudagraph_support(
        cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec
    ) -> AttentionCGSupport:
        """What the implementation that is served says of itself. The reference plans its tiles on
        the host for each step, which a graph cannot repeat."""
        return _GRAPH_SUPPORT[served().implementation.graph_support]

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AnvilAttentionMetadata:
        """The metadata of one step; waits for the device only if lengths are known there alone."""
        common = common_attn_metadata
        return AnvilAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=int(common.max_query_len),
            max_seq_len=int(common.max_seq_len),
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            query_start_loc_host=common.query_start_loc_cpu.tolist(),
            seq_lens_host=self._seq_lens_on_host(common),
        )

    def update_block_table(
        self,
        metadata: AnvilAttentionMetadata,
        blk_table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> AnvilAttentionMetadata:
        """The same batch in another KV cache group."""
        return replace(
            metadata, block_table=blk_table, slot_mapping=slot_mapping, _plans={}, _checked=set()
        )

    def _seq_lens_on_host(self, common: CommonAttentionMetadata) -> list[int]:
        """Exact sequence lengths.

        The engine's host copy is an upper bound. It is exact without speculative decoding, unless
        a builder that wraps this one has lengthened the sequences on the device: such a builder
        raises `max_seq_len` as well, which tells.
        """
        bound = common.seq_lens_cpu_upper_bound
        if bound is not None and bound.numel() > 0 and not self._speculates:
            lens: list[int] = bound.tolist()
            if max(lens) == common.max_seq_len:
                return lens
        return common.seq_lens.tolist()
