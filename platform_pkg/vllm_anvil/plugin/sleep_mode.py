# SPDX-License-Identifier: Apache-2.0
"""Sleep mode: an idle engine's weights and KV cache go back to the operating system.

A mechanism of the engine's own kind (`vllm.device_allocator.sleep_mode_backend`), chosen whenever
sleep mode is asked for. Device memory is host memory, so what a GPU's engine does at level 1, to
move weights to the host's memory, would return nothing: they go to disk here
(`ANVIL_SLEEP_FOLDER`). Tensors keep their addresses, so that captured graphs and packed weights are
as they were when the engine wakes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory
from vllm.logger import init_logger
from vllm.utils.mem_utils import format_gib

import vllm_anvil.device as anvil
from vllm_anvil import envs

logger = init_logger("vllm.plugins.anvil.sleep_mode")

NAME = "anvil"
WEIGHTS, KV_CACHE = TAGS = ("weights", "kv_cache")


class AnvilSleepMode(SleepModeBackend):
    """Of one worker, whose device is the current one."""

    def __init__(self) -> None:
        super().__init__()
        self._asleep: list[str] = []

    @property
    def asleep(self) -> list[str]:
        """Tags whose memory is away."""
        return list(self._asleep)

    def suspend(self, level: int = 1) -> None:
        """Gives weights (level 1: kept on disk; 2: discarded) and KV cache (discarded) away.

        Raises:
            RuntimeError: the weights cannot be written; then the worker is awake as before.
        """
        # First what may fail.
        self._suspend([WEIGHTS], envs.ANVIL_SLEEP_FOLDER if level == 1 else None)
        self._suspend([KV_CACHE], None)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Gives the memory of these tags away, without its contents."""
        self._suspend(tags, None)

    def _suspend(self, tags: Iterable[str], folder: str | None) -> None:
        for tag in tags:
            if tag in self._asleep:
                continue
            begin = time.perf_counter()
            try:
                bytes_ = anvil.suspend_memory(tag, folder)
            except RuntimeError as error:
                raise RuntimeError(
                    f"{error} Set ANVIL_SLEEP_FOLDER to a folder on a disk with room for them, or "
                    "use level 2, which discards weights. Until wake_up() the engine is paused."
                ) from error
            self._asleep.append(tag)
            self._state = "SUSPENDED"
            logger.info(
                "%s GiB of %s %s in %.2f s.",
                format_gib(bytes_),
                tag,
                "discarded" if folder is None else f"written to {folder}",
                time.perf_counter() - begin,
            )

    def resume(self, tags: list[str] | None = None) -> None:
        """Brings these tags back; None: all.

        Raises:
            torch.OutOfMemoryError, RuntimeError: the memory is not there any more, or the disk
                cannot be read. What is not back is asleep as before: one can ask again.
        """
        for tag in [one for one in self._asleep if tags is None or one in tags]:
            self._state = "RESUMING"
            begin = time.perf_counter()
            try:
                bytes_ = anvil.resume_memory(tag)
            except BaseException:
                self._state = "SUSPENDED"
                raise
            self._asleep.remove(tag)
            logger.info(
                "%s GiB of %s are back in %.2f s.",
                format_gib(bytes_),
                tag,
                time.perf_counter() - begin,
            )
        self._state = "SUSPENDED" if self._asleep else "RUNNING"

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return True


def register() -> None:
    """Makes the mechanism known in this process. May be called again."""
    try:
        SleepModeBackendFactory.register_backend(NAME, __name__, AnvilSleepMode.__name__)
    except ValueError:
        if SleepModeBackendFactory.get_backend_class(NAME) is not AnvilSleepMode:
            raise
