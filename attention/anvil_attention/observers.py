# SPDX-License-Identifier: Apache-2.0
"""Whoever wants to see the calls of the attention that is served, such as the step recorder.

At most one; without one, a layer pays for a comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable

from .contract import AttentionCall

# Given a layer's name and its call before it is computed; what it returns, if anything, is called
# once the output has been written.
Observer = Callable[[str, AttentionCall], Callable[[], None] | None]

_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Installs an observer in this process, or removes it."""
    global _observer
    _observer = observer


def observer() -> Observer | None:
    return _observer
