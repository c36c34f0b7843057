# SPDX-License-Identifier: Apache-2.0
"""The ops of ``torch.ops.anvil``, one module per family.

A module holds, for each op, a typed wrapper that says what the arguments mean and a fake
implementation for tracing. Arguments are checked by the op itself, which raises TypeError (dtype),
ValueError (shape, layout, device, a number) or IndexError (an element of an index tensor) with the
op's and the argument's name.

Importing this package loads the anvil device, whose library defines the ops and runs them natively
on anvil tensors and, for tests and comparisons, CPU tensors. The exception is a process that has
called ``references.registration.register()`` before: it has made the ops of their references,
which run on any device, and goes without the library (which registers a device, and so would
change what ``torch.accelerator`` means: the CUDA platform must not have that).
"""

from vllm_anvil.references import registration

if not registration.is_registered():
    import vllm_anvil.device  # noqa: F401  loads the library that registers the ops

    registration.register()
