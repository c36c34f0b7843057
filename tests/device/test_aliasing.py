# SPDX-License-Identifier: Apache-2.0
"""The zero-copy fallback keeps views, strides, offsets, in-place and out= forms as they are."""

from __future__ import annotations

import pytest
import torch

import vllm_anvil.device  # noqa: F401


def same(anvil: torch.Tensor, cpu: torch.Tensor) -> None:
    assert anvil.device.type == "anvil"
    assert anvil.shape == cpu.shape and anvil.stride() == cpu.stride()
    assert anvil.storage_offset() == cpu.storage_offset() and anvil.dtype == cpu.dtype
    torch.testing.assert_close(anvil.cpu(), cpu, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.view(-1),
        lambda x: x.reshape(2, -1),
        lambda x: x.unsqueeze(1).expand(-1, 3, -1),
        lambda x: x.select(1, 2),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.split(3, dim=1)[1],
        lambda x: x.chunk(2)[1],
        lambda x: x.unbind(1)[4],
        lambda x: x.view(torch.int32),
        lambda x: x.narrow(0, 1, 2).squeeze(),
        lambda x: x.as_strided((2, 2), (1, 3), 5),
        lambda x: x.movedim(0, 1),
        lambda x: x.swapaxes(0, 1)[2:4],
        lambda x: x.detach(),
        lambda x: x.flatten().view_as(x),
    ],
)
def test_views_share_memory(view) -> None:  # type: ignore[no-untyped-def]
    cpu = torch.arange(24.0).reshape(4, 6)
    anvil = cpu.to("anvil")
    a, c = view(anvil), view(cpu)
    same(a, c)
    assert a.untyped_storage().data_ptr() == anvil.untyped_storage().data_ptr()
    a.fill_(7), c.fill_(7)
    same(anvil, cpu)


def test_complex_views_and_lazy_bits() -> None:
    cpu = torch.complex(torch.arange(6.0), -torch.arange(6.0))
    anvil = cpu.to("anvil")
    same(torch.view_as_real(anvil), torch.view_as_real(cpu))
    same(anvil.conj().resolve_conj(), cpu.conj().resolve_conj())
    same(anvil.conj().imag.resolve_neg(), cpu.conj().imag.resolve_neg())
    same(anvil.conj() * anvil, cpu.conj() * cpu)
    m = torch.randn(3, 3, dtype=torch.complex64)
    same(m.to("anvil").mH @ m.to("anvil"), m.mH @ m)
    target = torch.empty_like(anvil)
    target.copy_(anvil.conj())
    same(target, cpu.conj().resolve_conj())


def test_in_place_and_out_write_through() -> None:
    cpu = torch.arange(12.0).reshape(3, 4)
    anvil = cpu.to("anvil")
    assert anvil.t()[1:].mul_(2) is not None
    cpu.t()[1:].mul_(2)
    same(anvil, cpu)
    result = anvil.add_(1)
    assert result is anvil
    out = torch.empty(3, 4, device="anvil")
    pointer = out.data_ptr()
    assert torch.mul(anvil, 2, out=out) is out and out.data_ptr() == pointer
    same(out, (cpu + 1) * 2)
    strided = torch.zeros(6, 8, device="anvil")[::2, ::2]
    torch.mul(anvil, 3, out=strided)
    torch.testing.assert_close(strided.cpu(), (cpu + 1) * 3)


def test_out_is_resized_like_on_the_cpu() -> None:
    a = torch.rand(5, 7)
    out = torch.empty(0, device="anvil")
    alias = out.untyped_storage()
    torch.sum(a.to("anvil"), 0, out=out)
    torch.testing.assert_close(out.cpu(), a.sum(0))
    assert out.untyped_storage().nbytes() == alias.nbytes() >= 7 * 4
    assert out.untyped_storage().data_ptr() == out.data_ptr() != 0
    values, indices = (
        torch.empty(0, device="anvil"),
        torch.empty(0, dtype=torch.int64, device="anvil"),
    )
    torch.sort(a.to("anvil"), out=(values, indices))
    same(values, a.sort().values)
    same(indices, a.sort().indices)


