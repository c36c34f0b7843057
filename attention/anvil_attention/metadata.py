# SPDX-License-Identifier: Apache-2.0
"""What the attention layers of one step need to know about its batch, and how it is built."""

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec, KVCacheSpec

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
    block_size: int


@dataclass
class AnvilAttentionMetadata(AttentionMetadata):
    """One step's batch, shared by the layers of a KV cache group.

    Tensors are the engine's own buffers and hold this step's values until the next one is
    prepared. Rows beyond `query_start_loc[-1]` and requests without query tokens are padding.

    Nothing here waits for the device until `seq_lens_host` is asked for, which the reference does.
    """

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # [num_reqs + 1] int32, on the device
    seq_lens: torch.Tensor  # [num_reqs] int32, on the device
    block_table: torch.Tensor  # [num_reqs, max_blocks] int32, on the device
    slot_mapping: torch.Tensor  # [num_actual_tokens] int64, on the device; negative: padding
    causal: bool | torch.Tensor  # or [num_reqs], per request
    query_start_loc_cpu: torch.Tensor  # [num_reqs + 1], on the host
    # [num_reqs], on the host: exact where their maximum is `max_seq_len`. None: bounds only.
    seq_lens_cpu: torch.Tensor | None
    _plans: dict[LayerGeometry, BatchPlan] = field(default_factory=dict, repr=False)
    _checked: set[tuple[int, int, bool]] = field(default_factory=set, repr=False)

    @cached_property
    def query_start_loc_host(self) -> list[int]:
        return self.query_start_loc_cpu.tolist()

    @cached_property
    def seq_lens_host(self) -> list[int]:
        """Exact lengths; waits for the device where they are known there alone.

        The engine's host copy is an upper bound. It is exact without speculative decoding, unless
        a builder that wraps ours has lengthened the sequences on the device: such a builder raises
        `max_seq_len` as well, which tells.
        """
        if self.seq_lens_cpu is not None and self.seq_lens_cpu.numel() > 0:
            lens: list[int] = self.seq_lens_cpu.tolist()
            if max(lens) == self.max_seq_len:
                return lens
        return self.seq_lens.tolist()

    @cached_property
    def over_own_keys(self) -> "AnvilAttentionMetadata":
        """The batch of encoders, which have no cache: a request's keys are its own query rows.

        The rows lie packed, request after request. They are a cache of blocks of one token, where
        a request's blocks follow one another.
        """
        starts = self.query_start_loc
        following = torch.arange(self.max_query_len, dtype=starts.dtype, device=starts.device)
        return replace(
            self,
            max_seq_len=self.max_query_len,
            seq_lens=starts.diff(),
            block_table=starts[:-1, None] + following,
            causal=False,
            seq_lens_cpu=self.query_start_loc_cpu.diff(),
            _plans={},
            _checked=set(),
        )

    def forget_lengths(self) -> None:
        """Has lengths that were read on the host be read anew: those of the device have changed."""
        self.__dict__.pop("seq_lens_host", None)
        self._plans.clear()
        self._checked.clear()

    def check_block_table(self, num_blocks: int, block_size: int, *, wait: bool) -> None:
        """Refuses a block outside a cache of this size, by the first layer of a step only.

        Args:
            wait: for the answer, on behalf of an implementation that reads blindly what the table
                says: what depends on values is raised by the next wait for a stream, and later
                commands still run. Without it the check is made where the device has a kernel for
                it; elsewhere it costs more than the reference takes, whose gathers refuse what
                lies outside the memory themselves.

        In a capture nothing can wait: the check becomes part of the graph, and what it finds in a
        replay is raised by the next wait.

        Raises:
            IndexError: it names the request and the block.
        """
        device_type = self.block_table.device.type
        capturing = _is_capturing(device_type)
        key = (num_blocks, block_size, capturing)
        if key in self._checked:
            return
        wait = wait and not capturing
        if wait or _checks_natively(device_type):
            torch.ops.anvil.check_block_table(
                self.block_table, self.query_start_loc, self.seq_lens, block_size, num_blocks
            )
            if wait and device_type != "cpu":
                torch.accelerator.current_stream().synchronize()
        self._checked.add(key)

    def plan(self, geometry: LayerGeometry) -> BatchPlan:
        """The batch cut into tiles, once for all layers of a geometry."""
        if geometry not in self._plans:
            self._plans[geometry] = plan_batch(
                self.query_start_loc_host,
                self.seq_lens_host,
                self.block_table,
                geometry.block_size,
                num_heads=geometry.num_heads,
                num_kv_heads=geometry.num_kv_heads,
                head_size=geometry.head_size,
                causal=self.causal,
                sliding_window=geometry.sliding_window,
            )
        return self._plans[geometry]


@cache
def _checks_natively(device_type: str) -> bool:
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("anvil::check_block_table", key)


def _is_capturing(device_type: str) -> bool:
    return device_type != "cpu" and getattr(torch, device_type).is_current_stream_capturing()


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
    # One graph for all steps of a draft, then.
    supports_draft_decode_metadata_update: bool = True

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
                self._admit(layers[name])

    def _admit(self, layer: Any) -> None:
        """Asks the attention that is served for a layer, all of whose sizes are known by now."""
        layer.impl.admit(self.vllm_config, layer.head_size_v, self.kv_cache_spec.block_size)

    @classmethod
    def get_cudagraph_support(
        cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec
    ) -> AttentionCGSupport:
        """What the implementation that is served says of itself. The reference plans its tiles on
        the host for each step, which a graph cannot repeat."""
        if isinstance(kv_cache_spec, EncoderOnlyAttentionSpec):
            # `over_own_keys` is made anew for each step, a graph would keep that of its capture.
            return AttentionCGSupport.NEVER
        return _GRAPH_SUPPORT[served().implementation.graph_support]

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AnvilAttentionMetadata:
        """The metadata of one step. Waits for nothing and copies nothing."""
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
            query_start_loc_cpu=common.query_start_loc_cpu,
            seq_lens_cpu=None if self._speculates else common.seq_lens_cpu_upper_bound,
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

    def update_draft_decode_metadata(self, metadata: AnvilAttentionMetadata) -> None:
        """Makes a draft's metadata that of its next step, whose lengths and slots lie in the same
        buffers."""
        metadata.forget_lengths()
