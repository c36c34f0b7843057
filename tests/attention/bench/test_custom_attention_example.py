# SPDX-License-Identifier: Apache-2.0
"""`examples/custom_attention` does what its README says."""

import dataclasses
from pathlib import Path

import pytest
import torch

from anvil_attention.bench.implementations import Candidate, resolve
from anvil_attention.bench.model_shapes import model_shape
from anvil_attention.contract import Unsupported
from anvil_attention.verification import WrongAttentionError, verify

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "custom_attention"


def _verify(function: str, shape: str, device: torch.device, **options: object) -> None:
    spec = model_shape(shape).spec(torch.bfloat16, torch.bfloat16, 16, device.type)
    candidate = Candidate(f"{EXAMPLES}/{function}", users=True, named=True)
    verify(resolve(candidate, device), dataclasses.replace(spec, **options), device)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 20, "has_sinks": True},
        {"logits_soft_cap": 5.0, "has_alibi": True},
        {"kv_dtype": torch.float8_e4m3fn},
    ],
    ids=str,
)
def test_in_torch(device: torch.device, options: dict) -> None:
    _verify("torch_attention.py:attention", "smollm2", device, **options)


def test_broken(device: torch.device) -> None:
    with pytest.raises(WrongAttentionError, match="wrong values"):
        _verify("torch_attention.py:broken", "smollm2", device)


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 20}, {"head_size": 24, "value_head_size": 24, "scale": 0.2}],
    ids=str,
)
def test_in_triton(device: torch.device, options: dict) -> None:
    pytest.importorskip("triton")
    _verify("triton_attention.py:paged", "smollm2", device, **options)


def test_triton_refuses_what_it_does_not_have(device: torch.device) -> None:
    pytest.importorskip("triton")
    with pytest.raises(Unsupported, match="no ALiBi, sinks or soft cap"):
        _verify("triton_attention.py:paged", "gpt-oss-20b", device)
