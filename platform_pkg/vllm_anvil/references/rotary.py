# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.rotary, and the tables of cosines and sines that models use."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .cache import write_kv_cache
from .norm import rms_norm
from .precision import compute_dtype


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    dtype = compute_dtype(query, key, cos_sin_cache)
    table = cos_sin_cache.to(dtype)
    half = table.shape[1] // 2
    if positions.dim() == 2:
        axis = _axes(mrope_section, mrope_interleaved, half).to(positions.device)
        # Each pair of elements turns by the angle of its axis: [num_tokens, half].
        per_pair = positions.index_select(0, axis).T
        pair = torch.arange(half, device=positions.device)
        cos, sin = table[per_pair, pair], table[per_pair, half + pair]
    else:
        cos, sin = table.index_select(0, positions).chunk(2, dim=-1)
    for states in (query, key):
        if states is not None:
            _rotate(states, head_size, cos[:, None], sin[:, None], is_neox)


def _rotate(states: Tensor, head_size: int, cos: Tensor, sin: Tensor, is_neox: bool) -> None:
    heads = heads_of(states, head_size)
    rotated = heads[..., : 2 * cos.shape[-1]]
    wide = rotated.to(cos.dtype)
    if is_neox:
        first, second = wide.chunk(2, dim=-1)
    else:
        first, second = wide[..., ::2], wide[..., 1::2]
    turned = (first * cos - second * sin, second * cos + first * sin)
    rotated.copy_(torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2))


def qk_norm_rotary_write_kv_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float | None = None,
    weight_offset: float = 0.0,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    head_size, slots = key_cache.shape[3], len(slot_mapping)
    if epsilon is None and (query_weight is not None or key_weight is not None):
        raise ValueError("anvil::qk_norm_rotary_write_kv_cache: there is a weight but no epsilon")

    def normed(states: Tensor, weight: Tensor | None) -> Tensor:
        if epsilon is None:
            return states.clone()
        heads = heads_of(states, head_size)
        return rms_norm(heads, weight, epsilon, None, weight_offset).reshape(states.shape)

    queries, keys = normed(query, query_weight), normed(key, key_weight)
    section, interleaved = mrope_section, mrope_interleaved
    rotary_embedding(
        positions, queries, keys, head_size, cos_sin_cache, is_neox, section, interleaved
    )
    # The cache first: a slot that is out of range is refused before anything is written.
    write_kv_cache(
        heads_of(keys[:slots], head_size).to(key_cache.dtype),
        heads_of(value[:slots], value_cache.shape[3]).to(value_cache.dtype),
        key_cache,
        value_cache,
        slot_mapping,
    )
    query.copy_(queries)
    key.copy_(keys)


def heads_of(states: Tensor, head_size: int) -> Tensor:
    """[tokens, heads, head_size], of states with or without a dimension for the heads."""
    return states.unflatten(-1, (-1, head_size)) if states.dim() == 2 else states


def _axes(section: Sequence[int], interleaved: bool, half: int) -> Tensor:
    """[half] which of the three positions (time, height, width) turns each pair."""
    if not interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(list(section)))
    # Time, height, width, time, ... for as long as height and width have pairs; then time.
    pair = torch.arange(half)
    taken = pair % 3
    axis = torch.zeros(half, dtype=torch.int64)
    for number in (1, 2):
        axis[(taken == number) & (pair < 3 * section[number])] = number
    return axis


def frequencies(rotary_dim: int, base: float) -> Tensor:
    """[rotary_dim / 2] float64 angles per position (Su et al. 2021, RoFormer, section 3.2.2)."""
    return base ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def llama3_frequencies(
    rotary_dim: int,
    base: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
) -> Tensor:
    """Frequencies as Llama 3.1 stretches them: long waves by `factor`, short ones not at all, and
    those between by an interpolation of the two."""
    plain = frequencies(rotary_dim, base)
    turns = original_max_position * plain / (2 * math.pi)  # full turns within the first context
    smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * plain / factor + smooth * plain


def yarn_frequencies(
    rotary_dim: int,
    base: float,
    *,
    factor: float,
    original_max_position: int,
    beta_fast: float = 32,
    beta_slow: float = 1,
) -> Tensor:
    """Frequencies by "NTK-by-parts" (Peng et al. 2023, YaRN, section 3.2)."""
    plain = frequencies(rotary_dim, base)

    def pair_that_turns(times: float) -> float:
        wavelengths = original_max_position / (times * 2 * math.pi)
        return rotary_dim * math.log(wavelengths) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), rotary_dim - 1)
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0, 1)
    return plain * (1 - stretched) + plain / factor * stretched


def yarn_magnitude(factor: float) -> float:
    """Factor on cosines and sines that goes with `yarn_frequencies` (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def cos_sin_cache(frequencies: Tensor, max_position: int, magnitude: float = 1.0) -> Tensor:
    """[max_position, rotary_dim] float64: cosines, then sines, of each position's angles."""
    angles = torch.arange(max_position, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * magnitude
