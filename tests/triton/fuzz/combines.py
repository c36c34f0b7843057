# SPDX-License-Identifier: Apache-2.0
"""Functions by which reductions and scans combine two elements, of one or more values each.

All are associative, with integers that wrap around. Reductions take only those that commute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Values = Sequence[np.ndarray]


@dataclass(frozen=True)
class Combine:
    """A function of `width` values twice: as Triton's source, and with NumPy.

    `dtypes`: of its values. `any` stands for one integer type, the same for all that say so.
    """

    name: str
    dtypes: tuple[str, ...]
    body: str
    evaluate: Callable[..., tuple[np.ndarray, ...]]
    commutative: bool = True

    @property
    def width(self) -> int:
        return len(self.dtypes)

    def source(self) -> str:
        first = [f"a{number}" for number in range(self.width)]
        second = [f"b{number}" for number in range(self.width)]
        lines = "".join(f"    {line}\n" for line in self.body.splitlines())
        return f"@triton.jit\ndef {self.name}({', '.join(first + second)}):\n{lines}"


def _most(a0, a1, b0, b1):
    first = (a0 > b0) | ((a0 == b0) & (a1 < b1))
    return np.where(first, a0, b0), np.where(first, a1, b1)


def _sum_and_least(a0, a1, b0, b1):
    return a0 + b0, np.minimum(a1, b1)


_ALL = [
    Combine("either", ("i1",), "return a0 | b0", lambda a, b: (a | b,)),
    Combine("both", ("i1",), "return a0 & b0", lambda a, b: (a & b,)),
    Combine("odd", ("i1",), "return a0 ^ b0", lambda a, b: (a ^ b,)),
    Combine("bits_and", ("any",), "return a0 & b0", lambda a, b: (a & b,)),
    Combine("bits_or", ("any",), "return a0 | b0", lambda a, b: (a | b,)),
    Combine("bits_xor", ("any",), "return a0 ^ b0", lambda a, b: (a ^ b,)),
    Combine("product", ("any",), "return a0 * b0", lambda a, b: (a * b,)),
    Combine(
        "joined",
        ("any",),
        "return a0 + b0 + a0 * b0",
        lambda a, b: (a + b + a * b,),
    ),
    Combine(
        "least",
        ("any",),
        "if_less = a0 < b0\nreturn tl.where(if_less, a0, b0)",
        lambda a, b: (np.minimum(a, b),),
    ),
    Combine(
        "most_and_place",
        ("any", "i32"),
        "first = (a0 > b0) | ((a0 == b0) & (a1 < b1))\n"
        "return tl.where(first, a0, b0), tl.where(first, a1, b1)",
        _most,
    ),
    Combine(
        "sum_and_least",
        ("any", "any"),
        "return a0 + b0, tl.minimum(a1, b1)",
        _sum_and_least,
    ),
    Combine(
        "complex_product",
        ("any", "any"),
        "return a0 * b0 - a1 * b1, a0 * b1 + a1 * b0",
        lambda a0, a1, b0, b1: (a0 * b0 - a1 * b1, a0 * b1 + a1 * b0),
    ),
    Combine("last", ("any",), "return b0", lambda a, b: (b,), commutative=False),
    Combine(
        "affine",
        ("any", "any"),
        "return a0 * b0, a1 * b0 + b1",
        lambda a0, a1, b0, b1: (a0 * b0, a1 * b0 + b1),
        commutative=False,
    ),
    Combine(
        "segmented_sum",
        ("i1", "any"),
        "return a0 | b0, tl.where(b0, b1, a1 + b1)",
        lambda a0, a1, b0, b1: (a0 | b0, np.where(b0, b1, a1 + b1)),
        commutative=False,
    ),
    Combine(
        "triangular_product",
        ("any", "any", "any"),
        "return a0 * b0, a0 * b1 + a1 * b2, a2 * b2",
        lambda a0, a1, a2, b0, b1, b2: (a0 * b0, a0 * b1 + a1 * b2, a2 * b2),
        commutative=False,
    ),
]
COMBINES = {combine.name: combine for combine in _ALL}
