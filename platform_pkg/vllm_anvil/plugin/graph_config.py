# SPDX-License-Identifier: Apache-2.0
"""Which steps are captured into graphs, and for which sizes of batch.

Nothing is compiled: a model runs as it is written, and a decode step is recorded once for each size
of batch, then replayed without Python. Prompts run op by op, since the time that their kernels take
hides what Python takes.
"""

from __future__ import annotations

from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.logger import init_logger

from vllm_anvil import envs
from vllm_anvil.plugin import eager

logger = init_logger("vllm.plugins.anvil.config")

# The largest step that is captured by default, in requests.
LARGEST = 256


def prefer(config: VllmConfig) -> None:
    """Chooses graphs of decode steps where the user left it open, before vLLM fills in its own
    default."""
    compilation = config.compilation_config
    if compilation.mode is None:
        compilation.mode = CompilationMode.NONE
    if compilation.cudagraph_mode is None:
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    if (
        compilation.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
        and compilation.cudagraph_capture_sizes is None
        and compilation.max_cudagraph_capture_size is None
    ):
        sizes = capture_sizes(config.scheduler_config.max_num_seqs)
        rows = 1 + config.num_speculative_tokens
        # Steps that verify drafts have several tokens a request, steps that draft have one.
        compilation.cudagraph_capture_sizes = sorted({*sizes, *(rows * size for size in sizes)})


def capture_sizes(requests: int) -> list[int]:
    """Sizes of batch to capture for steps of up to `requests` requests: the powers of two, and one
    size half-way between them. A step runs in the next larger size."""
    largest = min(requests, LARGEST)
    sizes, size = [1], 2
    while size < largest:
        sizes += [size, size + size // 2]
        size *= 2
    return sorted({*(one for one in sizes if one < largest), largest})


def enforce(config: VllmConfig) -> None:
    """Sets, in a configuration that is otherwise complete, what can be captured; a choice of the
    user's that this overrides is warned of."""
    reason = _not_captured(config)
    if reason is not None:
        eager.enforce(config, reason)
        return
    eager.compile_nothing(config, "the anvil device")
    compilation = config.compilation_config
    if compilation.cudagraph_mode.has_piecewise_cudagraphs():
        logger.warning(
            "compilation_config.cudagraph_mode=%s is set to FULL_DECODE_ONLY: models are not cut "
            "into pieces for the anvil device.",
            compilation.cudagraph_mode.name,
        )
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY


def _not_captured(config: VllmConfig) -> str | None:
    """Completes "nothing is compiled for ...", or None where steps can be captured."""
    if not config.use_v2_model_runner:
        return "Model Runner V1 on the anvil device"
    if envs.ANVIL_RECORD is not None:
        return "steps that are recorded (ANVIL_RECORD)"
    if config.model_config is not None and config.model_config.runner_type == "pooling":
        return "a pooling model on the anvil device"
    return None
