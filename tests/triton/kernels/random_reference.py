# SPDX-License-Identifier: Apache-2.0
"""The random numbers of vLLM's samplers, computed in integers.

* The hash is MurmurHash3 (x86, 32 bits) of the 16 bytes seed (8), position (4) and token id (4),
  little-endian, started from a domain; it gives the Gumbel noise of ordinary sampling.
* Philox 4x32-10 gives the noise of watermarked sampling, and Triton's `tl.rand`.
"""

from __future__ import annotations

import struct

import numpy as np

HIGH_WORD_DOMAIN = 0x9E3779B9
# What is added to the positions of draws that are proposals.
DRAFT_OFFSET = 1 << 30
_MASK = 0xFFFFFFFF
_WORD = np.uint64(_MASK)


def murmur3(seed: int, position: int, token: int, domain: int = 0) -> int:
    def rotated(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & _MASK

    state = domain
    key = struct.pack("<qII", seed, position & _MASK, token)
    for (block,) in struct.iter_unpack("<I", key):
        block = rotated(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        state = (rotated(state ^ block, 13) * 5 + 0xE6546B64) & _MASK
    state ^= 16  # the length in bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def random_words(seed: int, position: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """uint64 [tokens] twice: the 32-bit hashes, and the 53-bit numbers."""
    low = np.array([murmur3(seed, position, t) for t in range(tokens)], dtype=np.uint64)
    high = np.array(
        [murmur3(seed, position, t, HIGH_WORD_DOMAIN) for t in range(tokens)], dtype=np.uint64
    )
    return low, (high << np.uint64(32) | low) >> np.uint64(11)


def gumbel_noise(seed: int, position: int, tokens: int, use_fp64: bool = False) -> np.ndarray:
    """float64 [tokens]: the noise of each token; its tail is at u -> 0, or with fp64 at u -> 1."""
    low, full = random_words(seed, position, tokens)
    if use_fp64:
        return -np.log(-np.log((full.astype(np.float64) + 0.5) * 2.0**-53))
    return -np.log(-np.log1p(-((low.astype(np.float64) + 0.5) * 2.0**-32)))


def philox(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """uint64 [4, n]: ten rounds of Philox 4x32 over `counters` [4, n] of 32-bit words."""
    c0, c1, c2, c3 = counters.astype(np.uint64)
    k0, k1 = (np.uint64(k) for k in key)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ k0,
            second & _WORD,
            (first >> np.uint64(32)) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _WORD, (k1 + np.uint64(0xBB67AE85)) & _WORD
    return np.stack([c0, c1, c2, c3])


def triton_rand(seed: int, position: int) -> float:
    """`tl.rand` of an int64 position: a float32 in [0, 1)."""
    counters = np.array([[position & _MASK], [position >> 32 & _MASK], [0], [0]], dtype=np.uint64)
    word = int(philox(counters, (seed & _MASK, seed >> 32 & _MASK))[0, 0])
    magnitude = word if word < 2**31 else _MASK - word
    return float(np.float32(magnitude) * np.float32(4.6566127342e-10))


def watermark_uniform(context: list[int], tokens: int, key: int) -> np.ndarray:
    """float32 [tokens] in (0, 1): the numbers that a detector computes behind `context`."""
    words = (key & _MASK, key >> 32)
    state = np.array([[0x574D4358], [len(context)], [0], [0]], dtype=np.uint64)
    for begin in range(0, len(context), 4):
        block = [c & _MASK for c in context[begin : begin + 4]]
        block += [_MASK - i for i in range(len(block), 4)]
        mixed = state ^ np.array(block, dtype=np.uint64)[:, None]
        state = philox(mixed, (words[0] ^ begin, words[1]))
    groups = np.arange(-(-tokens // 4), dtype=np.uint64)
    counters = np.stack([groups, *(np.full_like(groups, s) for s in state[:3, 0])])
    outputs = philox(counters, (words[0] ^ int(state[3, 0]), words[1] ^ 0x574D544B))
    mantissas = (outputs.T.reshape(-1)[:tokens] >> np.uint64(8)) + np.uint64(1)
    return np.nextafter((mantissas * 2.0**-24).astype(np.float32), np.float32(0))
