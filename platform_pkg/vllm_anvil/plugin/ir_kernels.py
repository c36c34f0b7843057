# SPDX-License-Identifier: Apache-2.0
"""The provider "anvil" of the engine's IR ops; importing the module registers it.

The engine imports it through `Platform.import_ir_kernels`, and asks for it where the priority list
of an op names it: `Platform.get_default_ir_op_priority` puts it first, `--ir-op-priority` and
`KernelConfig.ir_op_priority` go before that. `supports_args` is asked at every call, so that other
devices, dtypes and layouts go on to the next provider of the list.

`gelu_and_mul_sparse` has no provider here: its gate is cut at a threshold that depends on the mean
and deviation of the row, which no op of the device computes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir

import vllm_anvil.ops  # noqa: F401  registers torch.ops.anvil
from vllm_anvil.plugin.op_arguments import DEVICES, note_fallback, takes, takes_in_place

PROVIDER = "anvil"


def _rms_norm_takes(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    if takes(x, weight):
        return True
    if x.device.type in DEVICES:
        note_fallback("rms_norm", x=x, weight=weight)
    return False


@ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_rms_norm_takes)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    return torch.ops.anvil.rms_norm.default(x, weight, epsilon, variance_size)


def _fused_add_rms_norm_takes(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    # The engine's op returns the residual in the dtype of x: in place, that is a residual of this
    # dtype, of the same shape, and in other memory than x.
    if (
        takes_in_place(x, x_residual)
        and takes(weight)
        and x.dtype == x_residual.dtype
        and x.shape == x_residual.shape
        and (x.data_ptr() != x_residual.data_ptr() or x.numel() == 0)
    ):
        return True
    if x.device.type in DEVICES:
        note_fallback("fused_add_rms_norm", x=x, residual=x_residual, weight=weight)
    return False


@ir.ops.fused_add_rms_norm.register_impl(
    PROVIDER, supports_args=_fused_add_rms_norm_takes, inplace=True
)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    torch.ops.anvil.fused_add_rms_norm_.default(x, x_residual, weight, epsilon, variance_size)
    return x, x_residual
