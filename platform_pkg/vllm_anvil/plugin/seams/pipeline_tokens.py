# SPDX-License-Identifier: Apache-2.0
"""Seam: how sampled tokens reach the earlier stages of a pipeline.

What vLLM does
    `vllm.v1.worker.gpu.pp_utils.PPHandler.receive`, which every stage but the last calls at the end
    of a step, queues the broadcast of the step's tokens on a stream of its own, where it waits for
    the last stage while the main stream goes on. The tokens are needed as many steps later as the
    pipeline has stages (`get_prev_sampled_outputs`).
What is changed
    A device runs one command at a time, so a broadcast that is queued early keeps the stage from
    its next step until the last stage has sampled: stages would work one after the other. The
    broadcast is queued when its tokens are needed. The last stage broadcasts as before: into slots
    that the others read later.
Checked against
    vllm 0.32.
Unnecessary when
    The device runs commands of another stream while one waits for another rank.
Test that fails then
    tests/plugin/test_rank_seams.py::test_pipeline_tokens_is_needed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.pp_utils import PendingRecv, PPHandler, compute_need_sampled_mask


@dataclass
class _Awaited(PendingRecv):
    """A step's tokens that have not been received."""

    messages: list[torch.Tensor] = field(default_factory=list)  # in the order they are sent


class LatePPHandler(PPHandler):
    """Receives a step's tokens when they are asked for."""

    def receive(self, input_batch: InputBatch) -> bool:
        """Reserves the tokens of a step; whether every request of it will need its own.

        Steps without any request that does are not broadcast.
        """
        needed = compute_need_sampled_mask(input_batch)
        if needed is None:
            return False
        requests, drafts = input_batch.num_reqs, self.num_speculative_steps

        def empty(*size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=self.device)

        tokens = empty(requests, self.max_sample_len, dtype=torch.int64)
        counts = empty(2, requests, dtype=torch.int32)
        draft_tokens = empty(requests, drafts, dtype=torch.int64) if drafts > 0 else None
        self.queue[-1] = _Awaited(
            event=None,
            sampled_tokens=tokens,
            num_sampled=counts[0],
            num_rejected=counts[1],
            idx_mapping=input_batch.idx_mapping,
            idx_mapping_np=input_batch.idx_mapping_np,
            need_sampled_mask=needed,
            gen_at_receive_np=self.req_idx_gen_np[input_batch.idx_mapping_np],
            draft_tokens=draft_tokens,
            messages=[tokens, counts] if draft_tokens is None else [tokens, counts, draft_tokens],
        )
        return bool(needed.all())

    def get_prev_sampled_outputs(
        self, draft_tokens_to_update: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor] | None:
        """Receives the tokens of the step that is due, also where nobody needs them any more."""
        due = self.queue[0] if self.queue else None
        if isinstance(due, _Awaited):
            for message in due.messages:
                dist.broadcast(message, src=self.last_rank, group=self.broadcast_group)
            due.event = self.main_stream.record_event()
        return super().get_prev_sampled_outputs(draft_tokens_to_update)


def apply() -> None:
    names: Any = model_runner
    names.PPHandler = LatePPHandler
