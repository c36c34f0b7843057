# SPDX-License-Identifier: Apache-2.0
"""Seam: batch invariance of PyTorch's operators.

What vLLM does
    With VLLM_BATCH_INVARIANT=1 `init_batch_invariance` (`vllm.model_executor.determinism`) has
    functions stand in for PyTorch's operators: for an out-of-tree platform `mean.dim`, `_softmax`,
    `_log_softmax` and `bmm` on its dispatch key, by Triton kernels. Products (`mm`, `addmm`), for
    which each platform of its own has an answer, stay as they are.
What is changed
    In this mode the operators of the device that depend on the batch are replaced before the engine
    registers its own, which come on top (`plugin/batch_invariance`): products, sums, and functions
    of elements that PyTorch's CPU kernels compute by place. Some that have no such form raise.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform for the operators that its mode needs.
Test that fails then
    tests/plugin/test_seams.py::test_batch_invariance_is_needed
"""

from __future__ import annotations

from vllm import envs

from vllm_anvil.plugin.batch_invariance.install import install


def apply() -> None:
    if envs.VLLM_BATCH_INVARIANT:
        install()
