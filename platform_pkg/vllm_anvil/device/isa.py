# SPDX-License-Identifier: Apache-2.0
"""Instruction sets that the native kernels were built for and this machine can run."""

from __future__ import annotations

from vllm_anvil import _C


def active_isa() -> str:
    """Instruction set in use: the best one this machine can run, or the one ANVIL_ISA forces.

    Raises:
        ValueError: ANVIL_ISA names one that is unknown or that this machine cannot run; the message
            lists the choices.
    """
    return _C.active_isa()


def supported_isas() -> list[str]:
    """Instruction sets that this machine can run, best first; `scalar` is always the last."""
    return _C.supported_isas()
