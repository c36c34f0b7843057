# SPDX-License-Identifier: Apache-2.0
"""A device on which `vllm-anvil parity` and `bench` can call ops, in the process that does."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field


class Refused(Exception):
    """What was asked for cannot be done; the message says why.

    Attributes:
        status: the command's exit status: 2 where the request is wrong, otherwise 1.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class ReadyDevice:
    """Makes the ops of ``torch.ops.anvil`` callable on the device of that name.

    For anvil the native library is needed; for the CPU it is used where it is there.

    Attributes:
        isa: the active instruction set, or None where there are no native kernels.
        isas: those that this machine can run.
        native_missing: why the native library could not be loaded, if it was tried.

    Raises:
        Refused: the device cannot be used.
    """

    name: str
    isa: str | None = None
    isas: list[str] = field(default_factory=list)
    native_missing: str | None = None

    def __post_init__(self) -> None:
        kind = self.name.partition(":")[0]
        if kind in ("anvil", "cpu"):
            self._load(required=kind == "anvil")
        from vllm_anvil.references import registration

        registration.register()
        import torch

        try:
            torch.empty(1, device=self.name)
        except Exception as error:
            message = str(error).partition("\n")[0]
            raise Refused(f"the device {self.name!r} cannot be used: {message}") from None

    def _load(self, required: bool) -> None:
        try:
            from vllm_anvil import device
        except ImportError as error:
            if required:
                raise Refused(str(error)) from None
            self.native_missing = str(error)
            return
        # Kernels in Triton run on the device too, where nothing else has claimed Triton.
        with contextlib.suppress(ImportError):
            importlib.import_module("vllm_anvil.triton")
        self.isas = device.supported_isas()
        try:
            self.isa = device.active_isa()
        except ValueError as error:
            raise Refused(str(error)) from None

    def implementation(self, kind: str) -> str:
        """What vllm_anvil.testing.parity.implementation_of says, with the instruction set."""
        return f"native ({self.isa})" if kind == "native" and self.isa else kind

    def require(self, isa: str | None) -> None:
        """Raises Refused unless that instruction set is active; None: any is right."""
        if isa is None or isa == self.isa:
            return
        if self.native_missing is not None:
            raise Refused(f"--isa needs the native kernels: {self.native_missing}")
        raise Refused(f"--isa {isa}: {self.isa} is active instead")
