# SPDX-License-Identifier: Apache-2.0
"""The reference of the rotary embedding, and its tables, against other formulations: complex
numbers, the papers' words, and the engine's own layers."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.references import rotary

MAX_POSITION = 200


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    tokens=st.integers(1, 5),
    heads=st.integers(1, 3),
    half=st.integers(1, 20),
    beyond=st.integers(0, 5),
    is_neox=st.booleans(),
    flat=st.booleans(),
)
def test_a_pair_is_a_complex_number_that_turns(
    tokens: int, heads: int, half: int, beyond: int, is_neox: bool, flat: bool
) -> None:
    head_size = 2 * half + beyond
    states = random(tokens, heads, head_size)
    positions = torch.randint(MAX_POSITION, (tokens,))
    angles = positions[:, None, None] * rotary.frequencies(2 * half, 10000.0)
    first = slice(half) if is_neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if is_neox else slice(1, 2 * half, 2)
    turned = torch.complex(states[..., first], states[..., second]) * torch.exp(1j * angles)
    expected = states.clone()
    expected[..., first], expected[..., second] = turned.real, turned.imag

    table = rotary.cos_sin_cache(rotary.frequencies(2 * half, 10000.0), MAX_POSITION)
    given = states.flatten(1).clone() if flat else states.clone()
    rotary.rotary_embedding(positions, given, None, head_size, table, is_neox)
    torch.testing.assert_close(given.view(states.shape), expected)


def test_scores_depend_on_distances_alone() -> None:
    """What rotary embeddings are for: turned by the same number of positions, a query and a key
    have the same product. A factor on the table is one on the product, squared."""
    stretched = rotary.yarn_frequencies(64, 10000.0, factor=4.0, original_max_position=50)
    magnitude = rotary.yarn_magnitude(4.0)
    table = rotary.cos_sin_cache(stretched, MAX_POSITION, magnitude)
    query, key = random(1, 64), random(1, 64) + 1

    def product(query_position: int, key_position: int) -> Tensor:
        q, k = query.clone(), key.clone()
        rotary.rotary_embedding(torch.tensor([query_position]), q, None, 64, table, True)
        rotary.rotary_embedding(torch.tensor([key_position]), k, None, 64, table, True)
        return (q * k).sum()

    torch.testing.assert_close(product(0, 0), (query * key).sum() * magnitude**2)
    torch.testing.assert_close(product(37, 20), product(117, 100))
    assert not torch.isclose(product(37, 20), product(37, 21))


def test_llama3_frequencies_by_wavelength() -> None:
    """Pair by pair, as the model's authors describe it."""
    base, factor, low, high, original = 500000.0, 8.0, 1.0, 4.0, 8192
    found = rotary.llama3_frequencies(
        128,
        base,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=original,
    )
    kinds = set()
    for pair, frequency in enumerate(found.tolist()):
        plain = base ** (-2 * pair / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < original / high:
            expected, kind = plain, "short"
        elif wavelength > original / low:
            expected, kind = plain / factor, "long"
        else:
            smooth = (original / wavelength - low) / (high - low)
            expected, kind = (1 - smooth) * plain / factor + smooth * plain, "between"
        kinds.add(kind)
        assert math.isclose(frequency, expected, rel_tol=1e-12), pair
    assert kinds == {"short", "long", "between"}


def test_yarn_frequencies_by_turns() -> None:
    """Pairs that turn more than beta_fast times in the first context stay, those that turn less
    than beta_slow times are stretched, and between them nothing goes up."""
    factor, original = 4.0, 4096
    plain = rotary.frequencies(128, 10000.0)
    found = rotary.yarn_frequencies(128, 10000.0, factor=factor, original_max_position=original)
    turns = original * plain / (2 * math.pi)
    share = found / plain
    assert torch.equal(share[turns > 32], torch.ones_like(share[turns > 32]))
    # The ramp ends at whole pairs, the first beyond the limit.
    stretched = (turns < 1).nonzero().squeeze(1)[1:]
    torch.testing.assert_close(share[stretched], torch.full_like(share[stretched], 1 / factor))
    between = share[(turns <= 32) & (turns >= 1)]
    assert len(between) > 10 and bool((between[1:] < between[:-1]).all())
    assert rotary.yarn_magnitude(1.0) == 1.0
    assert math.isclose(rotary.yarn_magnitude(math.e**5), 1.5)


@pytest.fixture(scope="module", autouse=True)
def engine_config() -> Iterator[None]:
    """The engine's layers ask for a configuration when they are made."""
    config = pytest.importorskip("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        yield


def close(table: Tensor, expected: Tensor) -> None:
    """The engine's tables are float32 throughout: angles of 200 radians are off by 1e-5."""
    torch.testing.assert_close(table.float(), expected.float(), rtol=0, atol=3e-5)


def test_plain_table_is_the_engines() -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    layer = RotaryEmbedding(80, 32, MAX_POSITION, 10000.0, True, torch.float32)
    close(rotary.cos_sin_cache(rotary.frequencies(32, 10000.0), MAX_POSITION), layer.cos_sin_cache)


def test_llama3_table_is_the_engines() -> None:
    from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

    layer = Llama3RotaryEmbedding(
        128, 128, MAX_POSITION, 500000.0, True, torch.float32, 8.0, 1.0, 4.0, 64
    )
    stretched = rotary.llama3_frequencies(
        128,
        500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=64,
    )
    close(rotary.cos_sin_cache(stretched, MAX_POSITION), layer.cos_sin_cache)


@pytest.mark.parametrize(("rotary_dim", "original"), [(64, 50), (128, 50), (32, 40)])
def test_yarn_table_is_the_engines(rotary_dim: int, original: int) -> None:
    from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import (
        YaRNScalingRotaryEmbedding,
    )

    layer = YaRNScalingRotaryEmbedding(
        rotary_dim, rotary_dim, original, 10000.0, True, 4, torch.float32
    )
    stretched = rotary.yarn_frequencies(
        rotary_dim, 10000.0, factor=4.0, original_max_position=original
    )
    close(
        rotary.cos_sin_cache(stretched, 4 * original, rotary.yarn_magnitude(4.0)),
        layer.cos_sin_cache,
    )


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("section", [(16, 24, 24), (24, 20, 20), (11, 3, 2)])
def test_multimodal_embedding_is_the_engines(
    section: tuple[int, int, int], interleaved: bool, is_neox: bool
) -> None:
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    rotary_dim = 2 * sum(section)
    head_size, tokens = rotary_dim + 8, 5
    layer = MRotaryEmbedding(
        head_size,
        rotary_dim,
        MAX_POSITION // 4,
        10000.0,
        is_neox,
        torch.float32,
        mrope_section=list(section),
        mrope_interleaved=interleaved,
    )
    positions = torch.randint(MAX_POSITION, (3, tokens), generator=torch.Generator().manual_seed(1))
    query = random(tokens, 3 * head_size).float()
    key = random(tokens, 2 * head_size).float()
    expected = layer.forward_native(positions, query.clone(), key.clone())
    rotary.rotary_embedding(
        positions, query, key, head_size, layer.cos_sin_cache, is_neox, section, interleaved
    )
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(key, expected[1])
