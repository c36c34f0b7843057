# SPDX-License-Identifier: Apache-2.0
"""That the ceilings do all the work that they say: no byte left out, no operation."""

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import ceiling
from vllm_anvil.references import ceiling as reference
from vllm_anvil.testing.threads import thread_count

from .row_independence import device_threads

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_bytes(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(256, (count,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 4095, 4096, 4104, 65_536, 1_000_003])
def test_reads_every_byte(device: torch.device, count: int) -> None:
    data = random_bytes(count)
    assert torch.equal(ceiling.ceiling_read(data.to(device)).cpu(), reference.ceiling_read(data))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_any_dtype_and_offset(device: torch.device, dtype: torch.dtype) -> None:
    data = (random_bytes(3 * 1001).view(3, 1001) % 2).to(dtype).to(device)[1:]
    assert data.is_contiguous()
    assert torch.equal(ceiling.ceiling_read(data).cpu(), reference.ceiling_read(data.cpu()))


def test_reads_the_same_with_any_number_of_threads() -> None:
    data = random_bytes(3_000_001)
    expected = reference.ceiling_read(data)
    for number in (1, 2, 3, 7):
        with device_threads(number), thread_count(number):
            assert torch.equal(ceiling.ceiling_read(data), expected)
            assert torch.equal(ceiling.ceiling_read(data.to("anvil")).cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_are_counted(device: torch.device, dtype: torch.dtype) -> None:
    seed = torch.full((3,), 1.5, dtype=dtype).to(device)
    none, once, often = (ceiling.ceiling_arithmetic(seed, n).cpu() for n in (0, 1, 2000))
    assert none[0] == 0 and once[0] > 0
    assert often[0] == 2000 * once[0]
    # Every accumulator begins with the seed. Then it tends to twice that or, with dot products of
    # bfloat16 pairs, is back where it began.
    dot_products = dtype == torch.bfloat16 and torch.anvil.active_isa() == "avx512_bf16"
    assert often[1] / none[1] == (1.0 if dot_products else 2.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_thread_computes(dtype: torch.dtype) -> None:
    seed = torch.rand(64).to(dtype)
    with thread_count(1):
        one = ceiling.ceiling_arithmetic(seed, 10)
    for number in (2, 3):
        with device_threads(number), thread_count(number):
            for device in ("cpu", "anvil"):
                several = ceiling.ceiling_arithmetic(seed.to(device), 10).cpu()
                torch.testing.assert_close(several, number * one)


def test_reference_counts_its_operations() -> None:
    seed = torch.full((7,), 0.5)
    result = reference.ceiling_arithmetic(seed, 2)
    assert result.tolist() == [2 * 2.0 * 1024**3, 2 * 1024 * 1024 * 0.25]


def test_refuses(device: torch.device) -> None:
    seed = torch.ones(4, 4, device=device)
    with pytest.raises(ValueError, match="anvil::ceiling_read: buffer must be contiguous"):
        ceiling.ceiling_read(seed.T[1:])
    with pytest.raises(ValueError, match="anvil::ceiling_arithmetic: seed must be contiguous"):
        ceiling.ceiling_arithmetic(seed[:, :2], 1)
    with pytest.raises(ValueError, match="seed must be contiguous and hold a number"):
        ceiling.ceiling_arithmetic(seed[:0], 1)
    with pytest.raises(TypeError, match="seed must be float32, bfloat16 or float16, but is Double"):
        ceiling.ceiling_arithmetic(seed.double(), 1)
    with pytest.raises(ValueError, match="steps must be at least 0, but is -1"):
        ceiling.ceiling_arithmetic(seed, -1)


def test_opcheck(device: torch.device) -> None:
    seed = torch.ones(9, device=device)
    torch.library.opcheck(torch.ops.anvil.ceiling_read.default, (seed,))
    torch.library.opcheck(torch.ops.anvil.ceiling_arithmetic.default, (seed, 3))
