# SPDX-License-Identifier: Apache-2.0
"""Which tensors the device's ops take, and a count of the calls that went to the engine instead.

The engine's layers accept whatever torch does; the ops take float32, bfloat16 and float16 on the
device, without gaps in the last dimension. A layer of ours asks `takes` first, and leaves anything
else to the engine's own implementation.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from vllm.logger import init_logger

logger = init_logger("vllm.plugins.anvil.op_arguments")

# Types of device that run the ops in this process: the CUDA platform adds its own
# (plugin/cuda_layers.py), where they run by their references.
DEVICES = {"anvil"}
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
INDEX_DTYPES = frozenset({torch.int64, torch.int32})

# (layer, reason) -> calls in this process that the engine's own implementation ran.
fallbacks: Counter[tuple[str, str]] = Counter()


def takes(*tensors: Tensor | None) -> bool:
    """Whether the device's ops take each of these; None stands for an optional one left out."""
    for tensor in tensors:
        if tensor is not None and not (
            tensor.dtype in DTYPES
            and tensor.device.type in DEVICES
            and tensor.dim() > 0
            and tensor.stride(-1) == 1
        ):
            return False
    return True


def takes_in_place(*tensors: Tensor | None) -> bool:
    """`takes`, for tensors that are written to: elements may not share memory, as they do in what
    `expand` returns. Four dimensions at most, unless contiguous: ops that write walk no more."""
    return takes(*tensors) and all(
        tensor is None or tensor.is_contiguous() or (tensor.dim() <= 4 and 0 not in tensor.stride())
        for tensor in tensors
    )


def note_fallback(layer: str, **tensors: Tensor | None) -> None:
    """Counts a call that the engine's implementation runs, and logs the first of its kind."""
    reason = "; ".join(
        f"{name} is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
        f" with {tensor.dim()} dimensions"
        + ("" if tensor.dim() == 0 or tensor.stride(-1) == 1 else ", gaps in the last")
        for name, tensor in tensors.items()
        if tensor is not None
    )
    fallbacks[layer, reason] += 1
    if fallbacks[layer, reason] == 1:
        logger.debug("%s runs by the engine's own implementation: %s.", layer, reason)
