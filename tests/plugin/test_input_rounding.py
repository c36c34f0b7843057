# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from vllm_anvil import envs
from vllm_anvil.plugin import input_rounding

F32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("rounding", "bfloat16", "float16"),
    [
        ("", (None, False), (None, False)),
        ("none", (None, False), (None, False)),
        ("most", (BF16, True), (None, False)),  # there are no remainders of float16
        ("all", (BF16, False), (FP16, False)),
    ],
)
def test_what_is_rounded(
    rounding: str, bfloat16: object, float16: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_ROUND_INPUTS", rounding)
    assert input_rounding.of(F32, BF16) == bfloat16
    assert input_rounding.of(F32, FP16) == float16


def test_what_was_computed_in_the_weights_dtype_is_rounded_already() -> None:
    assert input_rounding.of(BF16, BF16) == (BF16, False)


def test_an_unknown_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_ROUND_INPUTS", "1")
    with pytest.raises(envs.EnvError, match="ANVIL_ROUND_INPUTS='1': .*none, most, all"):
        input_rounding.of(F32, BF16)
