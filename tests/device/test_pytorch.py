# SPDX-License-Identifier: Apache-2.0
"""The rest of PyTorch on the device: autograd, modules, saving, custom operators, threads."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading

import pytest
import torch

import vllm_anvil.device  # noqa: F401


def test_training_step_equals_the_cpu() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )
    twin = copy.deepcopy(model).to("anvil")
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    for m, inputs, labels in ((model, x, y), (twin, x.to("anvil"), y.to("anvil"))):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(m(inputs), labels).backward()
            optimizer.step()
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        assert a.device.type == "anvil" and a.grad is not None and a.grad.device == a.device
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution_and_its_gradients(transposed: bool, bias: bool) -> None:
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    layer = kind(4, 6, 3, stride=2, padding=1, groups=2, bias=bias)
    twin = copy.deepcopy(layer).to("anvil")
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    y = x.detach().to("anvil").requires_grad_()
    layer(x).square().sum().backward()
    twin(y).square().sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for a, b in zip(twin.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_gradients_through_views_in_place_and_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 2

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad * 2

    x = torch.ones(4, device="anvil", requires_grad=True)
    y = x.clone()
    y[1:3].mul_(3)
    Double.apply(y).sum().backward()
    assert x.grad.tolist() == [2, 6, 6, 2]
    weight = torch.ones(3, device="anvil", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: (w.exp() * w).cumsum(0), (weight,))


def test_save_load_and_map_location() -> None:
    state = {"a": torch.arange(5.0, device="anvil"), "b": torch.ones(2, 3, device="anvil").t()}
    file = io.BytesIO()
    torch.save(state, file)
    for where, device in ((None, "anvil"), ("cpu", "cpu"), ("anvil:0", "anvil")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded["a"].device.type == device and loaded["a"].tolist() == [0, 1, 2, 3, 4]
        assert loaded["b"].stride() == state["b"].stride()
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    file.seek(0)
    assert torch.load(file, map_location="anvil").device.type == "anvil"


def test_pickle_and_deepcopy() -> None:
    base = torch.arange(6.0, device="anvil")
    pair = [base, base[2:]]
    pickled = pickle.loads(pickle.dumps(pair))
    assert pickled[0].is_anvil and torch.equal(pickled[1].cpu(), base[2:].cpu())
    copied = copy.deepcopy(pair)
    assert copied[0].is_anvil and torch.equal(copied[1].cpu(), base[2:].cpu())
    copied[1].fill_(9)  # deepcopy keeps sharing, as it does for CPU tensors
    assert copied[0].tolist() == [0, 1, 9, 9, 9, 9]
    assert base.tolist() == [0, 1, 2, 3, 4, 5]


def _child(connection) -> None:  # type: ignore[no-untyped-def]

    x = pickle.loads(connection.recv_bytes())
    connection.send((str(x.device), x.sum().item()))


def test_spawned_process_can_use_the_device() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs,))
    process.start()
    ours.send_bytes(pickle.dumps(torch.ones(4, device="anvil")))
    assert ours.recv() == ("anvil:0", 4.0)
    process.join(30)
    assert process.exitcode == 0


def test_repr_numpy_and_conversions() -> None:
    x = torch.tensor([1.5, 2.5], device="anvil")
    assert repr(x) == "tensor([1.5000, 2.5000], device='anvil:0')"
    assert x.is_anvil and x.cpu().numpy().tolist() == x.tolist() == [1.5, 2.5]
    with pytest.raises(TypeError, match="(?i)cpu"):
        x.numpy()
    assert torch.ones(2).anvil().device == torch.device("anvil:0")
    assert torch.nn.Linear(2, 2).anvil().weight.is_anvil
    assert torch.empty_like(x, device="meta").add(1).device.type == "meta"
    assert x.to("meta").device.type == "meta"
    with torch.device("anvil"):
        assert torch.zeros(3).is_anvil and torch.tensor([1]).is_anvil and torch.arange(4).is_anvil
    torch.set_default_device("anvil")
    try:
        assert torch.full((2,), 3.0).is_anvil
    finally:
        torch.set_default_device(None)


def test_custom_operator_with_a_cpu_kernel_only() -> None:
    with torch.library._scoped_library("anvil_test", "FRAGMENT") as library:
        library.define("twice(Tensor x, Tensor(a!) y) -> Tensor")
        library.impl("twice", lambda x, y: (y.add_(x), x * 2)[1], "CPU")
        library.define("nowhere(Tensor x) -> Tensor")
        x, y = torch.ones(3, device="anvil"), torch.zeros(3, device="anvil")
        z = torch.ops.anvil_test.twice(x, y)
        assert z.is_anvil and z.tolist() == [2, 2, 2] and y.tolist() == [1, 1, 1]
        with pytest.raises(
            NotImplementedError, match=r"anvil_test::nowhere has neither an anvil kernel"
        ):
            torch.ops.anvil_test.nowhere(x)


def test_many_threads() -> None:
    failures = []

    def work(seed: int) -> None:
        try:
            x = torch.full((64, 64), float(seed), device="anvil")
            for _ in range(200):
                y = (x + 1).sub_(1)
                if not torch.equal(y, x) or y[3, 3].item() != seed:
                    failures.append(seed)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_compile_with_the_eager_backend() -> None:
    f = torch.compile(lambda x: (x * 2).relu().sum(-1), backend="eager", fullgraph=True)
    x = torch.randn(4, 5)
    torch.testing.assert_close(f(x.to("anvil")).cpu(), (x * 2).relu().sum(-1))


def test_inference_mode_and_no_grad() -> None:
    with torch.inference_mode():
        x = torch.ones(3, device="anvil")
        y = x.view(3, 1).expand(3, 2).contiguous()
        y[0].add_(1)
        assert y.is_inference() and y.sum().item() == 8
    with torch.no_grad():
        w = torch.ones(3, device="anvil", requires_grad=True)
        assert not (w * 2).requires_grad
