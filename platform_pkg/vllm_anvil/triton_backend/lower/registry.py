# SPDX-License-Identifier: Apache-2.0
"""Which function lowers which operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_anvil.triton_backend.ttir.model import Operation

if TYPE_CHECKING:
    from vllm_anvil.triton_backend.lower.function import FunctionLowering
    from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes
    from vllm_anvil.triton_backend.lower.positions import Position

# Done where it stands, with all its effects: `rule(lowering, operation)`.
EagerRule = Callable[["FunctionLowering", Operation], None]
# Makes a chunk of a tile when something asks for it: `rule(lowering, operation, position)`.
LazyRule = Callable[["FunctionLowering", Operation, "Position"], "Lanes | Addresses"]

EAGER: dict[str, EagerRule] = {}
LAZY: dict[str, LazyRule] = {}


def eager(*names: str) -> Callable[[EagerRule], EagerRule]:
    def register(rule: EagerRule) -> EagerRule:
        for name in names:
            EAGER[name] = rule
        return rule

    return register


def lazy(*names: str) -> Callable[[LazyRule], LazyRule]:
    def register(rule: LazyRule) -> LazyRule:
        for name in names:
            LAZY[name] = rule
        return rule

    return register
