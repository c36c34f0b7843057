# SPDX-License-Identifier: Apache-2.0
"""The numbers of constants, in the forms in which MLIR prints them."""

from __future__ import annotations

import struct
from typing import Any

from vllm_anvil.triton_backend.ttir.model import ScalarType, Type, element_of
from vllm_anvil.triton_backend.ttir.scanner import Scanner


def constant_value(item: Any, type_: Type) -> Any:
    """A number, or a flat list of numbers, of what `dense<...>` or a scalar constant says."""
    element = element_of(type_)
    if isinstance(item, list):
        flat: list[Any] = []
        for inner in item:
            value = constant_value(inner, type_)
            flat += value if isinstance(value, list) else [value]
        return flat
    if isinstance(item, tuple):  # raw bytes, as large constants are printed
        return _numbers_from_bytes(bytes.fromhex(item[1].removeprefix("0x")), element)
    if item in ("true", "false"):
        return int(item == "true")
    return Scanner.number(item, element)


def _numbers_from_bytes(data: bytes, element: Any) -> list[Any]:
    if isinstance(element, ScalarType) and element.is_float and element.name != "bf16":
        letter = {16: "e", 32: "f", 64: "d"}[element.bits]
    else:
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[element.bytes]
    numbers = list(struct.unpack(f"<{len(data) // element.bytes}{letter}", data))
    if isinstance(element, ScalarType) and element.name == "bf16":
        packed = struct.pack(f"<{len(numbers) * 2}h", *(x for n in numbers for x in (0, n)))
        return list(struct.unpack(f"<{len(numbers)}f", packed))
    return numbers
