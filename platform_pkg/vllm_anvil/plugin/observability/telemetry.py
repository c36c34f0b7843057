# SPDX-License-Identifier: Apache-2.0
"""A worker's figures: counted in every step, and told in full when the worker is asked."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import vllm_anvil.device as anvil
from vllm_anvil.device.memory import memory_by_tag
from vllm_anvil.plugin.observability.pages import Figures, PageWriter
from vllm_anvil.plugin.op_arguments import fallbacks

if TYPE_CHECKING:
    from vllm_anvil.plugin.worker import AnvilWorker


class Telemetry:
    """Of a worker whose model is loaded and whose steps are captured."""

    def __init__(self, worker: AnvilWorker) -> None:
        assert worker.device is not None
        self._device = worker.device.index
        self._steps = self._tokens = self._replays = 0
        self._description = _describe(worker)
        self._page = PageWriter(worker.vllm_config, self._description)
        self._start = self._figures()
        self._page.write(self._start)

    def step(self, tokens: int, replayed: bool) -> None:
        """Counts a forward pass of so many tokens, which the device may still be running.

        Args:
            replayed: whether a graph was.
        """
        self._steps += 1
        self._tokens += tokens
        self._replays += replayed
        self._page.write(self._figures())

    def _figures(self) -> Figures:
        held = memory_by_tag(self._device).values()
        return Figures(
            steps=self._steps,
            tokens=self._tokens,
            graph_replays=self._replays,
            op_fallbacks=fallbacks.total(),
            cpu_seconds=time.process_time(),
            at_seconds=time.monotonic(),
            memory_allocated=sum(one["allocated_bytes"] for one in held),
            memory_reserved=sum(one["reserved_bytes"] for one in held),
            memory_limit=anvil.mem_get_info(self._device)[1],
        )

    def report(self) -> dict[str, Any]:
        """Everything there is to know, of JSON's types. Sizes are bytes."""
        free, limit = anvil.mem_get_info(self._device)
        return {
            **self._description,
            "at_start": vars(self._start),
            "figures": vars(self._figures()),
            "memory": {
                "limit": limit,
                "free": free,
                "peak_reserved": anvil.max_memory_reserved(self._device),
                "by_tag": memory_by_tag(self._device),
            },
            "op_fallbacks": [
                {"layer": layer, "reason": reason, "calls": calls}
                for (layer, reason), calls in fallbacks.most_common()
            ],
        }

    def close(self) -> None:
        """Removes what others can see of it."""
        self._page.close()


def _describe(worker: AnvilWorker) -> dict[str, Any]:
    """What does not change once the worker is ready."""
    config = worker.vllm_config
    properties = anvil.get_device_properties(worker.device.index)
    layers = config.compilation_config.static_forward_context.values()
    backends = {
        layer.get_attn_backend().get_name()
        for layer in layers
        if hasattr(layer, "get_attn_backend")
    }
    compilation = config.compilation_config
    captured = compilation.cudagraph_mode.name != "NONE"
    return {
        "rank": worker.rank,
        "pid": os.getpid(),
        "device": str(worker.device),
        "device_name": properties.name,
        "cores": len(properties.cores),
        "kernels": {
            "isa": anvil.active_isa(),
            "attention": sorted(backends),
            "attention_implementation": _attention_implementation(backends),
            "ir_ops": {
                op: list(providers)
                for op, providers in vars(config.kernel_config.ir_op_priority).items()
            },
            "model_runner": type(worker.model_runner).__name__,
        },
        "graphs": {
            "mode": compilation.cudagraph_mode.name,
            "captured_sizes": list(compilation.cudagraph_capture_sizes or []) if captured else [],
        },
    }


def _attention_implementation(backends: set[str]) -> str | None:
    """What computes attention within our backends; None for a model without attention of ours."""
    from vllm_anvil import envs

    return envs.ANVIL_ATTENTION_IMPL if any(one.startswith("ANVIL") for one in backends) else None
