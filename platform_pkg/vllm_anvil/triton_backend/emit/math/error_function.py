# SPDX-License-Identifier: Apache-2.0
"""erf, erfc and the normal distribution."""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.exponential import exp
from vllm_anvil.triton_backend.emit.math.formats import in_float64, two_product
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner

# erf(sqrt(z)) / sqrt(z) - 1 for z <= 1.
_ERF = {
    32: (
        0.12837917,
        -0.37612638,
        0.11283783,
        -0.026865445,
        0.005221075,
        -0.00084847125,
        0.000112705486,
        -9.680137e-06,
    ),
    64: (
        0.1283791670955126,
        -0.37612638903183754,
        0.1128379167095512,
        -0.026866170645129868,
        0.005223977625423611,
        -0.0008548327021956025,
        0.000120553329038126,
        -1.4925647594497853e-05,
        1.646204598055763e-06,
        -1.636464955146516e-07,
        1.479246964452013e-08,
        -1.216496861716556e-09,
        8.710465336650472e-11,
        -4.23312952867958e-12,
    ),
}
# log(erfc(1 + u)) for u <= 2.95.
_LOG_ERFC = (
    -1.8496056,
    -2.6389675,
    -0.8431071,
    -0.04156348,
    0.0100464495,
    -0.0020119632,
    0.00028952613,
    -2.1686377e-05,
)
# exp(x**2) * erfc(x) * (1 + 2 * x) in t = (x - 4) / (x + 4), for x from 1/2 to 28.
_SCALED_ERFC = (
    1.2329951186255526,
    -0.1396211168405625,
    0.015379652102619873,
    0.06809705425468865,
    -0.10103906603631245,
    0.0937328349985266,
    -0.06633036581201905,
    0.03716751553393258,
    -0.016197734060338396,
    0.005031970017215849,
    -0.0007577732694226337,
    -0.00019925695761291106,
    0.00015062158625397362,
    -2.4398086525510544e-05,
    -1.1221768762697152e-05,
    5.706562567282981e-06,
    2.933427200618651e-07,
    -8.196051320472183e-07,
    7.512809723478645e-08,
    1.0333363494591405e-07,
    -1.8201628017727847e-08,
    -9.678471601430679e-09,
    1.906107425158638e-09,
)
_SQUARE_ROOT_HALF = 0.7071067811865476


def erf(x: Lanes) -> Lanes:
    """Below 2 ulp; a zero keeps its sign."""
    size = x.absolute()
    square = x * x
    near = x.fma(horner(square, _ERF[x.bits]), x)
    if x.bits == 32:
        bounded = (size > 3.95).choose(3.95, size)
        complement = exp(horner(bounded - 1.0, _LOG_ERFC))
    else:
        complement = _erfc_of_positive(size)
    return (size < 1.0).choose(near, (1.0 - complement).with_sign_of(x))


def erfc(x: Lanes) -> Lanes:
    """1 - erf(x). Below 1 ulp in float32, below 5 ulp in float64."""
    return in_float64(_erfc, x)


def _erfc(x: Lanes) -> Lanes:
    square = x * x
    near = 1.0 - x.fma(horner(square, _ERF[64]), x)
    complement = _erfc_of_positive(x.absolute())
    far = (x < 0.0).choose(2.0 - complement, complement)
    return (x.absolute() < 0.5).choose(near, far)


def normal_distribution(x: Lanes) -> Lanes:
    """The chance that a standard normal variable is at most x. Below 1 ulp in float32."""
    return in_float64(lambda wide: 0.5 * _erfc(wide * -_SQUARE_ROOT_HALF), x)


def _erfc_of_positive(x: Lanes) -> Lanes:
    """erfc of float64 from 1/2 on."""
    x = (x > 28.0).choose(28.0, x)
    scaled = horner((x - 4.0) / (x + 4.0), _SCALED_ERFC) / (x + x + 1.0)
    square, square_rest = two_product(x, x)
    # e**-(square + rest), the rest being below the last bit of the square.
    decay = exp(-square)
    return (decay - decay * square_rest) * scaled
