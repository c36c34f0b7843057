# SPDX-License-Identifier: Apache-2.0
"""From LLVM IR to machine code."""

from __future__ import annotations

import llvmlite.binding as llvm

from vllm_anvil.triton_backend.emit.target import HostCpu, host_cpu, target_machine


def optimized_module(llvm_ir: str, cpu: HostCpu | None = None) -> llvm.ModuleRef:
    """Parses and optimises; vectors are explicit in the IR, so LLVM's own vectorisers stay off.

    They have to: LLVM 20.1 miscompiles interleaved accesses (a load indexed `(7 * i) & 127`), and
    the flag against it belongs to the whole process.
    """
    machine = target_machine(cpu or host_cpu())
    module = llvm.parse_assembly(llvm_ir)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def object_code(llvm_ir: str, cpu: HostCpu | None = None) -> bytes:
    """An ELF relocatable of the module; `cpu` is this machine's unless given."""
    return target_machine(cpu or host_cpu()).emit_object(optimized_module(llvm_ir, cpu))


def assembly(llvm_ir: str, cpu: HostCpu | None = None) -> str:
    """The same as text, to look at."""
    return target_machine(cpu or host_cpu()).emit_assembly(optimized_module(llvm_ir, cpu))
