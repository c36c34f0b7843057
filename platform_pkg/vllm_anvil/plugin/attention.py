# SPDX-License-Identifier: Apache-2.0
"""Which attention backend the platform names, and whether it serves what a layer asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig

# A name of its own, so that no other backend is aliased; a layer looks its backend up by it.
NAME = "ANVIL_ATTN"
PATH = "anvil_attention.backend.AnvilAttentionBackend"


def register() -> AttentionBackendEnum:
    """The enum member of the backend, which is made known to vLLM when it is not yet."""
    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, PATH)
    return AttentionBackendEnum[NAME]


def choose(
    selected: AttentionBackendEnum | None,
    wanted: AttentionSelectorConfig,
    platform: str = "the anvil platform",
) -> str:
    """Path of the backend class for a layer; `platform` is what messages call the one that asks.

    Raises ValueError when another backend was selected by name, or with every reason why this one
    cannot serve the layer.
    """
    ours = register()
    if selected is not None and selected is not ours:
        raise ValueError(
            f"--attention-backend {selected.name} does not run on {platform}. "
            f"Use {NAME}, or leave the option out."
        )
    reasons = ours.get_class().validate_configuration(
        device_capability=None,  # type: ignore[arg-type]  # the device has no such number
        **wanted._asdict(),
    )
    if reasons:
        raise ValueError(
            f"{platform[0].upper()}{platform[1:]}'s attention backend {NAME} cannot run this "
            f"model: {'; '.join(reasons)}."
        )
    return ours.get_path()


def check_implementation(config: VllmConfig) -> None:
    """Raises ValueError, with one message, when what ANVIL_ATTENTION_IMPL names cannot be served
    or refuses the model."""
    register().get_class().check_served(config)  # type: ignore[attr-defined]  # our own class


def set_observer(observer: Callable[[str, Any], Callable[[], None] | None] | None) -> None:
    """Who sees each layer's call of the attention, or nobody: given the layer's name and the call,
    it returns what is to be called when the output was written."""
    register().get_class().set_observer(observer)  # type: ignore[attr-defined]  # our own class
