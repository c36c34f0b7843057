# SPDX-License-Identifier: Apache-2.0
"""Recorded graphs, under torch.cuda's names.

A capture records what a stream gets and runs nothing; a replay runs the recorded commands on the
current stream without Python and without allocating. Tensors that a captured region makes live in
the arena of the graph's pool: their values exist after a replay, until another graph of the pool
is replayed. What changes between replays (inputs, lengths, block tables) is written into tensors
that were there before the capture.

Ops that need values on the host (`.item()`, masks as indices, copies from pageable memory) raise
inside a capture, and the capture is lost. An op that the device runs on PyTorch's CPU kernel can be
recorded once it is known what it allocates: run the region once before, as with torch.cuda.

Random ops draw when they run: each replay goes on with the generator where the draws before it
ended, exactly as the same ops would without a graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from vllm_anvil import _C
from vllm_anvil.device.devices import DeviceLike, device_index, synchronize
from vllm_anvil.device.memory import empty_cache
from vllm_anvil.device.streams import Stream, StreamContext

PoolId = tuple[int, int]


@dataclass(frozen=True)
class GraphNode:
    """One recorded command.

    Attributes:
        name: the op, such as "aten::add.Tensor", or what else it is ("memset", "zero fill").
        stream: id of the stream it was captured on.
        runs: replays that were timed.
        last_us, mean_us: microseconds of the last timed run and of all of them; 0 without any.
    """

    name: str
    stream: int
    runs: int
    last_us: float
    mean_us: float


class Graph(_C.Graph):
    """Commands of a stream, recorded once and replayed often; see the module's documentation.

    Use `torch.anvil.graph` to capture. Not thread-safe; graphs of one pool must not run at the same
    time.
    """

    def __init__(self, keep_graph: bool = False):
        """`keep_graph` is accepted as torch.cuda does: the nodes are kept in any case."""
        super().__init__()

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Records what the current stream gets, until `capture_end`.

        Args:
            pool: from `graph_pool_handle` or another graph's `pool`: share its memory.
            capture_error_mode: accepted as torch.cuda does; work of other threads and streams
                is never part of a capture and never disturbs it.
        """
        if capture_error_mode not in ("global", "thread_local", "relaxed", "default"):
            raise ValueError(f"unknown capture_error_mode {capture_error_mode!r}")
        super().capture_begin((0, 0) if pool is None else tuple(pool))

    def instantiate(self) -> None:
        """Does nothing: a captured graph is ready. There for code written for torch.cuda."""
        super().nodes()

    def nodes(self) -> list[GraphNode]:
        """The recorded commands in the order in which a replay runs them."""
        return [GraphNode(**node) for node in super().nodes()]

    def enable_debug_mode(self) -> None:
        """Replays from now on take the time of every node."""
        super().set_timing(True)

    def debug_dump(self, path: str | os.PathLike[str]) -> None:
        """Writes the nodes to `path` as a GraphViz file, with their times where they were taken.

        Raises RuntimeError when the file cannot be written.
        """
        super().debug_dump(os.fspath(path))

    def raw_cuda_graph(self) -> int:
        raise NotImplementedError("an anvil graph has no cudaGraph_t; see nodes()")


class graph:
    """Context manager that captures into a `Graph`.

    Waits for the device, returns cached memory, captures on `stream` or on a stream of its own.

    Args:
        cuda_graph: the `Graph` (the name is torch.cuda's).
        pool, capture_error_mode: see `Graph.capture_begin`.
        stream: where to capture.
    """

    _default_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: Graph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ):
        if stream is None:
            if graph._default_stream is None:
                graph._default_stream = Stream()
            stream = graph._default_stream
        self.anvil_graph = cuda_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self._stream = StreamContext(stream)

    def __enter__(self) -> None:
        synchronize()
        empty_cache()
        self._stream.__enter__()
        try:
            self.anvil_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._stream.__exit__()
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self.anvil_graph.capture_end()
        except RuntimeError:
            # What went wrong inside is the reason for this, and says more.
            if kind is None:
                raise
        finally:
            self._stream.__exit__()


def graph_pool_handle() -> PoolId:
    """An id for graphs that are to share their memory."""
    return _C.new_graph_pool_id()


def is_current_stream_capturing(device: DeviceLike = None) -> bool:
    """Whether the current stream is being captured."""
    return _C.is_stream_capturing(device_index(device))
