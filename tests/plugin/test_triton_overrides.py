# SPDX-License-Identifier: Apache-2.0
"""Routing of kernel launches to functions: a kernel of the test's own, and the engine's."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_anvil.plugin import triton_overrides
from vllm_anvil.plugin.platform import AnvilPlatform
from vllm_anvil.plugin.triton_overrides import routing

NAME = f"{__name__}:fill_kernel"
TOPK_TOPP = "vllm.v1.sample.ops.topk_topp_triton:_topk_topp_kernel"


@triton.jit
def fill_kernel(out_ptr, value, size, BLOCK: tl.constexpr = 8):
    """Writes `value` to the first program's `size` elements and the grid to those behind them."""
    places = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(out_ptr + places, value, mask=places < size)
        tl.store(out_ptr + size, tl.num_programs(0) * 100 + tl.num_programs(1))


class Recorder:
    """An override that notes its launches; `takes` is what it answers."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, dict[str, Any]]] = []
        self.takes = True

    def override(self, grid: Any, out_ptr: Tensor, value: int, size: int, BLOCK: int) -> bool:
        arguments = {"out_ptr": out_ptr, "value": value, "size": size, "BLOCK": BLOCK}
        self.launches.append((grid, arguments))
        return self.takes


@pytest.fixture
def recorder(platform: AnvilPlatform, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    one = Recorder()
    monkeypatch.setattr(triton_overrides, "OVERRIDES", {NAME: one.override})
    yield one
    triton_overrides.unregister()


@pytest.fixture
def out() -> Tensor:
    return torch.zeros(8, dtype=torch.int32, device="anvil")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    # vLLM's loggers do not propagate to the root's, where caplog listens.
    triton_overrides.logger.addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING):
        yield caplog
    triton_overrides.logger.removeHandler(caplog.handler)


def test_grid_and_arguments_are_kept(recorder: Recorder, out: Tensor) -> None:
    triton_overrides.register()
    arguments = {"out_ptr": out, "value": 7, "size": 3}
    fill_kernel[(2,)](**arguments, BLOCK=4, num_warps=8)
    fill_kernel[(2, 5)](out, 7, 3, BLOCK=4)
    fill_kernel[lambda meta: (meta["size"], meta["BLOCK"], 9)](out, 7, size=3)
    assert [grid for grid, _ in recorder.launches] == [(2, 1, 1), (2, 5, 1), (3, 8, 9)]
    for (_, found), block in zip(recorder.launches, (4, 4, 8), strict=True):
        assert found == arguments | {"BLOCK": block}
    assert out.tolist() == [0] * 8


def test_compiled_kernel_runs_what_the_override_does_not_take(
    recorder: Recorder, out: Tensor
) -> None:
    triton_overrides.register()
    recorder.takes = False
    fill_kernel[(3, 2)](out, 7, 2)
    assert len(recorder.launches) == 1
    assert out.tolist() == [7, 7, 302, 0, 0, 0, 0, 0]


def test_wrong_arguments_are_reported_by_triton(recorder: Recorder, out: Tensor) -> None:
    triton_overrides.register()
    for args, kwargs in (((out, 1), {}), ((out, 1, 2, 8, 9), {}), ((out, 1, 2), {"value": 3})):
        with pytest.raises(TypeError):
            fill_kernel[(1,)](*args, **kwargs)
    assert recorder.launches == []


def test_compiling_ahead_goes_on_as_before(recorder: Recorder) -> None:
    triton_overrides.register()
    compiled = fill_kernel.warmup(torch.int32, 7, 3, BLOCK=8, grid=(1,))
    assert "ttir" in compiled.asm
    assert recorder.launches == []


def test_the_kernel_stays_a_kernel_wherever_it_is_held(recorder: Recorder, out: Tensor) -> None:
    held, key = fill_kernel, fill_kernel.cache_key
    tuned = triton.autotune([triton.Config({"BLOCK": 8})], key=["size"])(fill_kernel)
    triton_overrides.register()
    assert isinstance(fill_kernel, triton.JITFunction) and fill_kernel is held
    assert fill_kernel.cache_key == key
    tuned[(4,)](out, 7, 3)
    assert recorder.launches == [((4, 1, 1), {"out_ptr": out, "value": 7, "size": 3, "BLOCK": 8})]


def test_twice_is_once_and_can_be_undone(recorder: Recorder, out: Tensor) -> None:
    triton_overrides.register()
    route = fill_kernel.run
    triton_overrides.register()
    assert fill_kernel.run is route
    triton_overrides.unregister()
    triton_overrides.unregister()
    assert "run" not in vars(fill_kernel)
    fill_kernel[(1,)](out, 7, 1)
    assert recorder.launches == [] and out.tolist()[:2] == [7, 101]


def test_switch(recorder: Recorder, out: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_TRITON_OVERRIDES", "0")
    triton_overrides.register()
    fill_kernel[(1,)](out, 7, 1)
    assert recorder.launches == [] and out.tolist()[:2] == [7, 101]


def _other_names(grid: Any, out_ptr: Any, value: Any, size: Any, WIDTH: Any) -> bool:
    return True


def _other_order(grid: Any, value: Any, out_ptr: Any, size: Any, BLOCK: Any) -> bool:
    return True


def _too_few(grid: Any, out_ptr: Any, value: Any, size: Any) -> bool:
    return True


@pytest.mark.parametrize("override", [_other_names, _other_order, _too_few])
def test_parameters_that_differ_are_refused(
    recorder: Recorder,
    override: routing.Override,
    out: Tensor,
    warnings: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_overrides, "OVERRIDES", {NAME: override})
    triton_overrides.register()
    assert f"The native {NAME} is not used" in warnings.text
    assert "the kernel's are (out_ptr, value, size, BLOCK)" in warnings.text
    fill_kernel[(1,)](out, 7, 1)
    assert out.tolist()[:2] == [7, 101]


@pytest.mark.parametrize("name", ["no.such.module:kernel", f"{__name__}:no_such", NAME + ".more"])
def test_kernels_that_are_not_there_are_left_out(
    recorder: Recorder,
    name: str,
    warnings: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_overrides, "OVERRIDES", {name: recorder.override})
    triton_overrides.register()
    triton_overrides.unregister()
    assert f"The native {name} is not used: vLLM has no such kernel." in warnings.text


@pytest.fixture
def native_calls(platform: AnvilPlatform, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls of the native op, with every override installed as the worker does it."""
    from vllm_anvil.ops import sampling

    native, calls = sampling.topk_topp, []

    def recorded(*args: Any) -> None:
        calls.append(args)
        native(*args)

    monkeypatch.setattr(sampling, "topk_topp", recorded)
    platform.register_triton_kernel_overrides()
    yield calls
    triton_overrides.unregister()


