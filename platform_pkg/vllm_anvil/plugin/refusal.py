# SPDX-License-Identifier: Apache-2.0
"""How a platform refuses options that it does not support: by name, all at once, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllm.config import VllmConfig


@dataclass(frozen=True)
class Refusal:
    """One option that a platform does not support.

    `applies` says whether a configuration uses it; `reason` completes the sentence "OPTION is not
    supported on PLATFORM: ...".
    """

    option: str
    applies: Callable[[VllmConfig], bool]
    reason: str


def refuse(config: VllmConfig, refusals: Iterable[Refusal], platform: str) -> None:
    """Raises ValueError with one line for each of the options that the configuration uses."""
    lines = [
        f"{refusal.option} is not supported on {platform}: {refusal.reason}."
        for refusal in refusals
        if refusal.applies(config)
    ]
    if lines:
        raise ValueError("\n".join(lines))
