# SPDX-License-Identifier: Apache-2.0
"""The variables' parsers, their messages, and the reference page."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_anvil import envs

GOOD = [
    ("ANVIL_TARGET", "cuda", "cuda"),
    ("ANVIL_STRICT", "1", True),
    ("ANVIL_AUTOLOAD", "0", False),
    ("ANVIL_DEVICES", "4", 4),
    ("ANVIL_DEVICES", "64", 64),
    ("ANVIL_VISIBLE_DEVICES", "2,0", (2, 0)),
    ("ANVIL_VISIBLE_DEVICES", "1, 3", (1, 3)),
    ("ANVIL_DEVICE_MEMORY", "9007199254740993", 9007199254740993),
    ("ANVIL_DEVICE_MEMORY", "2097152", 2 << 20),
    ("ANVIL_DEVICE_MEMORY", " 1.5 g ", 3 << 29),
    ("ANVIL_DEVICE_MEMORY", "8GiB", 8 << 30),
    ("ANVIL_DEVICE_MEMORY", "512MiB", 512 << 20),
    ("ANVIL_DEVICE_MEMORY", "4096KiB", 4 << 20),
    ("ANVIL_DEVICE_MEMORY", "2TiB", 2 << 40),
    ("ANVIL_ISA", "avx512_bf16", "avx512_bf16"),
    ("ANVIL_LAUNCH_BLOCKING", "1", True),
]

BAD = [
    ("ANVIL_TARGET", "gpu", "auto, anvil, cuda, off"),
    ("ANVIL_TARGET", "Anvil", "auto, anvil, cuda, off"),
    ("ANVIL_STRICT", "yes", "0 or 1"),
    ("ANVIL_AUTOLOAD", "true", "0 or 1"),
    ("ANVIL_DEVICES", "0", "from 1 to 64"),
    ("ANVIL_DEVICES", "-1", "from 1 to 64"),
    ("ANVIL_DEVICES", "65", "from 1 to 64"),
    ("ANVIL_DEVICES", "two", "from 1 to 64"),
    ("ANVIL_VISIBLE_DEVICES", "64", "separated by commas"),
    ("ANVIL_VISIBLE_DEVICES", "0,", "separated by commas"),
    ("ANVIL_VISIBLE_DEVICES", "-1", "separated by commas"),
    ("ANVIL_VISIBLE_DEVICES", "1,1", "twice"),
    ("ANVIL_DEVICE_MEMORY", "-8GiB", "at least 2 MiB"),
    ("ANVIL_DEVICE_MEMORY", "2097151", "at least 2 MiB"),
    ("ANVIL_DEVICE_MEMORY", "8GB", "GiB"),
    ("ANVIL_DEVICE_MEMORY", "1.5", "GiB"),
    ("ANVIL_DEVICE_MEMORY", "lots", "GiB"),
    ("ANVIL_ISA", "sse2", "scalar, avx2, avx512, avx512_bf16"),
    ("ANVIL_LAUNCH_BLOCKING", "2", "0 or 1"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_reads_good_values(name: str, text: str, value: object) -> None:
    environ = {name: text, "ANVIL_DEVICES": "4"} | {name: text}
    assert envs.get(name, environ) == value
    envs.validate(environ)


@pytest.mark.parametrize(("name", "text", "accepted"), BAD)
def test_bad_value_is_one_error_that_names_variable_value_and_choices(
    name: str, text: str, accepted: str
) -> None:
    with pytest.raises(envs.EnvError) as caught:
        envs.get(name, {name: text})
    message = str(caught.value)
    assert message.startswith(f"{name}={text!r}: ")
    assert accepted in message
    assert "unset" in message
    assert "\n" not in message
    assert envs.errors({name: text}) == [message]


@pytest.mark.parametrize("name", envs.VARIABLES)
def test_unset_and_blank_are_the_default(name: str) -> None:
    assert envs.get(name, {}) == envs.get(name, {name: " "}) == envs.VARIABLES[name].default


def test_attributes_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_DEVICES", "3")
    assert envs.ANVIL_DEVICES == 3
    monkeypatch.delenv("ANVIL_DEVICES")
    assert envs.ANVIL_DEVICES == 1
    with pytest.raises(AttributeError, match="ANVIL_NOTHING"):
        _ = envs.ANVIL_NOTHING


def test_visible_devices_beyond_the_count() -> None:
    environ = {"ANVIL_DEVICES": "2", "ANVIL_VISIBLE_DEVICES": "0,2"}
    with pytest.raises(envs.EnvError, match=r"no device 2, since ANVIL_DEVICES is 2.*below 2"):
        envs.validate(environ)
    envs.validate(environ | {"ANVIL_DEVICES": "3"})


def test_validate_reports_every_bad_variable() -> None:
    with pytest.raises(envs.EnvError) as caught:
        envs.validate({"ANVIL_DEVICES": "0", "ANVIL_ISA": "mmx"})
    assert [line.partition("=")[0] for line in str(caught.value).split("\n")] == [
        "ANVIL_DEVICES",
        "ANVIL_ISA",
    ]


def test_unknown_names() -> None:
    environ = {"ANVIL_DEVICE": "2", "ANVIL_DEVICES": "2", "VLLM_PLUGINS": "anvil"}
    assert envs.unknown(environ) == ["ANVIL_DEVICE"]


def test_reference_page_is_current(run) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "environment.md"
    assert page.read_text() == envs.markdown(), (
        "run: python -m vllm_anvil.envs > docs/reference/environment.md"
    )
    generated = run(["-m", "vllm_anvil.envs"])
    assert generated.stdout == envs.markdown()
    assert generated.stderr == ""
    assert all(name in generated.stdout for name in envs.VARIABLES)
