# SPDX-License-Identifier: Apache-2.0
"""The token embedding, where the hidden states of a model begin and get their dtype."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


class AnvilVocabParallelEmbedding(VocabParallelEmbedding):
    """vLLM's embedding, which can start the hidden states in float32 (plugin/precision.py)."""

    hidden_dtype: torch.dtype | None = None  # None: the weight's

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_)
        return hidden if self.hidden_dtype is None else hidden.to(self.hidden_dtype)
