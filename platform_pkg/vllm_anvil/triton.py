# SPDX-License-Identifier: Apache-2.0
"""Importing this makes `triton` compile for the anvil device in this process.

    import torch, triton, vllm_anvil.triton

    x = torch.zeros(1024, device="anvil")
    kernel[(8,)](x, ...)        # queued on x's device
    kernel[(8,)](x.cpu(), ...)  # runs at once

Raises:
    ImportError: Triton is not installed, or a GPU's backend is the one in use; the message says
        how to choose.
"""

from vllm_anvil.triton_backend import activate, refusal

if not activate():
    raise ImportError(f"Triton cannot run on anvil devices in this process: {refusal()}")

import vllm_anvil.device  # noqa: F401  (registers torch.device("anvil"))
