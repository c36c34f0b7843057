# SPDX-License-Identifier: Apache-2.0
"""The worker: one process, or one part of it, that drives one device.

It is the engine's GPU worker, with the device brought up by other names and the promises of
vLLM's plugin document kept where the base class does not keep them. What it inherits on purpose
is listed in tests/plugin/test_contract.py.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import CUDAGraphMode
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.platforms.interface import set_assigned_physical_gpu_ids
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.utils.mem_utils import MemorySnapshot, format_gib
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as GPUModelRunnerV2
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory

import vllm_anvil.device as anvil
from vllm_anvil import envs
from vllm_anvil.plugin import (
    custom_ops,
    device_profiler,
    seams,
    sharded_state,
    sleep_mode,
    weight_transfer,
)
from vllm_anvil.plugin.observability.telemetry import Telemetry
from vllm_anvil.plugin.recording_worker import RecordingWorker
from vllm_anvil.plugin.sleep_mode import TAGS, WEIGHTS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

    from vllm_anvil.plugin.model_runner import AnvilModelRunner, AnvilModelRunnerV1

logger = init_logger("vllm.plugins.anvil.worker")


@contextlib.contextmanager
def _garbage_only_when_asked_for() -> Iterator[None]:
    """Inside, what is captured into graphs is not interrupted by Python's garbage collection."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class AnvilWorker(RecordingWorker):
    """A rank of the engine on one anvil device."""

    _telemetry: Telemetry | None = None
    _sleep_mode_backend: Any = None  # until the engine asks for it
    profiler: Any  # the engine's

    @staticmethod
    def model_runner_path(vllm_config: VllmConfig) -> str:
        """Path of the class that runs the model, for whoever asks without starting a worker."""
        name = "AnvilModelRunner" if vllm_config.use_v2_model_runner else "AnvilModelRunnerV1"
        return f"vllm_anvil.plugin.model_runner.{name}"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.apply(seams.WORKER)
        custom_ops.register()
        sleep_mode.register()
        weight_transfer.register()
        # When a process ends, Python looks for garbage in all that the engine has loaded, several
        # times over: seconds in which vLLM may lose patience and kill it. None has to be found.
        atexit.register(gc.freeze)
        # So does the engine, twenty times while it starts, a third of a second each: what has been
        # imported is set aside, and not brought back around captures.
        os.environ.setdefault("VLLM_ENABLE_CUDAGRAPH_GC", "1")
        gc.freeze()
        super().__init__(*args, **kwargs)

    # ------------------------------------------------------------------ bringing the device up

    def init_device(self) -> None:
        """Takes the rank's device, joins the process groups, and sizes the memory to use.

        Raises ValueError when there is no device for the rank, when the model's dtype is not
        supported, or when less memory is free than `gpu_memory_utilization` asks for.
        """
        self.device = self._take_device()
        current_platform.check_if_supports_dtype(self.model_config.dtype)

        # Before the memory snapshot, so that what communication holds is counted as taken. The
        # engine's process groups derive their device from the local rank they are given, which
        # for a device outside CUDA is the index that this process sees.
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.device.index,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)

        gc.collect()
        torch.accelerator.empty_cache()
        external_weights = get_model_loader(self.load_config).get_external_weight_memory(
            self.vllm_config
        )
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(
            self.init_snapshot, self.cache_config, external_weights
        )
        logger.debug("Memory of %s at start: %r", self.device, self.init_snapshot)
        self._init_workspace_and_model_runner()
        logger.info(
            "%s on device=%s: %s, %s GiB of %s GiB to use, model runner %s (%s)",
            type(self).__name__,
            self.device,
            current_platform.get_device_name(self.device.index),
            format_gib(self.requested_memory),
            format_gib(self.init_snapshot.total_memory),
            "V2" if self.use_v2_model_runner else "V1",
            type(self.model_runner).__name__,
        )

    def _take_device(self) -> torch.device:
        """The device of this rank, made current.

        The engine assigns each of its data-parallel replicas a slice of the devices; only where it
        starts no replica itself does the rank have to count past those before it.
        """
        parallel = self.parallel_config
        assigned = parallel.assigned_physical_gpu_ids
        if assigned is not None:
            set_assigned_physical_gpu_ids(assigned)
            present = len(assigned)
        else:
            present = torch.accelerator.device_count()
            if (
                parallel.distributed_executor_backend != "external_launcher"
                and parallel.nnodes_within_dp == 1
            ):
                replica = parallel.data_parallel_rank_local
                if replica is None:
                    replica = parallel.data_parallel_index
                self.local_rank += replica * parallel.world_size
        if self.local_rank >= present:
            raise ValueError(
                f"Rank {self.rank} is number {self.local_rank + 1} on this host, and there "
                f"{'is' if present == 1 else 'are'} {present} anvil device"
                f"{'' if present == 1 else 's'} for it. Set ANVIL_DEVICES={self.local_rank + 1}, "
                "or start fewer ranks."
            )
        index = current_platform.logical_device_id_to_visible_device_id(self.local_rank)
        device = torch.device("anvil", index)
        torch.accelerator.set_device_index(device)
        # A data-parallel replica of a dense model does not know of the others, but has its slice.
        several = parallel.world_size_across_dp > 1 or assigned is not None
        # Cores that are the host's are there for Python, whichever of them is free.
        if several and not envs.ANVIL_HOST_CORES:
            # PyTorch's threads inherit this; the device's own workers are bound by the runtime.
            os.sched_setaffinity(0, anvil.get_device_properties(index).cores)
        return device

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        gc.freeze()  # the model runner's modules; not the model, which may go
        super().load_model(*args, **kwargs)

    def _make_model_runner(self) -> AnvilModelRunner | AnvilModelRunnerV1:
        runner = resolve_obj_by_qualname(self.model_runner_path(self.vllm_config))
        return runner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        """Memory allocated inside is accounted under `tag`: "weights", "kv_cache" and so on."""
        return anvil.memory_tag(tag)

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what is left of the memory to use after the weights, the largest
        step and the graphs, which the engine estimates on CUDA and XPU devices only."""
        available = super().determine_available_memory()
        runner = self.model_runner
        if isinstance(runner, GPUModelRunnerV2) and self.cache_config.kv_cache_memory_bytes is None:
            with _garbage_only_when_asked_for():
                self.cudagraph_memory_estimate = runner.profile_cudagraph_memory()
            available -= self.cudagraph_memory_estimate
        return available

    def compile_or_warm_up_model(self) -> Any:
        with _garbage_only_when_asked_for():
            result = super().compile_or_warm_up_model()
        self._telemetry = Telemetry(self)
        return result

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int = 0) -> None:
        """Records the size of the cache, in blocks. vLLM's document promises the call; the engine
        sizes the cache through `initialize_from_config` instead."""
        self.cache_config.num_gpu_blocks = num_gpu_blocks
        self.cache_config.num_cpu_blocks = num_cpu_blocks

    # ------------------------------------------------------------------ while it runs

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """A step's forward pass, which is counted."""
        self._need(*TAGS)
        output = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        if self._telemetry is not None and tokens:
            # Until the step is sampled from; a pooling model's has been by now.
            state = getattr(self.model_runner, "execute_model_state", None)
            notes = None if state is None else state.cudagraph_stats
            replayed = notes is not None and notes.runtime_mode == CUDAGraphMode.FULL.name
            self._telemetry.step(tokens, replayed)
        return output

    def anvil_report(self) -> dict[str, Any]:
        """What the worker runs with and what it has done, of JSON's types: for the routes below
        /anvil/, and for `collective_rpc("anvil_report")` of any engine."""
        if self._telemetry is None:
            raise RuntimeError(f"the worker of rank {self.rank} is not ready yet")
        return self._telemetry.report()

    def profile(self, is_start: bool = True, *args: Any, **kwargs: Any) -> None:
        """Starts or ends a trace of this rank, with what the device runs in it. Raises RuntimeError
        where no profiler is configured."""
        if is_start and self.profiler is None:
            self.profiler = device_profiler.of_worker(
                self.profiler_config, self.device, self.local_rank
            )
        super().profile(is_start, *args, **kwargs)

    def check_health(self) -> None:
        """Waits for the device. Raises RuntimeError, which names it, when work on it failed."""
        try:
            torch.accelerator.synchronize(self.device)
        except RuntimeError as error:
            raise RuntimeError(f"{self.device} of rank {self.rank} is not well: {error}") from error

    # ------------------------------------------------------------------ asleep

    def wakeup(self, tags: list[str] | None = None) -> None:
        """`wake_up`, under the name that vLLM's document uses."""
        self.wake_up(tags)

    def _need(self, *tags: str) -> None:
        """Raises RuntimeError where the memory under one of the tags is asleep."""
        backend = self._sleep_mode_backend
        asleep = [tag for tag in tags if backend is not None and tag in backend.asleep]
        if asleep:
            raise RuntimeError(
                f"{self.device} of rank {self.rank} is asleep: its {' and '.join(asleep)} are not "
                "in memory. Call wake_up() before."
            )

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        self._need(WEIGHTS)
        super().reload_weights(*args, **kwargs)

    def compute_weight_checksums(self) -> dict[str, str]:
        self._need(WEIGHTS)
        return super().compute_weight_checksums()

    def reset_weights(self) -> None:
        self._need(WEIGHTS)
        super().reset_weights()

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Writes the weights of this rank to files in the folder `path`, at most `max_size` bytes
        in each, for `load_format="sharded_state"`. Raises OSError where they cannot be written."""
        self._need(WEIGHTS)
        sharded_state.save(self.get_model(), path, pattern, max_size)

    def save_tensorized_model(self, tensorizer_config: Any) -> None:
        raise NotImplementedError(
            "save_tensorized_model is not available: the serialiser reads a weight's memory, where "
            "packed weights are not what they are. Use save_sharded_state, and load by "
            "load_format=sharded_state"
        )

    def execute_dummy_batch(self) -> None:
        self._need(*TAGS)
        super().execute_dummy_batch()

    # ------------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """Releases the model, the KV cache and the memory they held. May be called again, and
        after a start that failed half-way."""
        if self._telemetry is not None:
            self._telemetry.close()
            self._telemetry = None
        super().shutdown()
        self.model_runner = None
        gc.collect()
        if self.device is not None:
            torch.accelerator.empty_cache()
