# SPDX-License-Identifier: Apache-2.0
"""Native ops of the device, one module per family.

A module holds, for each op of ``torch.ops.anvil``, a typed wrapper that says what the arguments
mean and a fake implementation for tracing. Ops accept anvil tensors and, for tests and
comparisons, CPU tensors; arguments are checked by the op itself, which raises TypeError (dtype),
ValueError (shape, layout, device, a number) or IndexError (an element of an index tensor) with
the op's and the argument's name.
"""

import vllm_anvil.device  # noqa: F401  loads the library that registers the ops
from vllm_anvil.references import registration

registration.register()
