# SPDX-License-Identifier: Apache-2.0
"""Triton's key of itself is remembered, and only as long as Triton stays what it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import triton
from triton import knobs
from triton.runtime import cache

from vllm_anvil.triton_backend import triton_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return tmp_path


def counting() -> tuple[list[int], triton_key._Remembered]:
    calls: list[int] = []

    def compute() -> str:
        calls.append(1)
        return f"key {len(calls)}"

    return calls, triton_key._Remembered(compute)


def test_what_is_remembered_is_tritons_own_key(folder: Path) -> None:
    whole = triton_key._Remembered(getattr(cache.triton_key, "_compute", cache.triton_key))
    assert whole().startswith(triton.__version__)
    assert triton_key._Remembered(lambda: "never asked")() == whole()


def test_a_changed_file_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = triton_key.fingerprint()
    real = os.stat

    def changed(path: str, **options: object) -> os.stat_result:
        found = real(path, **options)  # type: ignore[arg-type]
        if not str(path).endswith("libtriton.so"):
            return found
        fields = list(found)
        fields[6] += 1  # its size
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", changed)
    assert triton_key.fingerprint() != before


@pytest.mark.parametrize("content", [b"", b"key 1", b"key 9\n123", b"\xff\xfe\x00"])
def test_a_damaged_record_is_made_anew(folder: Path, content: bytes) -> None:
    calls, remembered = counting()
    assert remembered() == "key 1"
    (record,) = folder.glob("triton-key-*")
    record.write_bytes(content)
    calls, remembered = counting()
    assert remembered() == "key 1" and calls == [1]
    calls, remembered = counting()
    assert remembered() == "key 1" and not calls


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "file"
    file.write_text("")
    monkeypatch.setattr(knobs.cache, "dir", str(file / "below"))
    calls, remembered = counting()
    assert remembered() == "key 1" and remembered() == "key 1" and calls == [1]
