# SPDX-License-Identifier: Apache-2.0
"""What the text of an environment variable means.

Each function takes text that is not blank and returns the value, typed, or raises ValueError with
what is accepted, in words that complete the sentence "NAME='value': ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_DEVICES = 64
LEAST_DEVICE_MEMORY = 2 << 20  # bytes: the allocator's smallest mapping
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"unknown name; choose one of {', '.join(names)}")
        return text

    return parse


def flag(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text.strip() == "1"


def device_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or not 1 <= int(text) <= MAX_DEVICES:
        raise ValueError(f"must be a whole number of devices from 1 to {MAX_DEVICES}")
    return int(text)


def host_cores(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) > 1024:
        raise ValueError("must be a whole number of cores from 0 to 1024")
    return int(text)


def delay(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) > 1_000_000:
        raise ValueError("must be a whole number of microseconds from 0 to 1000000")
    return int(text)


def device_indices(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", part) and int(part) < MAX_DEVICES for part in parts):
        raise ValueError("must be device indices separated by commas, such as 0 or 1,3")
    indices = tuple(map(int, parts))
    if len(set(indices)) != len(indices):
        raise ValueError("names a device twice; each index may appear once")
    return indices


def step_range(text: str) -> range:
    match = re.fullmatch(r"([0-9]+)(?:\s*-\s*([0-9]+))?", text.strip())
    if match is None:
        raise ValueError("must be how many steps, such as 32, or which, such as 100-115")
    first, last = (0, int(match[1]) - 1) if match[2] is None else (int(match[1]), int(match[2]))
    if last < first:
        raise ValueError(
            "holds no step: give at least 1, or a last step that is not before the first"
        )
    return range(first, last + 1)


def layers(text: str) -> tuple[int, ...] | str:
    if text.strip() in ("ends", "all"):
        return text.strip()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", part) for part in parts):
        raise ValueError("must be ends, all, or numbers of layers separated by commas")
    return tuple(sorted({int(part) for part in parts}))


def op_names(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[a-z_][a-z0-9_]*", part) for part in parts):
        raise ValueError(
            "must be names of ops separated by commas, such as paged_attention,rms_norm"
        )
    return tuple(parts)


def attention_name(text: str) -> str:
    if re.search(r"\s", text.strip()) or text.strip().count(":") > 1:
        raise ValueError(
            "must be a name, module:function or path/to/file.py:function, without spaces"
        )
    return text.strip()


def memory_size(text: str) -> int:
    pattern = r"([0-9]+)|([0-9]+(?:\.[0-9]*)?)\s*([kmgt])(?:ib)?"
    match = re.fullmatch(pattern, text.strip(), re.IGNORECASE | re.ASCII)
    size = 0
    if match is not None:
        # Plain bytes stay whole: a float would round large ones.
        size = int(match[1]) if match[1] else int(float(match[2]) * _UNITS[match[3].lower()])
    if size < LEAST_DEVICE_MEMORY:
        raise ValueError(
            "must be at least 2 MiB, in bytes or with a unit (KiB, MiB, GiB, TiB, or K, M, G, T, "
            "all powers of 1024), such as 8589934592, 8GiB or 1.5G"
        )
    return size
