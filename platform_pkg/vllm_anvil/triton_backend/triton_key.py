# SPDX-License-Identifier: Apache-2.0
"""Triton's key of itself, computed once per installation instead of once per process.

`triton.runtime.cache.triton_key` hashes all of Triton, its library of some hundred megabytes
included, before the first kernel of a process is looked up: longer than loading all kernels of an
engine from the cache. Here what it found is kept beside the cache, under the names, sizes and times
of the files that it read; any change of those has it computed anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import triton
from triton import knobs
from triton.runtime import cache

_FOLDERS = ("_C", "backends", "compiler", "language", "runtime")
_SUFFIXES = (".py", ".so")


def install() -> None:
    """Has Triton ask here, in this process."""
    if not isinstance(cache.triton_key, _Remembered):
        cache.triton_key = _Remembered(cache.triton_key)


class _Remembered:
    def __init__(self, compute: Callable[[], str]):
        self._compute = compute

    @functools.cache  # noqa: B019  (there is one, which lives as long as the process)
    def __call__(self) -> str:
        path = Path(knobs.cache.dir, f"triton-key-{fingerprint()}")
        with contextlib.suppress(OSError, UnicodeDecodeError):
            key, _, digest = path.read_text().partition("\n")
            if digest == _digest(key):
                return key
        key = self._compute()
        with contextlib.suppress(OSError):  # then the next process computes it again
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            draft.write_text(f"{key}\n{_digest(key)}")
            draft.replace(path)
        return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def fingerprint() -> str:
    """Of the files that make up Triton: their paths, sizes and times of change."""
    root = Path(triton.__file__).parent
    digest = hashlib.sha256(triton.__version__.encode())
    for folder in _FOLDERS:
        for directory, folders, files in os.walk(root / folder):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith(_SUFFIXES):
                    found = os.stat(os.path.join(directory, name))
                    place = os.path.join(directory, name)
                    digest.update(f"{place} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]
