# SPDX-License-Identifier: Apache-2.0
"""What kernels say while they run, and what the compiler says of those it does not understand."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)
from vllm_anvil.triton_backend.errors import UnsupportedKernel


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel in Triton's cache names the file that it was compiled from first, which may be a
    copy of this one elsewhere."""
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))


@triton.jit
def print_kernel(data, scale, BLOCK: tl.constexpr):
    tile = tl.load(data + tl.arange(0, BLOCK)[:, None] * 2 + tl.arange(0, 2)[None, :])
    tl.device_print("tile ", tile)
    tl.device_print("scale ", scale)
    tl.device_print("bits ", tile, hex=True)
    tl.device_print("done")


def test_print(capfd: pytest.CaptureFixture[str]) -> None:
    data = torch.tensor([1, -2, 3, 4], dtype=torch.int32)
    print_kernel[(2,)](data, 1.5, BLOCK=2)
    lines = capfd.readouterr().out.splitlines()
    for program in range(2):
        mine = [line for line in lines if line.startswith(f"pid ({program}, 0, 0) ")]
        text = "\n".join(line.removeprefix(f"pid ({program}, 0, 0) ") for line in mine)
        for i, value in enumerate([1, -2, 3, 4]):
            assert re.search(rf"^idx \({i // 2}, {i % 2}\).*tile: *{value}$", text, re.MULTILINE)
            pattern = rf"^idx \({i // 2}, {i % 2}\).*bits: *0x{value & 0xFFFFFFFF:08x}$"
            assert re.search(pattern, text, re.MULTILINE)
        assert re.search(r"scale: *1\.500000$", text, re.MULTILINE)
        assert "done" in text


@triton.jit
def print_types_kernel(half, brain, small, wide, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.device_print("half", tl.load(half + index))
    tl.device_print("brain", tl.load(brain + index))
    tl.device_print("small", tl.load(small + index))
    tl.device_print("wide", tl.load(wide + index))
    tl.device_print("flag", tl.load(wide + index) > 0)


def test_print_of_every_kind_of_number(capfd: pytest.CaptureFixture[str]) -> None:
    print_types_kernel[(1,)](
        torch.tensor([0.5], dtype=torch.float16),
        torch.tensor([-1.5], dtype=torch.bfloat16),
        torch.tensor([200], dtype=torch.uint8),
        torch.tensor([1 << 40], dtype=torch.int64),
        BLOCK=1,
    )
    text = capfd.readouterr().out
    for words in (r"half: *0\.5", r"brain: *-1\.5", "small: *200", f"wide: *{1 << 40}", "flag: *1"):
        assert re.search(words, text), text


@triton.jit(debug=True)
def assert_kernel(data, limit, out, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(data + index)
    tl.device_assert(tile < limit, "too large")
    tl.store(out + index, tile)


LINE = (
    inspect.getsource(assert_kernel.fn)
    .splitlines()
    .index('    tl.device_assert(tile < limit, "too large")')
)


@pytest.mark.parametrize("device", ["cpu", "anvil"])
@pytest.mark.parametrize("place", [0, 17, 63])
def test_a_failed_assertion_is_raised_with_its_place(device: str, place: int) -> None:
    data = torch.zeros(64, dtype=torch.int32)
    data[place] = 100
    data = data.to(device)
    out = torch.full_like(data, -1)
    with pytest.raises(RuntimeError, match="too large") as caught:
        assert_kernel[(2,)](data, 50, out, BLOCK=32)
        torch.anvil.synchronize()
    text = str(caught.value)
    first_line = inspect.getsourcelines(assert_kernel.fn)[1]
    assert f"{__file__}:{first_line + LINE}" in text and "assert_kernel" in text
    start = place // 32 * 32
    assert (out[start : start + 32] == -1).all()


def test_an_assertion_that_holds() -> None:
    data = torch.arange(64, dtype=torch.int32, device="anvil")
    out = torch.zeros_like(data)
    assert_kernel[(2,)](data, 64, out, BLOCK=32)
    assert torch.equal(out, data)


@triton.jit(noinline=True)
def asserting(value):
    tl.device_assert(value != 3, "three")
    return value + 1


@triton.jit(debug=True)
def calling_kernel(out):
    row = tl.program_id(0)
    tl.store(out + row, asserting(row))


def test_an_assertion_in_a_function_that_is_called() -> None:
    out = torch.zeros(3, dtype=torch.int32)
    calling_kernel[(3,)](out)
    assert out.tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="three"):
        calling_kernel[(4,)](torch.zeros(4, dtype=torch.int32))


@triton.jit
def assembler_kernel(out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [index], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out + index, value)


def test_what_is_not_understood_is_named() -> None:
    with pytest.raises(UnsupportedKernel) as caught:
        assembler_kernel[(1,)](torch.zeros(16, dtype=torch.int32), BLOCK=16)
    text = str(caught.value)
    lines, first = inspect.getsourcelines(assembler_kernel.fn)
    line = first + next(i for i, one in enumerate(lines) if "inline_asm" in one)
    assert "assembler_kernel" in text and "tt.elementwise_inline_asm" in text
    assert f"{__file__}:{line}" in text
