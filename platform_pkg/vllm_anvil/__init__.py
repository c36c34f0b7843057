# SPDX-License-Identifier: Apache-2.0
"""Anvil: the host's cores and memory as an accelerator for vLLM.

This module holds the package's entry points and imports neither torch nor vllm: vLLM, torch and
worker processes import it in any order, and being installed changes nothing by itself.

* `register` answers vLLM when it selects its platform (group `vllm.platform_plugins`).
* `notice` is called where an engine is configured or run (group `vllm.general_plugins`).
* `autoload` answers `import torch` (group `torch.backends`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

__all__ = ["autoload", "is_strict", "notice", "register"]

# Below "vllm", so that vLLM's logging configuration and level apply to it.
logger = logging.getLogger("vllm.plugins.anvil")

_said: set[str] = set()


def _say(level: int, message: str) -> None:
    """Logs a message once per process: vLLM calls register() twice in one selection.

    vLLM selects its platform while it is imported, before it configures logging. Until then the
    line goes to standard error by itself, at the level that vLLM will be configured to.
    """
    if message in _said:
        return
    _said.add(message)
    if logger.hasHandlers() or os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0":
        logger.log(level, "%s", message)
        return
    names = logging.getLevelNamesMapping()
    threshold = names.get(os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper(), logging.INFO)
    if level >= threshold:
        print(f"{logging.getLevelName(level)} [vllm_anvil] {message}", file=sys.stderr)


def is_strict(environ: Mapping[str, str] | None = None) -> bool:
    """Whether errors end the process. An unusable value counts as set: it is one of the errors."""
    return (os.environ if environ is None else environ).get("ANVIL_STRICT", "") not in ("", "0")


def _fail(message: str) -> None:
    """Logs an error; under ANVIL_STRICT=1 ends the process with it instead.

    vLLM catches Exception around a plugin's answer and goes on to another platform. SystemExit is
    not an Exception: it unwinds the process normally, and the interpreter prints the message once.
    """
    if is_strict():
        raise SystemExit(f"vllm-anvil (ANVIL_STRICT): {message}")
    _say(logging.ERROR, message)


def register() -> str | None:
    """Answers vLLM's question whether Anvil is the platform of this process.

    Returns the qualified name of the platform class, or None with the reason logged. Cheap: reads
    the environment, the metadata of installed distributions and a few files. May be called any
    number of times, from any thread; each call answers for the environment as it is then.

    Never raises an Exception. Under ANVIL_STRICT=1 an error raises SystemExit with one message.
    """
    try:
        from vllm_anvil import selection

        host = selection.observe()
        decision = selection.decide(host)
        rivals = selection.rivals(host) if decision.chosen else ()
    except Exception as error:
        _fail(
            f"the installed package is damaged ({type(error).__name__}: {error}), so its platform "
            "is not used. Reinstall vllm-anvil, or uninstall it."
        )
        return None
    if decision.level >= logging.ERROR and (is_strict() or not decision.chosen):
        # Chosen with an error is an unusable ANVIL_* variable: the platform itself refuses to
        # start with this message, rather than leaving the engine to other hardware.
        _fail(decision.message)
    else:
        _say(logging.DEBUG if decision.chosen else decision.level, decision.message)
    if rivals:
        _say(logging.WARNING, selection.rivals_message(rivals))
    return decision.platform if decision.chosen else None


def notice() -> None:
    """What has to be done in a process that configures or runs an engine, which calls it.

    Where Anvil is the platform, it adapts how the engine starts its workers. Where
    VLLM_TARGET_DEVICE=cpu made vLLM take its CPU platform without asking, that is said at INFO.
    Never raises.
    """
    try:
        chosen = getattr(sys.modules.get("vllm.platforms"), "_current_platform", None)
        prepare = getattr(chosen, "prepare_engine", None)
        if prepare is not None:
            prepare()
        from vllm_anvil import selection

        skipped = selection.bypass(os.environ)
        if skipped is not None and os.environ.get("ANVIL_TARGET") != "off":
            _say(skipped.level, skipped.message)
    except Exception as error:
        _say(logging.WARNING, f"the installed vllm-anvil package is damaged: {error!r}")


def autoload() -> None:
    """Registers the device during `import torch` when ANVIL_AUTOLOAD=1; otherwise does nothing.

    A device that cannot be loaded is logged as a warning, so that torch stays usable; under
    ANVIL_STRICT=1 the error is raised, and `import torch` fails with it.
    """
    try:
        from vllm_anvil import envs

        if envs.get("ANVIL_AUTOLOAD"):
            import vllm_anvil.device  # noqa: F401
    except Exception as error:
        if is_strict():
            raise
        _say(logging.WARNING, f"ANVIL_AUTOLOAD: the anvil device was not loaded: {error}")
