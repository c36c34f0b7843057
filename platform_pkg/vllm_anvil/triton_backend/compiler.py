# SPDX-License-Identifier: Apache-2.0
"""Triton's compiler for the device: TTIR, made small by Triton's own passes, to native code.

Stages: `ttir` (text that our parser reads) -> `llir` (LLVM IR) -> `obj` (an ELF relocatable).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields
from importlib import metadata as distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language

# Options that change what is compiled. The others are about GPUs: accepted, so that a kernel's
# launch needs no change, and of no effect.
EFFECTIVE = (
    "debug",
    "sanitize_overflow",
    "default_dot_input_precision",
    "allowed_dot_input_precisions",
    "supported_fp8_dtypes",
    "extern_libs",
    "instrumentation_mode",
    "fpsan_homomorphic_casts",
    "ir_override",
    "arch",
)


@dataclass(frozen=True)
class AnvilOptions:
    """Every option that a launch may give, for whichever GPU it was written."""

    num_warps: int = 4
    num_stages: int = 1
    num_ctas: int = 1
    warp_size: int = 1
    debug: bool = False
    sanitize_overflow: bool = True
    arch: str = ""
    backend_name: str = "cpu"
    ir_override: str | None = None
    extern_libs: Any = None
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    # Dots always take their operands as they are and add in float32.
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    allow_fp8e4nv: bool = True
    allow_fp8e4b15: bool = False
    # NVIDIA's.
    maxnreg: int | None = None
    cluster_dims: tuple[int, ...] = (1, 1, 1)
    ptx_version: int | None = None
    ptx_options: str | None = None
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    sched4reg: bool = False
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    clc: bool = False
    min_shared_mem: int | None = None
    # AMD's.
    waves_per_eu: int = 0
    matrix_instr_nonkdim: int = 0
    kpack: int = 1
    allow_flush_denorm: bool = False
    schedule_hint: str = "none"
    llvm_fn_attrs: Any = ()
    wgp_cu_mode: bool = False

    def hash(self) -> str:
        key = "_".join(f"{name}-{getattr(self, name)}" for name in EFFECTIVE)
        return hashlib.sha256(key.encode()).hexdigest()


class AnvilTritonBackend(BaseBackend):
    """Compiles for the host's processor."""

    binary_ext = "obj"
    supports_native_tensor_specialization = True

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return _compiler_key()

    def parse_options(self, opts: dict[str, Any]) -> AnvilOptions:
        known = {field.name for field in fields(AnvilOptions)}
        given = {k: v for k, v in opts.items() if k in known and v is not None}
        return AnvilOptions(**{"arch": str(self.target.arch), **given})

    def pack_metadata(self, metadata: Any) -> tuple[int, int, int]:
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    def get_codegen_implementation(self, options: AnvilOptions) -> dict[str, Any]:
        return {
            "min_dot_size": lambda lhs_type, rhs_type: (1, 1, 1),
            "convert_custom_types": _refuse_custom_type,
        }

    def get_module_map(self) -> dict[str, ModuleType]:
        from vllm_anvil.triton_backend import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, ctx: Any) -> None:
        """Nothing beyond Triton's own."""

    def add_stages(self, stages: dict[str, Any], options: AnvilOptions, language: Language) -> None:
        if language != Language.TRITON:
            raise NotImplementedError(
                f"kernels in {language.name.capitalize()} are written for one GPU's layouts; anvil "
                "compiles those in Triton's own language"
            )
        stages["ttir"] = _make_ttir
        stages["llir"] = _make_llir
        stages["obj"] = _make_object
        if knobs.runtime.add_stages_inspection_hook is not None:
            knobs.runtime.add_stages_inspection_hook(self, stages, options, language, None)


def _make_ttir(module: Any, metadata: dict[str, Any]) -> Any:
    manager = ir.pass_manager(module.context)
    manager.enable_debug()
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    manager.run(module, "make_ttir")
    return module


def _make_llir(module: Any, metadata: dict[str, Any]) -> str:
    """Sets `name`, `shared`, `scratch_bytes` and `arguments` (type, reads, writes of each)."""
    from vllm_anvil.triton_backend.emit.target import host_cpu
    from vllm_anvil.triton_backend.lower import lower_kernel

    lowered = lower_kernel(str(module), cpu=host_cpu())
    metadata["name"] = lowered.name
    metadata["shared"] = 0
    metadata["scratch_bytes"] = lowered.scratch_bytes
    metadata["arguments"] = [[one.type, one.reads, one.writes] for one in lowered.arguments]
    return lowered.llvm_ir


def _make_object(llvm_ir: str, metadata: dict[str, Any]) -> bytes:
    from vllm_anvil.triton_backend.emit import object_code

    return object_code(llvm_ir)


def _refuse_custom_type(*_arguments: Any, **_keywords: Any) -> Any:
    raise NotImplementedError("anvil does not convert fp8e4b15; use fp8e4nv or fp8e5")


@functools.cache
def _compiler_key() -> str:
    """Differs wherever the same source could become other code: another processor, LLVM or Anvil.

    The compiler's own files count by content, so that a changed one never meets an old object.
    """
    from vllm_anvil.triton_backend.emit.target import host_cpu

    cpu = host_cpu()
    digest = hashlib.sha256(f"{cpu.name} {cpu.features}".encode())
    for name in ("llvmlite", "vllm-anvil"):  # llvmlite brings its own LLVM
        try:
            digest.update(f"{name} {distributions.version(name)}".encode())
        except distributions.PackageNotFoundError:
            digest.update(f"{name} from a source tree".encode())
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(file.read_bytes())
    return f"anvil-{digest.hexdigest()}"
