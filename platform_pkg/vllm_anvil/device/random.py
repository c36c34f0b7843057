# SPDX-License-Identifier: Apache-2.0
"""Random number generators: one default per device, seeded by `torch.manual_seed` too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from vllm_anvil import _C
from vllm_anvil.device.devices import DeviceLike, current_device, device_count, device_index


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generators, made when first asked for: reading them must not start the device."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"anvil:{index} does not exist: this process sees {len(self)} device(s)"
            )
        return _C.default_generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    default_generators[current_device()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator."""
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    default_generators[current_device()].seed()


def seed_all() -> None:
    """Seeds every device's generator with one and the same random number."""
    value: int | None = None
    for generator in default_generators:
        value = generator.seed() if value is None else value
        generator.manual_seed(value)


def initial_seed() -> int:
    return default_generators[current_device()].initial_seed()


def get_rng_state(device: DeviceLike = "anvil") -> torch.Tensor:
    """State of the device's generator: a uint8 tensor on the CPU."""
    return default_generators[device_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "anvil") -> None:
    default_generators[device_index(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
