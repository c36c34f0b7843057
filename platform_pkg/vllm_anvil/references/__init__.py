# SPDX-License-Identifier: Apache-2.0
"""What each op of ``torch.ops.anvil`` computes, in plain torch.

A reference takes the op's arguments, writes to those that the op writes to, and returns what the
op returns. It computes in float64 where the device has it (precision.py), so that its results are
within the tolerances of a kernel for any arguments: the same code is what a kernel is compared with
(on arguments widened to float64) and what a device without a kernel of its own runs.

Nothing here needs `_C`, vLLM or any particular device.
"""
