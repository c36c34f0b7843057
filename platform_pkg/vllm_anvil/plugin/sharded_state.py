# SPDX-License-Identifier: Apache-2.0
"""A rank's weights as files that `load_format="sharded_state"` reads.

The engine's own writer looks at where tensors lie in memory, to write once what several names
share. A packed weight does not lie anywhere as what it is, so that it is written from here: as
plain rows, and under the names and in the files that the engine's loader asks for.
"""

from __future__ import annotations

import os

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from vllm.model_executor.model_loader import ShardedStateLoader

from vllm_anvil.ops.packed_weight import PackedWeight
from vllm_anvil.plugin.weight_parts import parts_of


def save(model: nn.Module, path: str, pattern: str | None, max_size: int | None) -> None:
    """Writes what the model of this rank has, unpacked: one file's weights at a time.

    Args:
        path: a folder that is there.
        pattern: of the files' names, with the fields of the engine's loader; None: its own.
        max_size: bytes of weights in a file, if there are more than one in it; None: one file.

    Raises FileNotFoundError or OSError, with the name of what cannot be written, and ValueError
    for a pattern that the loader does not know.
    """
    if not os.path.isdir(path):
        raise FileNotFoundError(f"save_sharded_state: there is no folder {path}. Make it before")
    for part, weights in enumerate(parts_of(distinct(model).items(), max_size)):
        name = ShardedStateLoader._render_default_pattern(pattern, part=part)
        plain = {key: weight.cpu().contiguous() for key, weight in weights.items()}
        try:
            save_file(plain, os.path.join(path, name))
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"save_sharded_state cannot write {os.path.join(path, name)}: {error}"
            ) from error


def distinct(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, of what has several names the first by the alphabet: the loader's rule."""
    state: dict[str, Tensor] = model.state_dict()
    names: dict[int, str] = {}
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        if isinstance(value, PackedWeight):
            packed = id(value.packed)
            names[packed] = min(name, names.get(packed, name))
        else:
            plain[name] = value
    kept = {*names.values(), *ShardedStateLoader._filter_subtensors(plain)}
    return {name: value for name, value in state.items() if name in kept}
