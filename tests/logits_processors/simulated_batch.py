# SPDX-License-Identifier: Apache-2.0
"""Steps of a model runner without a model: requests that come, wait, are pre-empted and finish.

What processors are given is built as the engine's documents describe it; what must come out is
computed by a function of one row's tokens, on the CPU.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from row_references import Reference
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)


@dataclass
class Request:
    prompt: list[int]
    arguments: dict[str, Any]
    output: list[int] = field(default_factory=list)
    # Tokens of prompt and output that have been computed since it entered the batch.
    computed: int = 0
    slot: int = -1

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class SimulatedBatch:
    """Slots with requests, and processors that see them.

    Args:
        make: classes of the processors.
        drafts: the most tokens that are drafted for a request in a step.
    """

    def __init__(
        self,
        make: list[type[LogitsProcessor]],
        device: str,
        vocabulary: int,
        drafts: int = 0,
        slots: int = 6,
        longest: int = 200,
        seed: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.device, self.vocabulary, self.drafts = torch.device(device), vocabulary, drafts

        def table(*shape: int) -> Any:
            # What no request has written must not matter.
            return SimpleNamespace(gpu=torch.full(shape, 10**6, dtype=torch.int32, device=device))

        self.states = LogitsProcRequestState(
            device=self.device,
            max_num_reqs=slots,
            vocab_size=vocabulary,
            all_token_ids=table(slots, longest),
            prompt_len=table(slots),
            prefill_len=table(slots),
            total_len=table(slots),
        )
        self.processors = [one(None, self.states) for one in make]
        self.free = list(range(slots))
        self.running: list[Request] = []

    def enter(self, request: Request) -> bool:
        """Gives a request a slot; whether any processor wants it."""
        request.slot = self.free.pop(self.random.randrange(len(self.free)))
        request.computed = 0
        self.running.append(request)
        params = SamplingParams(extra_args=request.arguments)
        for one in self.processors:
            one.validate_params(params)
        wanted = [one.add_request(request.slot, params) for one in self.processors]
        self.states.prompt_len.gpu[request.slot] = len(request.prompt)
        self.states.prefill_len.gpu[request.slot] = len(request.tokens)
        return any(wanted)

    def leave(self, request: Request) -> None:
        self.running.remove(request)
        self.free.append(request.slot)

    def step(self, reference: Reference) -> None:
        """One step of the requests in any order, each row held against `reference`."""
        order = self.random.sample(self.running, self.random.randint(1, len(self.running)))
        rows: list[tuple[Request, int, list[int]]] = []
        for request in order:
            total = len(request.tokens)
            left = total - request.computed
            # A prefill may be computed in parts; its last row is sampled from and thrown away.
            request.computed += left if left == 1 else self.random.randint(1, left)
            drafted: list[int] = []
            if self.drafts and request.computed == total and request.output:
                count = self.random.randint(0, self.drafts)
                drafted = [self.random.randrange(self.vocabulary) for _ in range(count)]
            rows += [(request, i, drafted) for i in range(len(drafted) + 1)]
            padded = torch.tensor(request.tokens, dtype=torch.int32)
            self.states.all_token_ids.gpu[request.slot, :total] = padded.to(self.device)
            self.states.total_len.gpu[request.slot] = total
        for one in self.processors:
            one.apply_staged_writes()

        seen = [(r.tokens + drafted)[: r.computed + i] for r, i, drafted in rows]
        logits = torch.randn(len(rows), self.vocabulary, generator=self.generator)
        expected = torch.stack(
            [
                reference(tokens, len(request.prompt), request.arguments, row.clone())
                for tokens, (request, _, _), row in zip(seen, rows, logits, strict=True)
            ]
        )
        found = logits.to(self.device)
        ctx = self._context(order, rows, seen)
        for one in self.processors:
            found = one.apply(found, ctx)
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)

        for request in order:
            if request.computed == len(request.tokens):
                # What is sampled is up to the test: any token shows the next step a new history.
                request.output.append(self.random.randrange(self.vocabulary))

    def _context(
        self, order: list[Request], rows: list[tuple[Request, int, list[int]]], seen: list
    ) -> LogitsContext:
        def on_device(values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(self.device)

        slots = [request.slot for request in order]
        longest = {request.slot: len(tokens) for (request, _, _), tokens in zip(rows, seen)}  # noqa: B905
        return LogitsContext(
            expanded_idx_mapping=on_device([request.slot for request, _, _ in rows]),
            idx_mapping=on_device(slots),
            idx_mapping_np=np.array(slots, dtype=np.intp),
            expanded_local_pos=on_device([i for _, i, _ in rows]),
            input_ids=on_device([tokens[-1] for tokens in seen]),
            pos=on_device([len(tokens) - 1 for tokens in seen], torch.int64),
            # A step may be replayed from a graph for more requests than there are.
            seq_lens_upper_bound_np=np.array(
                [*(longest[slot] for slot in slots), *[0] * self.random.randint(0, 2)], np.int32
            ),
        )

    def run(self, requests: list[Request], reference: Reference) -> int:
        """Serves all requests, with pre-emptions; returns how many there were."""
        waiting, pre_empted = list(requests), 0
        while waiting or self.running:
            while waiting and self.free and (not self.running or self.random.random() < 0.7):
                request = waiting.pop(0)
                wanted = self.enter(request)
                assert wanted == bool(request.arguments)
            self.step(reference)
            for request in list(self.running):
                if len(request.output) >= 12:
                    self.leave(request)
                elif self.random.random() < 0.05:
                    self.leave(request)
                    waiting.append(request)
                    pre_empted += 1
        return pre_empted
