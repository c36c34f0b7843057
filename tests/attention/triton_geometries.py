# SPDX-License-Identifier: Apache-2.0
"""The layers for which the Triton attention is compiled in tests: few, since each takes seconds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from anvil_attention.contract import AttentionSpec

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _spec(
    heads: tuple[int, int],
    sizes: tuple[int, int],
    block_size: int,
    dtype: torch.dtype,
    **options: object,
) -> AttentionSpec:
    return dataclasses.replace(
        AttentionSpec(*heads, *sizes, block_size, dtype, dtype, sizes[0] ** -0.5, device="anvil"),
        **options,  # type: ignore[arg-type]
    )


GEOMETRIES = {
    "smollm2": _spec((9, 3), (64, 64), 16, BRAIN),
    "mha": _spec((4, 4), (32, 32), 16, FULL),
    "mqa": _spec((16, 1), (32, 32), 32, HALF, logits_soft_cap=5.0),
    "group5_head40": _spec((5, 1), (40, 40), 20, FULL, has_alibi=True, has_sinks=True),
    "value_smaller": _spec((4, 2), (48, 24), 7, BRAIN, has_sinks=True),
    "value_larger": _spec((6, 2), (16, 33), 1, FULL, sliding_window=9),
    "head1": _spec((3, 3), (1, 5), 3, FULL),
    "head192": _spec((4, 2), (192, 128), 128, BRAIN, sliding_window=50),
    "everything": _spec(
        (8, 2),
        (32, 32),
        48,
        FULL,
        sliding_window=20,
        logits_soft_cap=30.0,
        has_alibi=True,
        has_sinks=True,
    ),
    "float8_e4m3": _spec((4, 2), (64, 64), 16, BRAIN, kv_dtype=E4M3),
    "float8_e5m2": _spec((4, 2), (64, 64), 16, FULL, kv_dtype=E5M2),
    "int8": _spec((4, 2), (64, 64), 16, BRAIN, kv_dtype=torch.int8),
    "other_cache_dtype": _spec((4, 2), (16, 16), 16, FULL, kv_dtype=BRAIN),
}
# Causality that differs between requests is one more compilation of each.
PER_REQUEST = ("everything", "mha")


@dataclass(frozen=True)
class Compilation:
    """One of the kernel for a GPU. With `everything`, a layer asks for all that there is."""

    capability: int
    sizes: tuple[int, int]  # of a head of a key, and of a value
    group: int  # query heads of a KV head
    dtype: torch.dtype
    kv_dtype: torch.dtype
    decode: bool
    everything: bool = False

    def __str__(self) -> str:
        dtypes = f"{self.dtype}-{self.kv_dtype}".replace("torch.", "")
        kind = "decode" if self.decode else "prompt"
        return f"{self.capability}-{self.sizes[0]}-{self.sizes[1]}-{self.group}-{dtypes}-{kind}"


COMPILATIONS = (
    Compilation(80, (64, 64), 3, BRAIN, BRAIN, decode=True),
    Compilation(80, (64, 64), 3, BRAIN, BRAIN, decode=False),
    Compilation(80, (128, 128), 4, HALF, E5M2, decode=False, everything=True),
    Compilation(80, (80, 80), 1, FULL, FULL, decode=False, everything=True),
    Compilation(80, (576, 512), 16, BRAIN, BRAIN, decode=True),
    Compilation(90, (64, 64), 3, BRAIN, BRAIN, decode=False),
    Compilation(90, (128, 128), 8, BRAIN, E4M3, decode=True, everything=True),
    Compilation(90, (192, 128), 1, HALF, HALF, decode=False),
    Compilation(90, (80, 80), 1, FULL, FULL, decode=True),
)
