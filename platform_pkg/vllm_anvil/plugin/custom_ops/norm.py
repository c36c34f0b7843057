# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with its weight in float32."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.layernorm import RMSNorm


class AnvilRMSNorm(RMSNorm):
    """vLLM's RMSNorm, whose arithmetic is float32 up to the product with the weight.

    That product has the weight's dtype. A float32 weight (a few KiB a layer, the checkpoint's
    values exactly) keeps it in float32; the result has the input's dtype either way.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["dtype"] = torch.float32
        super().__init__(*args, **kwargs)
