# SPDX-License-Identifier: Apache-2.0
"""Functions of floats as inline code: polynomials, without calls, tables or fast-math.

Each works on float32 and float64, scalars and vectors, and is right at zeros, denormals, infinities
and NaN. Its docstring bounds the error in units in the last place of the result;
tests/triton/test_math_accuracy.py holds it to that.
"""

from vllm_anvil.triton_backend.emit.math.error_function import erf, erfc, normal_distribution
from vllm_anvil.triton_backend.emit.math.exponential import (
    cosh,
    exp,
    exp2,
    exp10,
    expm1,
    sinh,
    tanh,
)
from vllm_anvil.triton_backend.emit.math.inverse_trigonometric import acos, asin, atan, atan2
from vllm_anvil.triton_backend.emit.math.logarithm import (
    acosh,
    asinh,
    atanh,
    log,
    log1p,
    log2,
    log10,
)
from vllm_anvil.triton_backend.emit.math.power import (
    cube_root,
    hypotenuse,
    integer_power,
    power,
    reciprocal_square_root,
)
from vllm_anvil.triton_backend.emit.math.remainder import nearest_remainder, truncated_remainder
from vllm_anvil.triton_backend.emit.math.scaling import (
    exponent,
    next_after,
    round_half_away,
    scaled_by_power,
)
from vllm_anvil.triton_backend.emit.math.trigonometric import cos, cos_of_pi, sin, sin_of_pi, tan

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cos_of_pi",
    "cosh",
    "cube_root",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "exponent",
    "hypotenuse",
    "integer_power",
    "log",
    "log1p",
    "log2",
    "log10",
    "nearest_remainder",
    "next_after",
    "normal_distribution",
    "power",
    "reciprocal_square_root",
    "round_half_away",
    "scaled_by_power",
    "sin",
    "sin_of_pi",
    "sinh",
    "tan",
    "tanh",
    "truncated_remainder",
]
