# SPDX-License-Identifier: Apache-2.0
"""Which implementations are measured: Anvil's, peers that cannot be served, and users'."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points

import torch

from anvil_attention.contract import AttentionImplementation, as_implementation
from anvil_attention.resolve import ENTRY_POINT_GROUP, OWN
from anvil_attention.resolve import resolve as resolve_name

from .devices import enable_triton

# Name -> module and attribute, imported when asked for.
PEERS = {
    "sdpa": ("anvil_attention.bench.sdpa", "sdpa_attention"),
    "engine": ("anvil_attention.bench.engine_kernel", "engine_attention"),
}
NOTES = {
    "sdpa": "torch's SDPA on keys and values that were gathered into contiguous tensors before, "
    "untimed",
    "engine": "the engine's CPU kernel on its own packed cache; packing, and the schedule that a "
    "step makes once for all layers, are untimed",
}


@dataclass(frozen=True)
class Candidate:
    """An implementation that is not imported yet.

    Attributes:
        name: of `anvil_attention.resolve`, or of a peer; also what tables call it.
        users: whether it is a user's: then it runs in a process of its own first.
        named: whether it was asked for; one that was not may be missing.
    """

    name: str
    users: bool
    named: bool


def candidates(named: list[str]) -> list[Candidate]:
    """What `--impl` options mean; without any, all that come with Anvil or are installed.

    Raises ValueError for a name that is neither known nor a module or file with a function.
    """
    installed = sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))
    built_in = [*OWN, *PEERS]
    if not named:
        return [
            *(Candidate(name, users=False, named=False) for name in built_in),
            *(Candidate(name, users=True, named=False) for name in installed),
        ]
    found = []
    for name in dict.fromkeys(named):
        if name not in built_in and name not in installed and ":" not in name:
            known = [*built_in, *installed]
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" (is {close[0]} meant?)" if close else ""
            raise ValueError(
                f"there is no implementation {name!r}{meant}: give one of {', '.join(known)}, or "
                "your own as module:function or path/to/file.py:function"
            )
        found.append(Candidate(name, users=name not in built_in, named=True))
    return found


def resolve(candidate: Candidate, device: torch.device) -> AttentionImplementation:
    """Imports an implementation.

    Raises:
        ImportError: its module or file is missing, or something that it needs.
        TypeError, ValueError: it is none, or another version's.
    """
    if candidate.name in PEERS and not candidate.users:
        where, attribute = PEERS[candidate.name]
        module = importlib.import_module(where)
        if candidate.name == "engine":
            module.load()
        return as_implementation(getattr(module, attribute), candidate.name)
    found = resolve_name(candidate.name)
    if candidate.name == "triton":
        enable_triton(device)
    elif candidate.users and sys.modules.get("triton"):
        # It imports Triton. It may bring a backend of its own, where ours cannot be used.
        with contextlib.suppress(ImportError):
            enable_triton(device)
    return found
