# SPDX-License-Identifier: Apache-2.0
"""The functions of MLIR's `math` dialect that are not one instruction."""

from __future__ import annotations

from collections.abc import Callable

from vllm_anvil.triton_backend.emit import math
from vllm_anvil.triton_backend.emit.floats import narrowed
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Handler
from vllm_anvil.triton_backend.lower.elementwise.floats import computed


def _sine_and_cosine(call: Call) -> tuple[Lanes, ...]:
    (x,) = call.computed_operands()
    element = call.float_result()
    results = (math.sin(x), math.cos(x))
    return results if element.name == "f64" else tuple(narrowed(y, element) for y in results)


# Each with about how many instructions a vector takes.
_FUNCTIONS: dict[str, tuple[Callable[..., Lanes], int]] = {
    "math.exp": (math.exp, 17),
    "math.exp2": (math.exp2, 16),
    "math.exp10": (math.exp10, 40),
    "math.expm1": (math.expm1, 20),
    "math.log": (math.log, 28),
    "math.log2": (math.log2, 28),
    "math.log10": (math.log10, 29),
    "math.log1p": (math.log1p, 34),
    "math.rsqrt": (math.reciprocal_square_root, 8),
    "math.cbrt": (math.cube_root, 140),
    "math.powf": (math.power, 150),
    "math.fpowi": (math.integer_power, 150),
    "math.sin": (math.sin, 50),
    "math.cos": (math.cos, 50),
    "math.tan": (math.tan, 80),
    "math.sinh": (math.sinh, 80),
    "math.cosh": (math.cosh, 60),
    "math.tanh": (math.tanh, 30),
    "math.asinh": (math.asinh, 100),
    "math.acosh": (math.acosh, 100),
    "math.atanh": (math.atanh, 90),
    "math.asin": (math.asin, 50),
    "math.acos": (math.acos, 50),
    "math.atan": (math.atan, 50),
    "math.atan2": (math.atan2, 70),
    "math.erf": (math.erf, 40),
    "math.erfc": (math.erfc, 120),
}
HANDLERS = {
    **{name: Handler(computed(function), cost) for name, (function, cost) in _FUNCTIONS.items()},
    "math.sincos": Handler(_sine_and_cosine, 60),
}
