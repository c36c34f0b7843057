# SPDX-License-Identifier: Apache-2.0
"""The processor that kernels are compiled for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm


@dataclass(frozen=True)
class HostCpu:
    """LLVM's name of a processor, and its features as LLVM writes them (`+avx2,-avx512f`)."""

    name: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")


@functools.cache
def initialize_llvm() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def host_cpu() -> HostCpu:
    initialize_llvm()
    return HostCpu(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@functools.cache
def target_machine(cpu: HostCpu) -> llvm.TargetMachine:
    """Makes position-independent code that stays right wherever its parts are loaded."""
    initialize_llvm()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=2, reloc="pic", codemodel="small"
    )
