# SPDX-License-Identifier: Apache-2.0
"""Merged states against attention over all keys, and what is refused."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.ops import attention_states

States = tuple[Tensor, Tensor]


def attention(query: Tensor, key: Tensor, value: Tensor) -> States:
    """[tokens, heads, size] queries over [keys, heads, size]: output [tokens, heads, size] and lse
    [heads, tokens]. From the definition, in float64."""
    scores = torch.einsum("thd,khd->htk", query.double(), key.double())
    if not key.shape[0]:
        return torch.full_like(query, torch.nan), torch.full(scores.shape[:2], -torch.inf)
    output = torch.einsum("htk,khd->thd", scores.softmax(-1), value.double())
    return output.to(query.dtype), scores.logsumexp(-1).float()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    keys=st.integers(0, 12),
    data=st.data(),
    tokens=st.integers(1, 5),
    heads=st.integers(1, 3),
    size=st.integers(1, 40),
    on=st.sampled_from(["cpu", "anvil"]),
)
def test_equals_attention_over_all_keys(
    keys: int, data: st.DataObject, tokens: int, heads: int, size: int, on: str
) -> None:
    cut = data.draw(st.integers(0, keys))
    query = random(tokens, heads, size, seed=1) / math.sqrt(size)
    key, value = random(keys, heads, size, seed=2) * 2, random(keys, heads, size, seed=3)
    parts = [attention(query, key[part], value[part]) for part in (slice(cut), slice(cut, None))]
    output, lse = attention_states.merge_attn_states(
        *(tensor.to(on) for part in parts for tensor in part)
    )
    expected, expected_lse = attention(query, key, value)
    if not keys:
        expected = torch.zeros_like(expected)
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=1e-6, atol=1e-6)


def test_three_parts_in_any_order(device: torch.device) -> None:
    query, key, value = (random(9, 2, 24, seed=seed) for seed in (1, 2, 3))
    parts = [
        tuple(tensor.to(device) for tensor in attention(query, key[part], value[part]))
        for part in (slice(0, 3), slice(3, 4), slice(4, 9))
    ]
    expected, expected_lse = attention(query, key, value)
    merge = attention_states.merge_attn_states
    for a, b, c in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        output, lse = merge(*merge(*parts[a], *parts[b]), *parts[c])
        torch.testing.assert_close(output.cpu(), expected)
        torch.testing.assert_close(lse.cpu(), expected_lse)


def test_arguments_are_left_alone_and_results_are_new(device: torch.device) -> None:
    output, lse = random(3, 2, 8, seed=1).to(device), random(2, 3, seed=2).to(device)
    before = output.clone(), lse.clone()
    merged, merged_lse = attention_states.merge_attn_states(output, lse, output, lse)
    torch.testing.assert_close(merged, output)
    torch.testing.assert_close(merged_lse, lse + math.log(2))
    assert torch.equal(output, before[0]) and torch.equal(lse, before[1])
    assert merged.data_ptr() != output.data_ptr() and merged.is_contiguous()


Change = Callable[[list[Tensor]], None]


def replace(index: int, make: Callable[[Tensor], Tensor]) -> Change:
    def change(arguments: list[Tensor]) -> None:
        arguments[index] = make(arguments[index])

    return change


REFUSALS: dict[str, tuple[Change, type[Exception], str]] = {
    "float64 outputs": (
        replace(0, Tensor.double),
        TypeError,
        "prefix_output must be float32, bfloat16 or float16, but is Double",
    ),
    "outputs of two dtypes": (
        replace(2, Tensor.bfloat16),
        TypeError,
        "suffix_output must be Float, but is BFloat16",
    ),
    "half-precision sums": (
        replace(1, Tensor.half),
        TypeError,
        "prefix_lse must be Float, but is Half",
    ),
    "outputs of two dimensions": (
        replace(0, lambda t: t.flatten(1)),
        ValueError,
        "prefix_output must have 3 dimension",
    ),
    "outputs of two shapes": (
        replace(2, lambda t: t[..., :7]),
        ValueError,
        r"suffix_output has shape \[3, 2, 7\], but prefix_output has \[3, 2, 8\]",
    ),
    "sums by token": (
        replace(3, lambda t: t.T),
        ValueError,
        r"suffix_lse must have shape \[heads, tokens\], which is \[2, 3\], but has \[3, 2\]",
    ),
    "strided heads": (
        replace(2, lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)),
        ValueError,
        "the last dimension of suffix_output must be contiguous",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, error, message = REFUSALS[case]
    arguments = [
        tensor.to(device) for tensor in (random(3, 2, 8, seed=1), random(2, 3, seed=2)) * 2
    ]
    change(arguments)
    with pytest.raises(error, match="anvil::merge_attn_states: .*" + message):
        attention_states.merge_attn_states(*arguments)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_refuses_mixed_devices(index: int) -> None:
    arguments = [t.to("anvil") for t in (random(3, 2, 8, seed=1), random(2, 3, seed=2)) * 2]
    arguments[index] = arguments[index].cpu()
    with pytest.raises(ValueError, match=r"must be on anvil:0 .* but is on cpu"):
        attention_states.merge_attn_states(*arguments)


def test_opcheck(device: torch.device) -> None:
    arguments = [t.to(device) for t in (random(3, 2, 8, seed=1), random(2, 3, seed=2)) * 2]
    torch.library.opcheck(torch.ops.anvil.merge_attn_states.default, tuple(arguments))
    strided = random(2, 3, 8, seed=1).to(device).transpose(0, 1)
    torch.library.opcheck(
        torch.ops.anvil.merge_attn_states.default,
        (strided, arguments[1], arguments[2], arguments[3]),
        test_utils=("test_schema", "test_faketensor"),
    )
