# SPDX-License-Identifier: Apache-2.0
"""What the stream sanitizer has found (ANVIL_SANITIZE=1)."""

from __future__ import annotations

from pathlib import Path

import torch

from vllm_anvil import _C

_pending: list[str] = []
_count = 0


def _take() -> None:
    global _count
    text, _count = _C.sanitizer_take_reports()
    if text:
        _pending.extend(text.split("\n\n"))


def reports() -> list[str]:
    """The reports since the last call, one text each; empty when there are none, or it is off."""
    _take()
    taken = list(_pending)
    _pending.clear()
    return taken


def report_count() -> int:
    """How many different reports there have been in this process; takes none."""
    _take()
    return _count


def name_call_sites() -> None:
    """Makes reports name lines of the user's program: frames of torch and of this package are
    passed over."""
    packages = (Path(torch.__file__).parent, Path(__file__).parent.parent)
    _C.sanitizer_name_call_sites([f"{package}/" for package in packages])
