# SPDX-License-Identifier: Apache-2.0
# The compiled module, for type checkers. csrc/bindings/ says what it holds.
from typing import Any

def __getattr__(name: str) -> Any: ...
