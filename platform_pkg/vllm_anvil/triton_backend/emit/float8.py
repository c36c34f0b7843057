# SPDX-License-Identifier: Apache-2.0
"""The 8-bit float formats.

| TTIR | Triton | exponent, mantissa | bias | infinity | NaN | greatest |
|---|---|---|---|---|---|---|
| `f8E4M3FN` | `float8e4nv` | 4, 3 | 7 | no | S.1111.111 | 448 |
| `f8E5M2` | `float8e5` | 5, 2 | 15 | S.11111.00 | S.11111.xx | 57344 |
| `f8E4M3FNUZ` | `float8e4b8` | 4, 3 | 8 | no | 0x80 | 240 |
| `f8E5M2FNUZ` | `float8e5b16` | 5, 2 | 16 | no | 0x80 | 57344 |
| | `float8e4b15` | 4, 3 | 15 | no | no | 1.875 |

The FNUZ formats have no negative zero. MLIR has no type for the last one, which Triton has as `i8`.
What is beyond the greatest number becomes that, infinity too: Triton's conversions on NVIDIA
saturate where PyTorch's give NaN (`f8E4M3FN`) or infinity (`f8E5M2`).
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_anvil.triton_backend.emit.math.formats import F32, NAN
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.ttir.model import ScalarType


@dataclass(frozen=True, slots=True)
class Float8Format:
    """One format; codes are without the sign bit."""

    mantissa_bits: int
    bias: int
    greatest: int
    # The least code that is NaN; 0x80 is where others have the negative zero.
    nan: int | None
    infinity: int | None = None

    @property
    def has_negative_zero(self) -> bool:
        return self.nan != 0x80


# By the name of the type in TTIR, with one for `float8e4b15` that MLIR could have given it.
FORMATS = {
    "f8E4M3FN": Float8Format(mantissa_bits=3, bias=7, greatest=0x7E, nan=0x7F),
    "f8E5M2": Float8Format(mantissa_bits=2, bias=15, greatest=0x7B, nan=0x7D, infinity=0x7C),
    "f8E4M3FNUZ": Float8Format(mantissa_bits=3, bias=8, greatest=0x7F, nan=0x80),
    "f8E5M2FNUZ": Float8Format(mantissa_bits=2, bias=16, greatest=0x7F, nan=0x80),
    "f8E4M3B15": Float8Format(mantissa_bits=3, bias=15, greatest=0x7F, nan=None),
}


def _format(element: ScalarType) -> Float8Format:
    if element.name not in FORMATS:
        raise UnsupportedKernel(f"the element type {element} has no conversion")
    return FORMATS[element.name]


def from_float8(codes: Lanes, source: ScalarType) -> Lanes:
    """Codes as float32, exactly."""
    format_ = _format(source)
    wide = codes.cast("zext", codes.integers(16))
    if format_.infinity is not None:
        # The upper byte of a float16.
        return (wide << 8).as_floats().cast("fpext", codes.floats(32))
    sign, size = wide & 0x80, wide & 0x7F
    if format_.mantissa_bits == 3:
        # A float16 but for the bias; it has no exponent as high as infinity's.
        halves = ((sign << 8) | (size << 7)).as_floats()
        result = halves.cast("fpext", codes.floats(32)) * 2.0 ** (15 - format_.bias)
    else:
        sign, size = (part.cast("zext", codes.integers(32)) for part in (sign, size))
        bits = (sign << 24) | (size << (F32.mantissa_bits - format_.mantissa_bits))
        result = bits.as_floats() * 2.0 ** (F32.bias - format_.bias)
    if format_.nan is None:
        return result
    is_nan = size.equals(format_.nan) if format_.has_negative_zero else codes.equals(0x80)
    return is_nan.choose(NAN, result)


def to_float8(x: Lanes, target: ScalarType, toward_zero: bool) -> Lanes:
    """float32 as codes, rounded to nearest even or toward zero.

    What is too large saturates. NaN stays NaN; where there is none it becomes the greatest number.
    """
    format_ = _format(target)
    bits = x.as_integers()
    size_bits = bits & 0x7FFFFFFF
    size = size_bits.as_floats()
    dropped = F32.mantissa_bits - format_.mantissa_bits

    # A normal number's code is the float32's upper bits with the other bias.
    rounding = (
        0
        if toward_zero
        else (size_bits.unsigned_shift_right(dropped) & 1) + ((1 << (dropped - 1)) - 1)
    )
    rebias = (F32.bias - format_.bias) << F32.mantissa_bits
    code = (size_bits - rebias + rounding).unsigned_shift_right(dropped)

    # A denormal's code is its multiple of the smallest; added to this, it stands in the last bits.
    smallest = 2.0 ** (1 - format_.bias - format_.mantissa_bits)
    magic = size.constant(smallest * 2.0**F32.mantissa_bits)
    shifted = size + magic
    multiple = shifted.as_integers() - magic.as_integers()
    if toward_zero:
        beyond = (shifted - magic) > size
        multiple = multiple - beyond.cast("zext", multiple.type)
    code = (size < 2.0 ** (1 - format_.bias)).choose(multiple, code)

    # As unsigned numbers the codes are below 2**12, so that a signed comparison does.
    code = (code > format_.greatest).choose(format_.greatest, code)
    sign = bits.unsigned_shift_right(24) & 0x80
    if format_.has_negative_zero:
        code = code | sign
        code = x.is_nan().choose(code.constant(0x7F), code)
    else:
        code = code.equals(0).choose(0, code | sign)
        code = x.is_nan().choose(0x80, code)
    return code.cast("trunc", x.integers(8))
