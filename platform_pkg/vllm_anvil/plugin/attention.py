# SPDX-License-Identifier: Apache-2.0
"""Which attention backend the platform names, and whether it serves what a layer asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
    from vllm.v1.attention.selector import AttentionSelectorConfig

# Names of their own, so that no other backend is aliased; a layer looks its backend up by them.
NAME = "ANVIL_ATTN"
MLA_NAME = "ANVIL_MLA"
PATHS = {
    NAME: "anvil_attention.backend.AnvilAttentionBackend",
    MLA_NAME: "anvil_attention.mla_backend.AnvilMLABackend",
}
MLA_PREFILL_PATH = "anvil_attention.mla_backend.AnvilMLAPrefillBackend"


def register(use_mla: bool = False) -> AttentionBackendEnum:
    """The enum member of the backend for layers of either kind, with multi-head latent attention
    or without; both are made known to vLLM when they are not yet."""
    for name, path in PATHS.items():
        if name not in AttentionBackendEnum.__members__:
            register_backend(name, path)
    return AttentionBackendEnum[MLA_NAME if use_mla else NAME]


def choose(
    selected: AttentionBackendEnum | None,
    wanted: AttentionSelectorConfig,
    platform: str = "the anvil platform",
) -> str:
    """Path of the backend class for a layer; `platform` is what messages call the one that asks.

    A model may have layers of both kinds: to select one of the backends by name is to select both.

    Raises ValueError when another backend was selected by name, or with every reason why this one
    cannot serve the layer.
    """
    ours = register(wanted.use_mla)
    if selected is not None and selected.name not in PATHS:
        raise ValueError(
            f"--attention-backend {selected.name} does not run on {platform}. "
            f"Use {ours.name}, or leave the option out."
        )
    reasons = ours.get_class().validate_configuration(
        device_capability=None,  # type: ignore[arg-type]  # the device has no such number
        **wanted._asdict(),
    )
    if reasons:
        raise ValueError(
            f"{platform[0].upper()}{platform[1:]}'s attention backend {ours.name} cannot run this "
            f"model: {'; '.join(reasons)}."
        )
    return ours.get_path()


def mla_prefill_backend() -> type[MLAPrefillBackend]:
    """What the engine's layer for multi-head latent attention holds besides its backend."""
    return resolve_obj_by_qualname(MLA_PREFILL_PATH)


def check_implementation(config: VllmConfig) -> None:
    """Raises ValueError, with one message, when what ANVIL_ATTENTION_IMPL names cannot be served
    or refuses the model."""
    backend = register(config.model_config.use_mla).get_class()
    backend.check_served(config)  # type: ignore[attr-defined]  # our own class


def set_observer(observer: Callable[[str, Any], Callable[[], None] | None] | None) -> None:
    """Who sees each layer's call of the attention, or nobody: given the layer's name and the call,
    it returns what is to be called when the output was written."""
    register().get_class().set_observer(observer)  # type: ignore[attr-defined]  # our own class
