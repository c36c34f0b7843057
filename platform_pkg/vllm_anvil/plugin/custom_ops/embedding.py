# SPDX-License-Identifier: Apache-2.0
"""The token embedding, where the hidden states of a model begin and get their dtype."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

import vllm_anvil.ops  # noqa: F401  registers torch.ops.anvil
from vllm_anvil.ops.packed_weight import PackedWeight
from vllm_anvil.plugin.op_arguments import DEVICES, INDEX_DTYPES, note_fallback, takes


class AnvilVocabParallelEmbedding(VocabParallelEmbedding):
    """vLLM's embedding, which can start the hidden states in float32 (seams/hidden_states.py): rows
    are looked up and widened in one pass.

    A rank of a tensor-parallel group holds a shard of the rows. For an id of another rank it looks
    up row 0 and gives zeros, which the sum over the ranks leaves out; so no rank reads outside its
    shard, whatever the ids.
    """

    hidden_dtype: torch.dtype | None = None  # None: the weight's

    def forward(self, input_: Tensor) -> Tensor:
        """Ids [...] of any integer dtype -> hidden states [..., embedding_dim]."""
        method = type(self.quant_method)
        if not (
            method is UnquantizedEmbeddingMethod
            and takes(self.weight)
            and input_.device.type in DEVICES
        ):
            weight = getattr(self, "weight", None)
            note_fallback(f"VocabParallelEmbedding by {method.__name__}", ids=input_, weight=weight)
            hidden = super().forward(input_)
            return hidden if self.hidden_dtype is None else hidden.to(self.hidden_dtype)
        ids = input_ if input_.dtype in INDEX_DTYPES else input_.long()
        if self.tp_size == 1:
            return self._rows(ids)
        row, elsewhere = self._local_rows(ids)
        hidden = self._rows(row).masked_fill_(elsewhere.unsqueeze(-1), 0)
        if not self.reduce_results:
            return hidden
        if self.parallel_group is not None:
            return self.parallel_group.all_reduce(hidden)
        return tensor_model_parallel_all_reduce(hidden)

    def _rows(self, index: Tensor) -> Tensor:
        weight = self.weight
        if isinstance(weight, PackedWeight):  # the head's, too (plugin/seams/weight_packing.py)
            return torch.ops.anvil.packed_embedding.default(
                index, weight.packed, *weight.shape, self.hidden_dtype
            )
        return torch.ops.anvil.embedding.default(index, weight, self.hidden_dtype)

    def _local_rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id in this rank's shard, 0 for those that it does not hold; and which
        these are. A shard is rows of the original vocabulary, padding, then rows of added ids."""
        shard = self.shard_indices
        row = ids - shard.org_vocab_start_index
        held = (row >= 0) & (row < shard.num_org_elements)
        if shard.num_added_elements > 0:
            added = ids - shard.added_vocab_start_index
            is_added = (added >= 0) & (added < shard.num_added_elements)
            row = torch.where(is_added, added + shard.num_org_elements_padded, row)
            held = held | is_added
        return row * held, ~held