def test_resize_and_set() -> None:
    x = torch.arange(4.0, device="anvil")
    view = x[1:]
    x.resize_(100)
    assert x[:4].tolist() == [0, 1, 2, 3] and x.untyped_storage().nbytes() == 400
    assert view.data_ptr() == x.data_ptr() + 4
    y = torch.empty(0, device="anvil").set_(x.untyped_storage(), 2, (2, 2), (1, 1))
    assert y.flatten().tolist()[:2] == [2, 3] and y.data_ptr() == x.data_ptr() + 8
    z = torch.empty(0, device="anvil").set_(x)
    assert z.data_ptr() == x.data_ptr() and z.shape == x.shape
    z.set_()
    assert z.numel() == 0 and x.numel() == 100
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.set_(storage, 0, (4,))
    assert x.fill_(3).tolist() == [3, 3, 3, 3]
    with pytest.raises(RuntimeError, match="storage on"):
        torch.empty(0, device="anvil").set_(torch.ones(2).untyped_storage())


def test_results_that_share_memory_still_do() -> None:
    x = torch.rand(4, 4, device="anvil")
    q, r = torch.linalg.qr(x)
    torch.testing.assert_close((q @ r).cpu(), x.cpu())
    a, b = torch.rand(6, device="anvil").tensor_split(2)
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    same_tensor = x.add_(x)
    assert same_tensor is x


def test_one_tensor_passed_twice_is_seen_as_one() -> None:
    x = torch.arange(6.0, device="anvil")
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].add_(x[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].copy_(x[:-1])


def test_host_alias_is_the_same_memory() -> None:
    x = torch.arange(12.0, device="anvil").reshape(3, 4).t()[1:]
    alias = torch.anvil.host_alias(x)
    assert alias.device.type == "cpu" and alias.data_ptr() == x.data_ptr()
    assert alias.stride() == x.stride() and alias.storage_offset() == x.storage_offset()
    alias.fill_(5)
    assert (x == 5).all()
    pointer = alias.data_ptr()
    del x
    torch.rand(4096, device="anvil")
    assert alias.data_ptr() == pointer and (alias == 5).all()
    assert alias.clone().requires_grad_().sum().requires_grad
    with pytest.raises(RuntimeError, match="anvil"):
        torch.anvil.host_alias(torch.ones(1))


def test_foreign_memory() -> None:
    """Memory that did not come from the device's allocator: a device tensor made by DLPack."""
    x = torch.arange(6.0, device="anvil")
    y = torch.from_dlpack(x)
    assert y.device == x.device and y.data_ptr() == x.data_ptr()
    y.add_(1)
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
    assert y[2:].mul_(2).tolist() == [6, 8, 10, 12] and x[2:].tolist() == [6, 8, 10, 12]
    del x
    assert (y + 0).sum().item() == 39


def test_copy_in_all_directions() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        source = (torch.rand(7, 9) * 10).to(dtype)
        on_device = source.to("anvil")
        assert on_device.dtype == dtype and torch.equal(on_device.cpu(), source)
        back = torch.empty_like(source)
        back.copy_(on_device, non_blocking=True)
        torch.anvil.synchronize()
        assert torch.equal(back, source)
        other = torch.empty(9, 7, dtype=torch.float64, device="anvil").t()
        other.copy_(source)
        torch.testing.assert_close(other.cpu(), source.double())
        on_device[::2].copy_(source[1::2].repeat(2, 1)[:4])
    big = torch.rand(3 << 20)
    assert torch.equal(big.to("anvil").cpu(), big)
    broadcast = torch.zeros(3, 4, device="anvil")
    broadcast.copy_(torch.arange(4.0))
    assert broadcast.sum().item() == 18


def test_sparse_is_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match=r"(?i)sparse"):
        torch.eye(3, device="anvil").to_sparse()
