# SPDX-License-Identifier: Apache-2.0
"""Small kernels written in LLVM IR by the kernel ABI (csrc/triton_rt/kernel_abi.h).

With them, what loads and launches code is tested without the compiler.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from llvmlite import binding as llvm

from vllm_anvil.triton_backend.launcher import make_launcher
from vllm_anvil.triton_backend.loader import load

# Program (x, y, z) adds an i32 argument to element x + gx * (y + gy * z) of an i32 array.
ADD = """
define i32 @add(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
  %gx = load i32, ptr %launch
  %gyp = getelementptr i8, ptr %launch, i64 4
  %gy = load i32, ptr %gyp
  %zy = mul i32 %z, %gy
  %row = add i32 %zy, %y
  %base = mul i32 %row, %gx
  %i = add i32 %base, %x
  %array = load ptr, ptr %args
  %np = getelementptr i8, ptr %args, i64 8
  %n = load i32, ptr %np
  %e = getelementptr i32, ptr %array, i32 %i
  %old = load i32, ptr %e
  %new = add i32 %old, %n
  store i32 %new, ptr %e
  ret i32 0
}
"""

# The same for one program, `n` times: as long as wanted, with a table of constants and a call that
# LLVM makes by itself.
SPIN = """
@table = private unnamed_addr constant [4 x i64] [i64 1, i64 1, i64 1, i64 1]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i32 @spin(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
entry:
  %sp = getelementptr i8, ptr %launch, i64 16
  %scratch = load ptr, ptr %sp
  call void @llvm.memcpy.p0.p0.i64(ptr %scratch, ptr @table, i64 32, i1 false)
  %array = load ptr, ptr %args
  %np = getelementptr i8, ptr %args, i64 8
  %n = load i64, ptr %np
  %e = getelementptr i64, ptr %array, i32 %x
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %slot = and i64 %i, 3
  %sl = getelementptr i64, ptr %scratch, i64 %slot
  %one = load volatile i64, ptr %sl
  %j = add i64 %i, %one
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  store i64 %j, ptr %e
  ret i32 0
}
"""

# Fails in program x == n, after it has marked each element it came to.
CHECK = """
@words = private unnamed_addr constant [29 x i8] c"kernel.py:7: x must not be n\\00"
define i32 @check(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
  %array = load ptr, ptr %args
  %e = getelementptr i32, ptr %array, i32 %x
  store i32 1, ptr %e
  %np = getelementptr i8, ptr %args, i64 8
  %n = load i32, ptr %np
  %bad = icmp eq i32 %x, %n
  br i1 %bad, label %fail, label %good
fail:
  %cp = getelementptr i8, ptr %launch, i64 24
  %context = load ptr, ptr %cp
  %fp = getelementptr i8, ptr %launch, i64 40
  %f = load ptr, ptr %fp
  call void %f(ptr %context, ptr @words)
  ret i32 1
good:
  ret i32 0
}
"""

# Prints "program x\n" as one piece.
PRINT = """
@format = private unnamed_addr constant [12 x i8] c"program %d\\0A\\00"
define i32 @print(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
  %text = alloca [64 x i8]
  %sp = getelementptr i8, ptr %launch, i64 48
  %snprintf = load ptr, ptr %sp
  %length = call i32 (ptr, i64, ptr, ...) %snprintf(ptr %text, i64 64, ptr @format, i32 %x)
  %cp = getelementptr i8, ptr %launch, i64 24
  %context = load ptr, ptr %cp
  %pp = getelementptr i8, ptr %launch, i64 32
  %p = load ptr, ptr %pp
  %wide = sext i32 %length to i64
  call void %p(ptr %context, ptr %text, i64 %wide)
  ret i32 0
}
"""

# Copies its 8-byte slots 1, 2, ... (`n` of them, an i32 in slot 1) to an i64 array.
SLOTS = """
define i32 @slots(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
entry:
  %array = load ptr, ptr %args
  %np = getelementptr i64, ptr %args, i64 1
  %n = load i32, ptr %np
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%j, %loop]
  %j = add i32 %i, 1
  %s = getelementptr i64, ptr %args, i32 %j
  %v = load i64, ptr %s
  %d = getelementptr i64, ptr %array, i32 %i
  store i64 %v, ptr %d
  %more = icmp slt i32 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
"""


# Copies element x of one i32 array to another.
COPY = """
define i32 @copy(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
  %from = load ptr, ptr %args
  %tp = getelementptr i8, ptr %args, i64 8
  %to = load ptr, ptr %tp
  %s = getelementptr i32, ptr %from, i32 %x
  %v = load i32, ptr %s
  %d = getelementptr i32, ptr %to, i32 %x
  store i32 %v, ptr %d
  ret i32 0
}
"""


def object_of(llvm_ir: str, optimize: int = 2) -> bytes:
    """An ELF relocatable of the module, position-independent."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(llvm_ir)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=optimize, reloc="pic")
    return machine.emit_object(module)


class Launchable:
    """A kernel as Triton holds it: `kernel(grid, *arguments)` launches."""

    def __init__(
        self,
        llvm_ir: str,
        name: str,
        signature: dict[str, object],
        arguments: list[tuple[str, bool, bool]],
        scratch_bytes: int = 0,
    ) -> None:
        self.loaded = load(name, object_of(llvm_ir))
        source = SimpleNamespace(signature=signature, fn=None)
        facts = SimpleNamespace(name=name, scratch_bytes=scratch_bytes, arguments=arguments)
        self.launcher: Callable[..., None] = make_launcher(source, facts)

    def __call__(
        self,
        grid: tuple[int, int, int],
        *arguments: object,
        metadata: object = None,
        enter: object = None,
        leave: object = None,
    ) -> None:
        self.launcher(*grid, 0, self.loaded.address, (4, 1, 0), metadata, enter, leave, *arguments)


INT_ARRAY = ("ptr", True, True)


def adder() -> Launchable:
    return Launchable(ADD, "add", {"array": "*i32", "n": "i32"}, [INT_ARRAY, ("i32", False, False)])


def spinner() -> Launchable:
    arguments = [("ptr", False, True), ("i64", False, False)]
    return Launchable(SPIN, "spin", {"array": "*i64", "n": "i64"}, arguments, scratch_bytes=32)


def checker() -> Launchable:
    arguments = [INT_ARRAY, ("i32", False, False)]
    return Launchable(CHECK, "check", {"array": "*i32", "n": "i32"}, arguments)


def printer() -> Launchable:
    return Launchable(PRINT, "print", {}, [])


def copier() -> Launchable:
    arguments = [("ptr", True, False), ("ptr", False, True)]
    return Launchable(COPY, "copy", {"source": "*i32", "target": "*i32"}, arguments)


def zeros(count: int, device: str = "anvil") -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
