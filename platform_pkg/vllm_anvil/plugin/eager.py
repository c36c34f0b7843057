# SPDX-License-Identifier: Apache-2.0
"""Running a model as it is written: nothing is compiled, no step is captured into a graph."""

from __future__ import annotations

from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.logger import init_logger

logger = init_logger("vllm.plugins.anvil.config")


def prefer(config: VllmConfig) -> None:
    """Chooses eager mode where the user left it open, before vLLM fills in its own default."""
    if config.compilation_config.mode is None:
        config.compilation_config.mode = CompilationMode.NONE
    if config.compilation_config.cudagraph_mode is None:
        config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


def enforce(config: VllmConfig, where: str) -> None:
    """Sets eager mode in a configuration that is otherwise complete; a choice of the user's that
    this overrides is warned of. `where` completes "nothing is compiled for ..."."""
    compile_nothing(config, where)
    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.NONE
    compilation.cudagraph_capture_sizes = []
    compilation.max_cudagraph_capture_size = 0


def compile_nothing(config: VllmConfig, where: str) -> None:
    """The part of `enforce` that leaves graphs alone."""
    compilation = config.compilation_config
    if compilation.mode != CompilationMode.NONE:
        logger.warning(
            "compilation_config.mode=%s is set to NONE: nothing is compiled for %s.",
            compilation.mode,
            where,
        )
        compilation.mode = CompilationMode.NONE
