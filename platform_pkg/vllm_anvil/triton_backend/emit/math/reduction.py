# SPDX-License-Identifier: Apache-2.0
"""Angles taken modulo a quarter turn, without loss for any float64."""

from __future__ import annotations

import itertools

from llvmlite import ir

from vllm_anvil.triton_backend.emit.math.formats import F64, two_product, two_sum
from vllm_anvil.triton_backend.emit.types import lanes_of
from vllm_anvil.triton_backend.emit.vectors import Lanes, call_intrinsic, outlined

# pi / 2 as a sum.
_QUARTER = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_PER_QUARTER = 0.6366197723675814
# Up to here the three parts above suffice.
_NEAR = 2.0**30
# 2 / pi in binary: a word of zeros before the point, then the digits, enough for any exponent.
_TWO_OVER_PI = (
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)
_I64 = ir.IntType(64)
_I128 = ir.IntType(128)


def quarter_turns(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """float64 x as q * pi / 2 + (r + rest): r within about pi / 4, `rest` below its last bit.

    Of q, an i64, only the two lowest bits mean something. NaN and infinity give any r.
    """
    results = [x.type, x.type, x.integers(64)]
    r, rest, q = outlined("quarter_turns", _quarter_turns, results, x)
    return r, rest, q


def _quarter_turns(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    near = _near_quarter_turns(x)
    builder = x.builder
    far = ~(x.absolute() < _NEAR)
    before = builder.block
    with builder.if_then(far.any(), likely=False):
        mended = _far_quarter_turns(x, far, near)
        after = builder.block
    results = []
    for plain, exact in zip(near, mended, strict=True):
        phi = builder.phi(plain.type)
        phi.add_incoming(plain.value, before)
        phi.add_incoming(exact.value, after)
        results.append(Lanes(builder, phi))
    return results[0], results[1], results[2]


def _near_quarter_turns(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    magic = F64.rounding_magic
    shifted = x.fma(_PER_QUARTER, magic)
    n = shifted - magic
    # Exact: both numbers are multiples of the first part's last bit, and close to one another.
    high = (-n).fma(_QUARTER[0], x)
    product, product_rest = two_product(n, n.constant(_QUARTER[1]))
    r = high - product
    rest = ((high - r) - product) - n.fma(_QUARTER[2], product_rest)
    return r, rest, shifted.as_integers()


def _far_quarter_turns(
    x: Lanes, far: Lanes, near: tuple[Lanes, Lanes, Lanes]
) -> tuple[Lanes, Lanes, Lanes]:
    """`near` with the lanes that are far replaced, one after the other."""
    builder = x.builder
    lanes = lanes_of(x.type)
    if lanes is None:
        exact = _exact_quarter_turns(x)
        pairs = zip(exact, near, strict=True)
        results = [far.choose(precise, plain) for precise, plain in pairs]
        return results[0], results[1], results[2]

    before = builder.block
    loop = builder.append_basic_block("lane")
    done = builder.append_basic_block("lanes_done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(_I64)
    index.add_incoming(ir.Constant(_I64, 0), before)
    vectors = [builder.phi(plain.type) for plain in near]
    for vector, plain in zip(vectors, near, strict=True):
        vector.add_incoming(plain.value, before)
    lane_far = Lanes(builder, builder.extract_element(far.value, index))
    exact = _exact_quarter_turns(Lanes(builder, builder.extract_element(x.value, index)))
    following = builder.add(index, ir.Constant(_I64, 1))
    index.add_incoming(following, loop)
    results = []
    for vector, precise in zip(vectors, exact, strict=True):
        kept = Lanes(builder, builder.extract_element(vector, index))
        chosen = lane_far.choose(precise, kept)
        updated = builder.insert_element(vector, chosen.value, index)
        vector.add_incoming(updated, loop)
        results.append(Lanes(builder, updated))
    builder.cbranch(builder.icmp_unsigned("<", following, ir.Constant(_I64, lanes)), loop, done)
    builder.position_at_end(done)
    return results[0], results[1], results[2]


def _exact_quarter_turns(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """A scalar of at least 2**24, as m * 2**k, times the 192 digits of 2 / pi that matter for it.

    Digits of a higher place add multiples of four quarters, those of a lower place below 2**-137.
    """
    bits = x.as_integers()
    field = bits.unsigned_shift_right(52) & 0x7FF
    # Smaller numbers are not asked for; this keeps their reads within the table.
    field = (field < 1047).choose(1047, field)
    mantissa = (bits & F64.mantissa_mask) | (1 << 52)
    top, middle = _product_with_digits(mantissa, field - (1075 - 62))

    # Two digits of the product before the point, rounded to nearest; the fraction has a sign.
    q = (top + (1 << 61)).unsigned_shift_right(62)
    fraction = (top << 2) | middle.unsigned_shift_right(62)
    below = middle << 2
    pieces = (
        _scaled(fraction >> 32, -32),
        _scaled(fraction & 0xFFFFFFFF, -64),
        _scaled(below.unsigned_shift_right(32), -96),
        _scaled(below & 0xFFFFFFFF, -128),
    )
    total, left = two_sum(pieces[0], pieces[1])
    left = left + (pieces[2] + pieces[3])
    turns = total + left
    turns_rest = left - (turns - total)

    r, rest = two_product(turns, turns.constant(_QUARTER[0]))
    rest = rest + turns.fma(_QUARTER[1], turns_rest * _QUARTER[0])
    negative = bits < 0
    return negative.choose(-r, r), negative.choose(-rest, rest), negative.choose(-q, q)


def _scaled(integer: Lanes, exponent: int) -> Lanes:
    return integer.cast("sitofp", ir.DoubleType()) * 2.0**exponent


def _product_with_digits(mantissa: Lanes, offset: Lanes) -> tuple[Lanes, Lanes]:
    """The two upper words of the mantissa times the three words from that bit of the table on."""
    builder = mantissa.builder
    table = _table(builder.module)
    word = offset.unsigned_shift_right(6)
    shift = offset & 63
    words = []
    for index in range(4):
        place = [ir.Constant(_I64, 0), (word + index).value]
        address = builder.gep(table, place, source_etype=table.value_type)
        words.append(builder.load(address, typ=_I64))
    wide_mantissa = mantissa.cast("zext", _I128)
    carry = wide_mantissa.constant(0)
    products = []
    for upper, lower in reversed(list(itertools.pairwise(words))):
        digits = call_intrinsic(builder, "fshl", [upper, lower, shift.value])
        wide = wide_mantissa * Lanes(builder, digits).cast("zext", _I128) + carry
        carry = wide.unsigned_shift_right(64)
        products.append(wide.cast("trunc", _I64))
    return products[2], products[1]


def _table(module: ir.Module) -> ir.GlobalVariable:
    name = "anvil.two_over_pi"
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    kind = ir.ArrayType(_I64, len(_TWO_OVER_PI))
    table = ir.GlobalVariable(module, kind, name)
    table.linkage = "internal"
    table.global_constant = True
    table.initializer = ir.Constant(kind, list(_TWO_OVER_PI))
    return table