def test_every_override_fits_the_installed_engine(
    platform: AnvilPlatform, warnings: pytest.LogCaptureFixture
) -> None:
    platform.register_triton_kernel_overrides()
    for name in triton_overrides.OVERRIDES:
        assert isinstance(triton_overrides._find(name).run, routing._Route), name
    assert warnings.text == ""
    triton_overrides.unregister()


@pytest.mark.parametrize("limits", ["k", "p", "k and p"])
def test_topk_topp_through_the_engines_sampler(native_calls: list[Any], limits: str) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    from vllm_anvil.references import sampling as sampling_reference

    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    k = torch.tensor([1, 50, 3000, 7, 2999]) if "k" in limits else None
    p = torch.tensor([0.9, 0.5, 0.1, 1.0, 0.3]) if "p" in limits else None
    expected = logits.clone()
    sampling_reference.topk_topp(expected, k, p)
    found = apply_top_k_top_p(
        logits.to("anvil"),
        None if k is None else k.int().to("anvil"),
        None if p is None else p.to("anvil"),
    )
    assert len(native_calls) == 1
    assert torch.equal(found.cpu(), expected)


def test_topk_topp_of_cpu_tensors_is_compiled(native_calls: list[Any]) -> None:
    from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

    logits = torch.arange(300.0).repeat(2, 1)
    found = apply_top_k_top_p_triton(logits, torch.tensor([3, 5]), None)
    assert (found > -math.inf).sum(1).tolist() == [3, 5]
    assert native_calls == []


@pytest.mark.parametrize(
    "change",
    [
        {"K": torch.ones(4, dtype=torch.int64)},
        {"K": torch.ones(8, dtype=torch.int32)[::2]},
        {"P": torch.ones(4).double(), "TOPP_ENABLED": True},
        {"LOGITS": torch.zeros(4, 64).bfloat16()},
        {"LOGITS_STRIDE_0": 128},
        {"BATCH_SIZE": 3},
        {"SPLIT_COVERS_PONLY": True},
    ],
)
def test_what_topk_topp_does_not_take(native_calls: list[Any], change: dict[str, Any]) -> None:
    """Nothing is done to the logits, and the answer sends the launch to the compiled kernel."""
    logits = torch.randn(4, 64)
    arguments = {
        "LOGITS": logits,
        "LOGITS_STRIDE_0": 64,
        "BUFFER": torch.empty(2, 64),
        "PERCENTILE_TO_STD_TABLE": torch.empty(200),
        "NORMAL_CDF_TO_SIGMA_TABLE": torch.empty(200),
        "K": torch.full((4,), 9, dtype=torch.int32),
        "P": logits,
        "BATCH_SIZE": 4,
        "VOCAB_SIZE": 64,
        "MASK_VALUE": -math.inf,
        "BLOCK_SIZE": 64,
        "BLOCK_SIZE_TRUNC": 64,
        "TOPK_ENABLED": True,
        "TOPP_ENABLED": False,
        "SPLIT_COVERS_PONLY": False,
    }

    def on_device(values: dict[str, Any]) -> dict[str, Any]:
        def move(value: Tensor) -> Tensor:
            # A gap stays a gap.
            spread = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="anvil"
            )
            return spread.copy_(value)

        return {n: move(v) if isinstance(v, Tensor) else v for n, v in values.items()}

    override = triton_overrides.OVERRIDES[TOPK_TOPP]
    taken = on_device(arguments)
    assert override((2, 1, 1), **taken)
    assert (taken["LOGITS"] > -math.inf).sum(1).tolist() == [9] * 4
    given = on_device(arguments | change)
    before = given["LOGITS"].clone()
    assert not override((2, 1, 1), **given)
    assert torch.equal(given["LOGITS"], before)
    assert len(native_calls) == 1
