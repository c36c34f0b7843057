# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators on the device in such a form that a row's result depends on that row alone.

Anvil's own ops are so by themselves (`tests/ops/test_row_invariance.py`). What PyTorch's CPU
kernels do on the device's memory is not: products choose their order of sums by the number of rows,
loops compute the elements at their end by other functions than the rest, and a single long row is
summed in parts by several threads. VLLM_BATCH_INVARIANT=1 has these operators replaced
(`plugin/seams/batch_invariance.py`).
"""
