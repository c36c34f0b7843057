# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements that PyTorch's CPU kernels compute in two ways.

A loop takes registers full of elements through one function and what is left at its end, or at the
end of a thread's share, through another, which may differ in the last bit. So an element's result
depends on its place among all. Where elements do not lie one behind the other, there is one way
only, and that is how they are laid out here: with a gap behind each.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vllm_anvil.plugin.batch_invariance.original import Original

# Those that were seen to differ on some machine or may: arithmetic that is rounded once, such as
# `add`, `mul`, `div`, `sqrt`, and what PyTorch takes from a library that pads the end of a loop
# (`exp`, `log`, `tanh`, `erf`, `sin` ...) is not among them.
# tests/plugin/test_batch_invariant_operators.py looks through PyTorch's own table of functions.
ELEMENTWISE = (
    *("acosh", "addcdiv", "addcmul", "asinh", "atan2", "atanh", "cosh", "digamma", "elu", "erfinv"),
    *("exp2", "gelu", "glu", "hypot", "i0", "igamma", "igammac", "lerp", "lgamma"),
    *("log_sigmoid_forward", "logaddexp", "logaddexp2", "logit", "mish", "polygamma", "pow"),
    *("rsqrt", "sigmoid", "silu", "sinc", "sinh", "softplus", "special_entr", "special_erfcx"),
    *("special_i0e", "special_i1", "special_i1e", "special_log_ndtr", "special_ndtri"),
    *("special_xlog1py", "special_zeta", "xlogy"),
)


def spread(value: Any) -> Any:
    """A tensor of floating-point numbers with a gap behind each element; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() <= 1:
        return value
    apart = value.new_empty((*value.shape, 2))[..., 0]
    return apart.copy_(value)


def compute(original: Original, *args: Any, **kwargs: Any) -> Any:
    """The operator on arguments that are spread; its results lie without gaps."""
    args = tuple(spread(one) for one in args)
    result = original(*args, **{name: spread(one) for name, one in kwargs.items()})
    if isinstance(result, Tensor):
        return result.contiguous()
    return tuple(one.contiguous() for one in result)


def scaled(original: Original, *args: Any, alpha: Any = 1) -> Any:
    """A sum or difference whose second term is multiplied: in one step or two, by place."""
    if alpha == 1:
        return original(*args)
    return compute(original, *args, alpha=alpha)
