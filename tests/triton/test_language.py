# SPDX-License-Identifier: Apache-2.0
"""Parts of Triton's language and tools that are more than one operation."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.testing import do_bench
from triton.tools.tensor_descriptor import TensorDescriptor

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def descriptor_kernel(source, target, rows, columns, BLOCK: tl.constexpr):
    """The tile at the corner, moved by one in both directions; outside reads as zero."""
    a = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    b = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    tile = a.load([tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK])
    b.store([tl.program_id(0) * BLOCK + 1, tl.program_id(1) * BLOCK + 1], tile + 1)


@pytest.mark.parametrize("device", ["cpu", "anvil"])
@pytest.mark.parametrize("shape", [(16, 16), (20, 36), (7, 4)])
def test_tensor_descriptors_made_in_the_kernel(shape: tuple[int, int], device: str) -> None:
    source = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape).to(device)
    target = torch.zeros_like(source)
    # One program after the other: tiles overlap by a row and a column of zeros plus one.
    descriptor_kernel[(1, 1)](source, target, *shape, BLOCK=16)
    whole = torch.zeros(16, 16)
    rows, columns = min(16, shape[0]), min(16, shape[1])
    whole[:rows, :columns] = source.cpu()[:rows, :columns]
    expected = torch.zeros(shape)
    height, width = min(16, shape[0] - 1), min(16, shape[1] - 1)
    expected[1 : 1 + height, 1 : 1 + width] = (whole + 1)[:height, :width]
    assert torch.equal(target.cpu(), expected)


@triton.jit
def host_descriptor_kernel(source, target, BLOCK: tl.constexpr):
    tile = source.load([tl.program_id(0) * BLOCK, 0])
    target.store([tl.program_id(0) * BLOCK, 0], tile * 2)


def test_tensor_descriptors_made_by_the_host() -> None:
    source = torch.randn(50, 32, device="anvil")
    target = torch.zeros_like(source)
    a, b = (TensorDescriptor.from_tensor(one, [16, 32]) for one in (source, target))
    host_descriptor_kernel[(4,)](a, b, BLOCK=16)
    assert torch.equal(target.cpu(), source.cpu() * 2)


@triton.jit
def fp8_kernel(source, target, back, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.load(source + index)
    small = value.to(target.dtype.element_ty)
    tl.store(target + index, small)
    tl.store(back + index, small.to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16])
def test_fp8_both_ways(dtype: torch.dtype, wide: torch.dtype) -> None:
    values = torch.linspace(-400, 400, 1024).to(wide)
    target, back = torch.empty(1024, dtype=dtype), torch.empty(1024)
    fp8_kernel[(1,)](values, target, back, BLOCK=1024)
    assert torch.equal(target.view(torch.uint8), values.to(dtype).view(torch.uint8))
    assert torch.equal(back, values.to(dtype).float())


calls: list[int] = []


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 256, 1024)],
    key=["count"],
    reset_to_zero=["total"],
    restore_value=["data"],
)
@triton.jit
def tuned_kernel(data, total, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    value = tl.load(data + index, mask=mask, other=0)
    tl.atomic_add(total, tl.sum(value, 0))
    tl.store(data + index, value + 1, mask=mask)


def test_autotune_leaves_data_as_if_run_once() -> None:
    data = torch.arange(3000, dtype=torch.int32, device="anvil")
    total = torch.zeros(1, dtype=torch.int32, device="anvil")
    tuned_kernel[lambda meta: (triton.cdiv(3000, meta["BLOCK"]),)](data, total, 3000)
    assert total.item() == sum(range(3000))
    assert torch.equal(data.cpu(), torch.arange(1, 3001, dtype=torch.int32))
    assert len(tuned_kernel.configs_timings) == 3
    assert all(min(times) > 0 for times in tuned_kernel.configs_timings.values())


@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["count"])})
@triton.jit
def heuristic_kernel(data, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(data + index, BLOCK, mask=index < count)


def test_heuristics() -> None:
    data = torch.zeros(40, dtype=torch.int32, device="anvil")
    heuristic_kernel[(1,)](data, 33)
    assert data.tolist() == [64] * 33 + [0] * 7


def test_do_bench_waits_for_the_device() -> None:
    short = do_bench(lambda: torch.anvil._sleep(1), warmup=5, rep=20)
    long = do_bench(lambda: torch.anvil._sleep(10), warmup=5, rep=50)
    assert short >= 1 and long >= 10


@triton.jit
def random_kernel(out, seed, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, tl.rand(seed, index))
    tl.store(out + BLOCK + index, tl.randn(seed, index))
    tl.store(out + 2 * BLOCK + index, tl.randint(seed, index, n_rounds=7).to(tl.float32))


def test_random_numbers() -> None:
    out = torch.zeros(3, 8192)
    random_kernel[(1,)](out, 42, BLOCK=8192)
    uniform, normal, integers = out
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
    assert integers.unique().numel() > 8000
    again = torch.zeros(3, 8192)
    random_kernel[(1,)](again, 42, BLOCK=8192)
    assert torch.equal(out, again)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def tuple_kernel(pair, out, functions: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    left, (right, scale) = pair
    tl.store(out + index, functions[0](tl.load(left + index), tl.load(right + index)) * scale)


def test_nested_arguments_and_functions_as_constants() -> None:
    left, right = torch.randn(32), torch.randn(32)
    out = torch.zeros(32)
    tuple_kernel[(1,)]((left, (right, 2)), out, (product,), BLOCK=32)
    assert torch.equal(out, left * right * 2)
