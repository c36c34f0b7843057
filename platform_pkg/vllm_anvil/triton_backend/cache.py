# SPDX-License-Identifier: Apache-2.0
"""Triton's disk cache, made safe against what happens to files.

Triton stores the stages of a kernel as files of a folder, and a list of them as the group that it
looks for. Here that list holds checksums too: a group of which a file is missing, cut short,
changed or unreadable counts as absent, so the kernel is compiled again and stored anew. Files
appear whole or not at all, so several processes may compile one kernel at once. Where the folder
cannot be written, a temporary one serves the process.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

logger = logging.getLogger("vllm.plugins.anvil")

# Files that are read by themselves, not as part of a group, carry their checksum beside them.
ALONE = ".autotune.json"


def install() -> None:
    """Makes Triton use this cache in this process, unless the user chose one."""
    if knobs.cache.manager_class is None:
        knobs.cache.manager_class = CheckedCacheManager


class CheckedCacheManager(FileCacheManager):
    """The cache's folder of one kernel.

    Dumps and overrides, which a user asks for by name, are Triton's own.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._is_users = override or dump
        self._digests: dict[str, str] = {}
        if self._is_users:
            super().__init__(key, override=override, dump=dump)
            return
        self.key = key
        self.lock_path = None
        self.cache_dir = os.path.join(knobs.cache.dir, key)
        try:
            os.makedirs(self.cache_dir, exist_ok=True)
        except OSError as error:
            self._use_temporary_folder(error)

    def get_file(self, filename: str) -> str | None:
        """Path of the file; None when it is absent or, where that is known, damaged."""
        if not self._is_users and filename.endswith(ALONE):
            expected = _read_text(f"{self._make_path(filename)}.sha256")
            if expected is None or _digest_of_file(self._make_path(filename)) != expected:
                return None
        return super().get_file(filename)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a group's files by their names; None unless all are as they were stored."""
        if self._is_users:
            return super().get_group(filename)
        text = _read_text(self._make_path(f"__grp__{filename}"))
        if text is None:
            return None
        paths, digests = _parse_group(text)
        if filename not in paths:
            return None
        for name, path in paths.items():
            if digests.get(name) is None or _digest_of_file(path) != digests[name]:
                logger.debug("Triton's cache: %s is not as it was stored; compiling again", path)
                return None
        return paths

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        if self._is_users:
            return super().put_group(filename, group)
        digests = {
            name: self._digests.get(name) or _digest_of_file(path) for name, path in group.items()
        }
        contents = json.dumps({"child_paths": group, "sha256": digests})
        return self.put(contents, f"__grp__{filename}", binary=False)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Stores the file, all of it or nothing, and returns its path.

        Raises:
            OSError: neither the cache nor any temporary folder can be written.
        """
        if self._is_users:
            return super().put(data, filename, binary=binary)
        content = data if isinstance(data, bytes) else str(data).encode()
        digest = hashlib.sha256(content).hexdigest()
        try:
            path = self._write(filename, content)
        except OSError as error:
            self._use_temporary_folder(error)
            path = self._write(filename, content)
        if filename.endswith(ALONE):
            self._write(f"{filename}.sha256", digest.encode())
        self._digests[filename] = digest
        return path

    def _write(self, filename: str, content: bytes) -> str:
        path = self._make_path(filename)
        draft = os.path.join(self.cache_dir, f".{os.getpid()}.{uuid.uuid4().hex}")
        try:
            with open(draft, "wb") as file:
                file.write(content)
            os.replace(draft, path)
        except OSError:
            Path(draft).unlink(missing_ok=True)
            raise
        return path

    def _use_temporary_folder(self, error: OSError) -> None:
        folder = _temporary_folder(os.getpid())
        _warn_once(str(knobs.cache.dir), str(error.strerror or error), folder)
        self.cache_dir = os.path.join(folder, self.key)
        os.makedirs(self.cache_dir, exist_ok=True)


def _parse_group(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """(paths, checksums) of a group's list, both empty when it is none."""
    try:
        stored = json.loads(text)
        paths, digests = stored["child_paths"], stored["sha256"]
        return {str(k): str(v) for k, v in paths.items()}, dict(digests)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, {}


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _digest_of_file(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@functools.cache
def _temporary_folder(process: int) -> str:
    """The process's own, removed when it ends."""
    try:
        folder = tempfile.mkdtemp(prefix="anvil-triton-")
    except OSError:
        folder = tempfile.mkdtemp(prefix="anvil-triton-", dir="/dev/shm")

    def remove() -> None:
        if os.getpid() == process:  # not when a forked child ends
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@functools.cache
def _warn_once(folder: str, reason: str, instead: str) -> None:
    logger.warning(
        "Triton's cache in %s cannot be written (%s). Kernels compiled by this process are kept in "
        "%s and compiled again by the next one; TRITON_CACHE_DIR names another folder.",
        folder,
        reason,
        instead,
    )
