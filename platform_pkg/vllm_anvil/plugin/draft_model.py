# SPDX-License-Identifier: Apache-2.0
"""A model and the one that drafts for it, adapted to the device once both are loaded.

EAGLE heads and MTP modules use embedding and language-model head of the model that they draft for,
and are given its hidden states: the two are adapted as one, so that no weight is packed twice and
hidden states have one dtype on both sides. A draft model that shares nothing is one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from vllm_anvil.plugin import seams
from vllm_anvil.plugin.seams.hidden_states import is_widened

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def adapt(model: nn.Module, speculator: Any, config: VllmConfig) -> None:
    """Applies the seams of a loaded model to `model` and to the draft model of a speculator of
    Model Runner V2, which may be None or one that drafts without a model."""
    if not isinstance(speculator, DraftModelSpeculator):
        seams.adapt(model, config)
        return
    draft = speculator.model
    if set(model.modules()) & set(draft.modules()):
        seams.adapt(nn.ModuleList([model, draft]), config)
    else:
        seams.adapt(model, config)
        seams.adapt(draft, config)
    if is_widened(draft):
        _widen_buffers(speculator)


def _widen_buffers(speculator: DraftModelSpeculator) -> None:
    """Gives a speculator buffers of what its model computes now: the hidden states of one step,
    which are those of the next, and logits, which verification compares with the model's. They were
    made with the dtype of the model's weights."""
    for name in ("hidden_states", "draft_logits"):
        buffer = getattr(speculator, name, None)
        if buffer is not None:
            setattr(speculator, name, buffer.to(torch.float32))
