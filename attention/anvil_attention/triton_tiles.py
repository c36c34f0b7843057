# SPDX-License-Identifier: Apache-2.0
"""Sizes of the tiles of the Triton attention on each kind of device, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Tiles:
    """Sizes of the kernel's tiles on a kind of device, powers of two.

    Attributes:
        rows, keys: query rows of a tile and keys of one step, for heads of up to `whole_head`
            elements; larger heads get smaller tiles in proportion.
        decode_rows, decode_keys: the same for requests with one query token; more rows where more
            query heads share a KV head.
        whole_head: in elements of 2 bytes where products are made in the query's type.
        least: rows, keys and elements of a head that a product has at least.
        in_float32: see the kernel's IN_FLOAT32.
        rows_apart: with up to so many rows, see the kernel's BY_ROWS.
        options: of the launch.
    """

    rows: int
    keys: int
    decode_rows: int
    decode_keys: int
    whole_head: int
    least: int
    in_float32: bool
    rows_apart: int
    options: dict[str, int] = field(default_factory=dict)


# A core of the host multiplies float32, whatever the type, and any number of rows. Measured with
# heads of 64 on AVX-512: 64 by 64 is the fastest for prompts (smaller tiles convert each key more
# often, larger ones leave the first-level cache), and for one token's rows products made apart are
# twice as fast as those that need the keys transposed first.
HOST = Tiles(
    rows=64,
    keys=64,
    decode_rows=1,
    decode_keys=32,
    whole_head=128,
    least=1,
    in_float32=True,
    rows_apart=8,
)
# A GPU's smallest product is 16 by 16 by 16. 64 by 64 at a head of 128 in 16 bits is 16 KiB for a
# tile of keys and as much for values, twice each in flight: that fits into the shared memory of
# every GPU since compute capability 8.0 and leaves room for a second program.
GPU = Tiles(
    rows=64,
    keys=64,
    decode_rows=16,
    decode_keys=64,
    whole_head=128,
    least=16,
    in_float32=False,
    rows_apart=0,
    options={"num_warps": 4, "num_stages": 2},
)
TILES = {"anvil": HOST, "cpu": HOST, "cuda": GPU, "xpu": GPU}


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def constants(
    device: str,
    group: int,
    head_size: int,
    value_head_size: int,
    block_size: int,
    dtype: torch.dtype,
    *,
    decode: bool,
    per_request: bool = False,
    has_soft_cap: bool = False,
    has_alibi: bool = False,
    has_sinks: bool = False,
) -> dict[str, Any]:
    """The kernel's compile-time constants for a geometry.

    Args:
        device: type of the device.
        group: query heads of a KV head.
        dtype: of the query.
        decode: for requests with one query row, or for longer ones.
    """
    tiles = TILES[device]
    head_tile = max(power_of_two(head_size), tiles.least)
    value_tile = max(power_of_two(value_head_size), tiles.least)
    wide = 2 if dtype == torch.float32 and not tiles.in_float32 else 1
    shrink = max(1, max(head_tile, value_tile) * wide // tiles.whole_head)
    rows, keys = (tiles.decode_rows, tiles.decode_keys) if decode else (tiles.rows, tiles.keys)
    rows = max(rows // shrink, tiles.least, power_of_two(group))
    return {
        "GROUP": group,
        "HEAD_SIZE": head_size,
        "VALUE_HEAD_SIZE": value_head_size,
        "BLOCK_SIZE": block_size,
        "PER_REQUEST": per_request,
        "HAS_SOFT_CAP": has_soft_cap,
        "HAS_ALIBI": has_alibi,
        "HAS_SINKS": has_sinks,
        "ROWS": rows,
        "KEYS": max(keys // shrink, 16),
        "HEAD_TILE": head_tile,
        "VALUE_TILE": value_tile,
        "IN_FLOAT32": tiles.in_float32 or dtype == torch.float32,
        "BY_ROWS": rows <= tiles.rows_apart,
    }
