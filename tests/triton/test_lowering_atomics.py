# SPDX-License-Identifier: Apache-2.0
"""Atomic operations: what they do, what they return, and that none is lost between programs."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def count_kernel(index_ptr, counts, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(index_ptr + place), 1)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_no_addition_is_lost(dtype: torch.dtype) -> None:
    index = torch.randint(0, 50, (64 * 32,), generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(50, dtype=dtype, device="anvil")
    count_kernel[(64,)](index.to("anvil"), counts, BLOCK=32)
    assert torch.equal(counts.cpu().long(), torch.bincount(index, minlength=50))


@triton.jit
def old_value_kernel(data, values, old, BLOCK: tl.constexpr, KIND: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.load(values + index)
    mask = index % 3 != 0
    if KIND == "add":
        before = tl.atomic_add(data + index, value, mask=mask)
    elif KIND == "max":
        before = tl.atomic_max(data + index, value, mask=mask)
    elif KIND == "min":
        before = tl.atomic_min(data + index, value, mask=mask)
    elif KIND == "xchg":
        before = tl.atomic_xchg(data + index, value, mask=mask)
    elif KIND == "and":
        before = tl.atomic_and(data + index, value, mask=mask)
    elif KIND == "or":
        before = tl.atomic_or(data + index, value, mask=mask)
    else:
        before = tl.atomic_xor(data + index, value, mask=mask)
    tl.store(old + index, before, mask=mask)


OPERATIONS = {
    "add": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "xchg": lambda old, new: new,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", OPERATIONS)
def test_result_and_old_value(kind: str, dtype: torch.dtype) -> None:
    if dtype.is_floating_point and kind in ("and", "or", "xor"):
        pytest.skip("bitwise operations are for integers")
    generator = torch.Generator().manual_seed(3)
    data = torch.randint(-100, 100, (40,), generator=generator).to(dtype)[:32]
    values = torch.randint(-100, 100, (32,), generator=generator).to(dtype)
    mask = torch.arange(32) % 3 != 0
    expected = torch.where(mask, OPERATIONS[kind](data, values), data)
    old, before = torch.full_like(data, 77), data.clone()
    old_value_kernel[(1,)](data, values, old, BLOCK=32, KIND=kind)
    assert torch.equal(data, expected)
    assert torch.equal(old, torch.where(mask, before, torch.full_like(data, 77)))


@triton.jit
def compare_and_swap_kernel(data, expected, new, old, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    before = tl.atomic_cas(data + index, tl.load(expected + index), tl.load(new + index))
    tl.store(old + index, before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_compare_and_swap(dtype: torch.dtype) -> None:
    data = torch.arange(32).to(dtype)
    expected = torch.where(torch.arange(32) % 2 == 0, data, data + 1)
    old, before = torch.zeros_like(data), data.clone()
    compare_and_swap_kernel[(1,)](data, expected, data.clone() + 100, old, BLOCK=32)
    assert torch.equal(old, before)
    assert torch.equal(data, torch.where(torch.arange(32) % 2 == 0, before + 100, before))


@triton.jit
def ticket_kernel(counter, out):
    tl.store(out + tl.atomic_add(counter, 1), tl.program_id(0))


def test_tickets_are_given_out_once() -> None:
    counter = torch.zeros(1, dtype=torch.int32, device="anvil")
    out = torch.full((500,), -1, dtype=torch.int32, device="anvil")
    ticket_kernel[(500,)](counter, out)
    assert sorted(out.tolist()) == list(range(500)) and counter.item() == 500
