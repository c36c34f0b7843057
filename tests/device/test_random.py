# SPDX-License-Identifier: Apache-2.0
"""Random numbers on the device: seeds, state, independence of the CPU, distribution."""

from __future__ import annotations

import pytest
import torch

import vllm_anvil.device  # noqa: F401


def draw() -> torch.Tensor:
    return torch.rand(32, device="anvil").cpu()


def test_seeds_repeat_and_differ() -> None:
    torch.manual_seed(1)
    first = draw()
    torch.anvil.manual_seed_all(1)
    assert torch.equal(draw(), first)
    torch.anvil.manual_seed(2)
    assert not torch.equal(draw(), first)
    assert torch.anvil.initial_seed() == 2


def test_state_round_trip_and_fork_rng() -> None:
    state = torch.anvil.get_rng_state()
    first = draw()
    torch.anvil.set_rng_state(state)
    assert torch.equal(draw(), first)
    torch.anvil.set_rng_state_all(torch.anvil.get_rng_state_all())
    torch.anvil.set_rng_state(state)
    with torch.random.fork_rng(devices=[0], device_type="anvil"):
        draw()
    assert torch.equal(draw(), first)


def test_device_and_cpu_generators_are_independent() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    draw()
    assert torch.equal(torch.rand(4), expected)


def test_explicit_generators() -> None:
    generator = torch.Generator(device="anvil").manual_seed(5)
    assert generator.device.type == "anvil"
    a = torch.randn(8, generator=generator, device="anvil")
    b = torch.randn(8, generator=generator.manual_seed(5), device="anvil")
    assert torch.equal(a, b)
    clone = generator.clone_state()
    assert torch.equal(
        torch.rand(3, generator=generator, device="anvil"),
        torch.rand(3, generator=clone, device="anvil"),
    )
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="anvil").uniform_(generator=torch.Generator())


@pytest.mark.parametrize("draw", ["uniform_", "normal_", "exponential_", "bernoulli_"])
def test_distributions_have_their_mean_and_spread(draw: str) -> None:
    torch.anvil.manual_seed(7)
    x = getattr(torch.empty(200_000, device="anvil"), draw)().double()
    mean, std = {
        "uniform_": (0.5, 0.2887),
        "normal_": (0, 1),
        "exponential_": (1, 1),
        "bernoulli_": (0.5, 0.5),
    }[draw]
    assert abs(x.mean().item() - mean) < 0.01 and abs(x.std().item() - std) < 0.01


def test_random_integers_multinomial_and_dropout_draw_on_the_device() -> None:
    torch.anvil.manual_seed(9)
    assert torch.randperm(100, device="anvil").sort().values.tolist() == list(range(100))
    counts = torch.multinomial(
        torch.tensor([0.1, 0.9], device="anvil"), 20_000, replacement=True
    ).bincount()
    assert abs(counts[1].item() / 20_000 - 0.9) < 0.02
    kept = (
        torch.nn.functional.dropout(torch.ones(20_000, device="anvil"), 0.25).count_nonzero().item()
    )
    assert abs(kept / 20_000 - 0.75) < 0.02
    assert torch.randint(0, 5, (1000,), device="anvil").max().item() == 4
