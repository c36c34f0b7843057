# SPDX-License-Identifier: Apache-2.0
"""`PackedWeight` is a tensor like the one that it was made of, for whoever reads or writes it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from vllm_anvil.ops.packed_weight import PackedWeight

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, PackedWeight]:
    weight = torch.randn(37, 21, generator=torch.Generator().manual_seed(4)).to(dtype).to(device)
    return weight, PackedWeight.of(weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_says_what_the_weight_is(dtype: torch.dtype, device: torch.device) -> None:
    weight, packed = make(device, dtype)
    assert packed.shape == weight.shape and packed.stride() == weight.stride()
    assert packed.dtype == dtype and packed.device == weight.device
    assert packed.is_contiguous() and not packed.requires_grad and packed.numel() == weight.numel()
    assert packed.nbytes == weight.nbytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_give_the_weight(dtype: torch.dtype, device: torch.device) -> None:
    weight, packed = make(device, dtype)
    for read in (
        lambda w: w.clone(),
        lambda w: w.cpu(),
        lambda w: w.float() * 2 + w,
        lambda w: w.data.t()[3:, 1::2],
        lambda w: w.view(torch.uint8).long().sum(),  # a checksum
        lambda w: w.flatten().view(-1, 21).narrow(0, 5, 7).select(1, 2),
        lambda w: w.split([7, 30])[1].unbind(1)[4],
        lambda w: w[torch.tensor([3, 1], device=device)],
        lambda w: torch.cat((w, w[:2])),
        lambda w: torch.nn.functional.linear(torch.ones(2, 21, device=device, dtype=dtype), w),
    ):
        result, expected = read(packed), read(weight)
        assert torch.equal(result, expected) and result.dtype == expected.dtype
        assert result.stride() == expected.stride()
        plain = result.clone() if isinstance(result, PackedWeight) else result
        assert type(plain) is Tensor
    assert packed.tolist() == weight.tolist()


def test_writes_are_packed_in_place(device: torch.device) -> None:
    weight, packed = make(device)
    memory = packed.packed.data_ptr()
    source = torch.arange(37 * 21, device=device).view(37, 21).bfloat16()

    def load(w: Tensor) -> None:
        w.data.narrow(0, 4, 9).copy_(source[:9])
        w[20:].data.fill_(3)
        w.data[1, 5:7] = -1
        w.select(1, 3).mul_(2)
        w.t()[0].add_(source[:, 2])
        w.split(10)[2].zero_()
        w.view(-1)[:5].copy_(source.view(-1)[:5])
        torch.add(w, 1, out=w)
        torch._foreach_mul_([w[:3], w[5:]], 2.0)

    load(weight)
    load(packed)
    assert torch.equal(packed, weight)
    assert packed.packed.data_ptr() == memory
    assert packed.copy_(source) is packed and torch.equal(packed, source)
    packed.data = weight
    assert torch.equal(packed, weight) and packed.packed.data_ptr() == memory


def test_what_cannot_be_kept_is_refused(device: torch.device) -> None:
    weight, packed = make(device)
    for change in (
        lambda: packed.resize_(3, 4),
        lambda: packed.t_(),
        lambda: packed.set_(weight),
    ):
        with pytest.raises(NotImplementedError, match="ANVIL_PACK_WEIGHTS=0"):
            change()
    with pytest.raises(ValueError, match="ANVIL_PACK_WEIGHTS=0"):
        packed.data = weight.float()
    with pytest.raises(ValueError, match="ANVIL_PACK_WEIGHTS=0"):
        packed.data = weight[1:]
    assert torch.equal(packed, weight)


class Loaded(nn.Parameter):
    """A parameter with a class and attributes of its own, as the engine's."""


def test_a_parameter_stays_one(device: torch.device) -> None:
    weight, _ = make(device)
    parameter = Loaded(weight.clone(), requires_grad=False)
    parameter.output_dim = 0
    packed = PackedWeight.of(parameter)
    assert isinstance(packed, Loaded) and isinstance(packed, nn.Parameter)
    assert packed.output_dim == 0
    layer, other = nn.Linear(21, 37, bias=False), nn.Linear(21, 37, bias=False)
    layer.weight = other.weight = packed
    assert (
        layer.weight is other.weight is packed
        and dict(layer.named_parameters())["weight"] is packed
    )
    state = layer.state_dict()["weight"]
    assert torch.equal(state, weight) and state.shape == weight.shape
    other.load_state_dict({"weight": weight.cpu() + 1})
    assert torch.equal(packed, weight + 1)


def test_copies_are_apart(device: torch.device) -> None:
    weight, packed = make(device)
    parameter = PackedWeight.of(nn.Parameter(weight, requires_grad=False))
    for original in (packed, parameter):
        copied = copy.deepcopy(original)
        assert type(copied) is type(original) and torch.equal(copied, weight)
        copied.zero_()
        assert torch.equal(original, weight) and not copied.any()
    assert torch.equal(copy.deepcopy(packed[3:]), weight[3:])


def test_saved_as_the_plain_tensor(device: torch.device) -> None:
    weight, packed = make(device)
    file = io.BytesIO()
    torch.save({"weight": packed}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["weight"]
    assert type(loaded) is Tensor and torch.equal(loaded.to(device), weight)
    assert "PackedWeight(tensor(" in repr(packed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_experts(dtype: torch.dtype, device: torch.device) -> None:
    weight = torch.randn(3, 37, 21, generator=torch.Generator().manual_seed(5)).to(dtype).to(device)
    packed = PackedWeight.of(nn.Parameter(weight.clone(), requires_grad=False))
    assert packed.shape == weight.shape and packed.stride() == weight.stride()
    for expert in range(3):
        assert torch.equal(packed.packed[expert], PackedWeight.of(weight[expert]).packed)
    assert torch.equal(packed, weight) and torch.equal(packed[1].t(), weight[1].t())
    memory = packed.packed.data_ptr()
    for w in (weight, packed):
        w.data[2].narrow(0, 4, 9).copy_(torch.ones(9, 21, dtype=dtype))
        w.data[0].mul_(2)
    assert torch.equal(packed, weight) and packed.packed.data_ptr() == memory
    copied = copy.deepcopy(packed)
    copied.zero_()
    assert torch.equal(packed, weight) and not copied.any()
    with pytest.raises(NotImplementedError, match="ANVIL_PACK_WEIGHTS=0"):
        packed.resize_(3, 4)
