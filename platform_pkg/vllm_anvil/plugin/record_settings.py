# SPDX-License-Identifier: Apache-2.0
"""What ANVIL_RECORD and its companions ask for: whether, where and of what steps are recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.version import __version__ as vllm_version

from vllm_anvil import envs, selection
from vllm_anvil.plugin.recorder import Recorder
from vllm_anvil.references.registration import SCHEMAS
from vllm_anvil.testing.recording import PAGED_ATTENTION, write_whole

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# A call of these holds a whole weight, so it is recorded only when it is asked for.
WITH_WEIGHTS = {"linear", "packed_linear", "pack_linear", "unpack_linear", "packed_embedding"}
DEFAULT_OPS = frozenset(SCHEMAS) - WITH_WEIGHTS | {PAGED_ATTENTION}


def folder_from_environment() -> Path | None:
    """The folder of ANVIL_RECORD, made when missing, or None where nothing is recorded.

    Raises ValueError when steps cannot be written there, or ANVIL_RECORD_OPS names no op.
    """
    if envs.ANVIL_RECORD is None:
        return None
    known = {*SCHEMAS, PAGED_ATTENTION}
    unknown = sorted(set(envs.ANVIL_RECORD_OPS or ()) - known)
    if unknown:
        raise ValueError(
            f"ANVIL_RECORD_OPS: there is no op {unknown[0]!r}. Known are {', '.join(sorted(known))}"
        )
    folder = Path(envs.ANVIL_RECORD).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        write_whole(probe, b"")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"ANVIL_RECORD={envs.ANVIL_RECORD}: steps cannot be written there: "
            f"{error.strerror or error}. Name a folder that can be written, or unset it"
        ) from error
    return folder


def layers_to_record(attention_layers: Iterable[str]) -> dict[str, bool]:
    """The model's layers, by the names of their modules -> whether ANVIL_RECORD_LAYERS wants them.

    Args:
        attention_layers: the engine's names, such as "model.layers.3.self_attn.attn". Stacks of
            layers (an encoder's and a decoder's) are chosen from separately.
    """
    stacks: dict[str, dict[int, str]] = {}
    for name in attention_layers:
        match = re.match(r"(.*?)(?:^|\.)([0-9]+)(?=\.|$)", name)
        if match is not None:
            stacks.setdefault(match[1], {})[int(match[2])] = match[0]
    wanted = envs.ANVIL_RECORD_LAYERS
    chosen: dict[str, bool] = {}
    for stack in stacks.values():
        numbers = sorted(stack)
        if wanted == "ends":
            picked = {numbers[0], numbers[len(numbers) // 2], numbers[-1]}
        else:
            picked = set(numbers) if isinstance(wanted, str) else set(wanted)
        chosen |= {name: number in picked for number, name in stack.items()}
    return chosen


def recorder_of_worker(config: VllmConfig, rank: int, model: torch.nn.Module) -> Recorder | None:
    """The recorder of a worker whose model is loaded, or None where nothing is recorded.

    Raises ValueError when steps cannot be written.
    """
    folder = folder_from_environment()
    if folder is None:
        return None
    parallel = config.parallel_config
    if parallel.world_size_across_dp > 1:
        folder /= f"rank{parallel.data_parallel_index * parallel.world_size + rank}"
        folder.mkdir(exist_ok=True)
    ops = envs.ANVIL_RECORD_OPS
    recorder = Recorder(
        folder,
        limit=envs.ANVIL_RECORD_LIMIT,
        steps=envs.ANVIL_RECORD_STEPS,
        ops=DEFAULT_OPS if ops is None else frozenset(ops),
        meta={
            "vllm_anvil": selection.version_of("vllm-anvil") or "unknown",
            "vllm": vllm_version,
            "torch": torch.__version__,
            "model": Path(config.model_config.model).name,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "rank": rank,
        },
    )
    layers = config.compilation_config.static_forward_context
    recorder.watch_layers(model, layers_to_record(layers))
    return recorder
