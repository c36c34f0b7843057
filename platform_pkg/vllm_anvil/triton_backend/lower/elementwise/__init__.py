# SPDX-License-Identifier: Apache-2.0
"""Element-wise operations of TTIR as LLVM IR, on scalars and on vectors alike.

`emit.types` says how elements stand in registers. What the operations do beyond what MLIR defines
is said where they are: `integers`, `floats`, `conversion`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.elementwise import (
    comparison,
    conversion,
    floats,
    integers,
    libdevice,
    mathematics,
)
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Handler
from vllm_anvil.triton_backend.ttir.model import Operation

_HANDLERS: dict[str, Handler] = {
    **integers.HANDLERS,
    **floats.HANDLERS,
    **comparison.HANDLERS,
    **conversion.HANDLERS,
    **mathematics.HANDLERS,
    **libdevice.HANDLERS,
}
IS_ELEMENTWISE: frozenset[str] = frozenset(_HANDLERS)


def is_elementwise(name: str) -> bool:
    """Whether operations of that name are emitted here."""
    return name in _HANDLERS


def emit(builder: ir.IRBuilder, operation: Operation, operands: Sequence[ir.Value]) -> ir.Value:
    """The result of an operation that has one.

    `operands` and the result are of `emit.types.llvm_type`, scalars or vectors of one length.
    Raises UnsupportedKernel where the operation or its types are not understood.
    """
    (result,) = emit_all(builder, operation, operands)
    return result


def emit_all(
    builder: ir.IRBuilder, operation: Operation, operands: Sequence[ir.Value]
) -> list[ir.Value]:
    """The results of an operation, in order. As `emit`."""
    handler = _handler(operation)
    try:
        results = handler.emit(Call(builder, operation, operands))
    except UnsupportedKernel as error:
        if error.operation:
            raise
        raise UnsupportedKernel(error.reason, operation.name, operation.location) from None
    return [result.value for result in (results if isinstance(results, tuple) else (results,))]


def cost(operation: Operation) -> int:
    """About how many instructions a vector of the operation takes, in float32.

    0 where computing it again is as cheap as keeping it.
    """
    known = _handler(operation).cost
    return known if isinstance(known, int) else known(operation)


def _handler(operation: Operation) -> Handler:
    handler = _HANDLERS.get(operation.name)
    if handler is None:
        raise UnsupportedKernel(
            "it is no element-wise operation", operation.name, operation.location
        )
    return handler
