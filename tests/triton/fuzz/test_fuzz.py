# SPDX-License-Identifier: Apache-2.0
"""Random programs of fixed seeds, and cases that random programs have found wrong before.

`make fuzz-triton N=10000 SEED=1000000` runs others.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from fuzz import compare
from fuzz.generate import generate
from fuzz.minimize import minimize
from fuzz.source import kernel_source
from vllm_anvil.triton_backend.emit import host_cpu, object_code
from vllm_anvil.triton_backend.emit.target import target_machine
from vllm_anvil.triton_backend.loader import load

PROGRAMS, GROUP = 500, 25


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program is compiled once: it need not stay in the user's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("first", range(0, PROGRAMS, GROUP))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + GROUP):
        program = generate(seed)
        found = compare.failure(program)
        if found is not None:
            small = minimize(program, found, 60)
            pytest.fail(f"seed {seed}: {found}\n{kernel_source(small)}", pytrace=False)


def test_the_program_of_a_seed_is_always_the_same() -> None:
    assert kernel_source(generate(7)) == kernel_source(generate(7))


# out[i] = source[(7 * i) & 127], as a loop over elements.
WRAPPED = """
define i32 @wrapped(ptr %arguments, ptr %launch, i32 %x, i32 %y, i32 %z) {
entry:
  %source = load ptr, ptr %arguments
  %second = getelementptr i64, ptr %arguments, i64 1
  %out = load ptr, ptr %second
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %scaled = mul i32 %i, 7
  %place = and i32 %scaled, 127
  %from = getelementptr float, ptr %source, i32 %place
  %value = load float, ptr %from
  %to = getelementptr float, ptr %out, i32 %i
  store float %value, ptr %to
  %next = add nuw nsw i32 %i, 1
  %again = icmp ult i32 %next, 128
  br i1 %again, label %loop, label %end
end:
  ret i32 0
}
"""


def _wrapped_is_right(code: bytes) -> bool:
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int32] * 3)
    loaded = load("wrapped", code)
    source, out = np.arange(1024, dtype=np.float32), np.zeros(128, np.float32)
    slots = (ctypes.c_void_p * 2)(source.ctypes.data, out.ctypes.data)
    kind(loaded.address)(ctypes.addressof(slots), None, 0, 0, 0)
    return bool((out == (7 * np.arange(128) & 127)).all())


def test_wrapped_interleaved_loads() -> None:
    """What LLVM's loop vectoriser gets wrong, and why it is switched off."""
    assert _wrapped_is_right(object_code(WRAPPED))


def test_llvm_still_miscompiles_them() -> None:
    """Where this fails, `emit.objects` may use the loop vectoriser again."""
    if not host_cpu().has("avx2"):
        pytest.skip("the vectoriser interleaves on wider vectors only")
    machine = target_machine(host_cpu())
    module = llvm.parse_assembly(WRAPPED)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    assert not _wrapped_is_right(machine.emit_object(module))
