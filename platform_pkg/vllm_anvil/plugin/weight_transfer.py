# SPDX-License-Identifier: Apache-2.0
"""Weights from a trainer to an engine that runs: the backend "anvil" of vLLM's weight-update API.

The transports that come with vLLM reach CUDA devices. Here a trainer and the engine's ranks share a
folder, in memory by default. The trainer writes some of its weights as a safetensors file, the
ranks read what they need of it, the file is deleted, and the next one comes. Nothing but names of
files goes through the engine's calls, so that these may come by HTTP.

The engine has `--weight-transfer-config '{"backend": "anvil"}'`; a trainer makes its side by
`WeightTransferTrainerFactory.trainer_init(AnvilTrainerInitInfo(rank=0), client=..., source=...)`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

from vllm_anvil.plugin.weight_parts import parts_of

NAME = "anvil"
IN_MEMORY = Path("/dev/shm")
CHUNK_BYTES = 256 << 20


# ------------------------------------------------------------------ a rank of the engine


@dataclass
class AnvilInitInfo(WeightTransferInitInfo):
    """folder: where the trainer's files will be, on the engine's host."""

    folder: str


@dataclass
class AnvilUpdateInfo(WeightTransferUpdateInfo):
    """file: name of a safetensors file in the folder, with weights by the checkpoint's names."""

    file: str


class AnvilWeightTransferEngine(WeightTransferEngine[AnvilInitInfo, AnvilUpdateInfo]):
    """Loads each file into the model as a checkpoint's: weights are packed again and stay at their
    addresses, where captured graphs find them."""

    init_info_cls = AnvilInitInfo
    update_info_cls = AnvilUpdateInfo
    _folder: Path | None = None

    def init_transfer_engine(self, init_info: AnvilInitInfo) -> None:
        """Raises ValueError where the folder is not there: the trainer may be on another host."""
        folder = Path(init_info.folder)
        if not folder.is_dir():
            raise ValueError(
                f"The trainer's folder {folder} is not on this host. Trainer and engine must share "
                "it: give AnvilTrainerInitInfo(folder=...) one that they do."
            )
        self._folder = folder

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: AnvilUpdateInfo) -> None:
        """Raises RuntimeError before `init_transfer_engine`, ValueError for a file that cannot be
        read or lies elsewhere."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        if self._folder is None:
            raise RuntimeError("init_weight_transfer_engine must be called before update_weights.")
        file = self._folder / update_info.file
        if file.parent != self._folder:
            raise ValueError(f"{update_info.file} is no name of a file in {self._folder}.")
        try:
            with safe_open(file, framework="pt") as weights, disable_mtp_completeness_check():
                names = weights.keys()
                self.model.load_weights((name, weights.get_tensor(name)) for name in names)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"The trainer's file {file} cannot be read: {error}") from error

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._folder = None


# ------------------------------------------------------------------ the trainer


@dataclass
class AnvilTrainerInitInfo(TrainerInitInfo):
    """
    Args:
        rank: of this trainer process; 0 sends.
        folder: that trainer and engine share; None: one in memory, gone with the trainer's engine.
        chunk_bytes: of weights in a file, at most, but for a weight that is larger.
    """

    backend: ClassVar[str] = NAME
    folder: str | None = None
    chunk_bytes: int = CHUNK_BYTES


class AnvilTrainerWeightTransferEngine(TrainerWeightTransferEngine[AnvilTrainerInitInfo]):
    """Sends the weights of a `WeightSource`, on each rank of a trainer. They may be on any device;
    ranks that do not send take part in gathering them."""

    init_info_cls = AnvilTrainerInitInfo

    def __init__(
        self, init_info: AnvilTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource
    ) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._chunk_bytes = init_info.chunk_bytes
        self._own: tempfile.TemporaryDirectory[str] | None = None
        if init_info.folder is None and self.is_sender:
            where = IN_MEMORY if IN_MEMORY.is_dir() else None
            self._own = tempfile.TemporaryDirectory(prefix="anvil-weights-", dir=where)
        self.folder = Path(self._own.name if self._own else init_info.folder or "")

    @classmethod
    def trainer_init(
        cls,
        init_info: AnvilTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        if source is None:
            raise ValueError('Weight transfer by "anvil" needs a WeightSource.')
        engine = cls(init_info, client, source)
        if engine.is_sender:
            client.init_weight_transfer_engine({"folder": str(engine.folder)})
        return engine

    def send_weights(self) -> None:
        """All weights, file by file. Where it fails, no file is left."""
        if not self.is_sender:
            for _ in self.source or ():
                pass
            return
        self.client.start_weight_update()
        for number, chunk in enumerate(parts_of(self._weights(), self._chunk_bytes)):
            file = self.folder / f"{number}.safetensors"
            try:
                save_file(chunk, file)
                self.client.update_weights({"file": file.name})
            finally:
                file.unlink(missing_ok=True)
        self.client.finish_weight_update()

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each in memory of its own: a file has no two tensors that share some."""
        for name, tensor in self.source or ():
            yield name, tensor.detach().cpu().clone(memory_format=torch.contiguous_format)

    def shutdown(self) -> None:
        if self._own is not None:
            self._own.cleanup()


def register() -> None:
    """Makes the backend known in this process. Doing it again changes nothing."""
    registries: tuple[tuple[Any, type], ...] = (
        (WeightTransferEngineFactory, AnvilWeightTransferEngine),
        (WeightTransferTrainerFactory, AnvilTrainerWeightTransferEngine),
    )
    for factory, engine in registries:
        if NAME not in factory._registry:
            factory.register_engine(NAME, engine)


# For a trainer, which imports this and no more of the plugin than it needs.
register()
