# SPDX-License-Identifier: Apache-2.0
"""What is in memory before a program runs."""

from __future__ import annotations

import zlib

import numpy as np

from fuzz.formats import NUMPY, cast
from fuzz.programs import FLOATS, FLOATS8, Program, Storage, bits_of

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 6e-8, 65504.0, 3e38, -3e38]


def inputs_of(program: Program) -> list[np.ndarray]:
    """The contents of the storages, from the program's seed."""
    return [
        _contents(storage, np.random.default_rng([program.seed, zlib.crc32(storage.name.encode())]))
        for storage in program.storages
    ]


def _contents(storage: Storage, random: np.random.Generator) -> np.ndarray:
    dtype, size, data = storage.dtype, storage.size, storage.data
    if data == "zeros":
        return np.zeros(size, NUMPY[dtype])
    if dtype == "i1":
        return random.integers(0, 2, size) != 0
    if dtype in FLOATS or dtype in FLOATS8:
        return _floats(dtype, size, data, random)
    bits = bits_of(dtype)
    wide = random.integers(0, 2**bits - 1, size, np.uint64, endpoint=True)
    values = wide.astype(NUMPY[dtype])
    if data == "small":
        return random.integers(0 if dtype[0] == "u" else -8, 9, size).astype(NUMPY[dtype])
    if data == "special":
        extremes = [0, 1, -1, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
        some = np.array([extreme % 2**bits for extreme in extremes], np.uint64)
        chosen = random.choice(some, size).astype(NUMPY[dtype])
        return np.where(random.random(size) < 0.3, chosen, values)
    return values


def _floats(dtype: str, size: int, data: str, random: np.random.Generator) -> np.ndarray:
    if data == "small":
        return cast(random.integers(-8, 9, size) / 4.0, "f64", dtype)
    values = random.normal(size=size) * 2.0 ** random.integers(-6, 7, size)
    if data == "special":
        scale = 2.0 ** random.integers(-140, 128, size)
        values = np.where(random.random(size) < 0.2, random.normal(size=size) * scale, values)
        values = np.where(random.random(size) < 0.2, random.choice(SPECIAL, size), values)
    with np.errstate(over="ignore", invalid="ignore"):
        return cast(values, "f64", dtype)
