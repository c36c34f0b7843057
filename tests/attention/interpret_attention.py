# SPDX-License-Identifier: Apache-2.0
"""Runs the Triton attention in Triton's interpreter and checks it; prints one line per layer.

A program of its own: Triton decides on the interpreter when a kernel is defined.
"""

from __future__ import annotations

import dataclasses
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from dense_attention import Sketch, dense_attention
from triton_geometries import GEOMETRIES, PER_REQUEST

from anvil_attention import verification
from anvil_attention.triton_kernels import triton_attention


def main() -> None:
    for name, spec in GEOMETRIES.items():
        spec = dataclasses.replace(spec, device="cpu")
        reason = triton_attention.refuses(spec)
        if reason is not None:
            print(f"{name} refused: {reason}", flush=True)
            continue
        causal = [False, True, True, False] if name in PER_REQUEST else True
        sketch = Sketch(spec, [(1, 37), (0, 3), (5, 9), (1, 1)], causal, padding=2)
        call = sketch.call()
        placed = verification.place_call(call, torch.device("cpu"), output_gap=3)
        verification.check(triton_attention, placed, dense_attention(call))
        print(f"{name} passed", flush=True)


if __name__ == "__main__":
    main()
