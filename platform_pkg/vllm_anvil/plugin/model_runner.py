# SPDX-License-Identifier: Apache-2.0
"""The engine's model runners on the device.

V2 is what the engine chooses where Triton has a driver, as it has here, and replays decode steps
from graphs; V1 is for `VLLM_USE_V2_MODEL_RUNNER=0` and for what V2 does not support, and runs op by
op. What they take from `torch.cuda` comes from the device through plugin/seams, and so does what is
done to a model once it is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as GPUModelRunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as GPUModelRunnerV1

from vllm_anvil.plugin import draft_model, seams
from vllm_anvil.plugin.seams.unquantized_gemm import only_shapes

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class AnvilModelRunner(GPUModelRunnerV2):
    """Model Runner V2 on an anvil device."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        # So that each step says whether it was replayed (plugin/observability). In the front end,
        # which logs a table of these, the option stays as the user has set it.
        self.observability_config = replace(
            vllm_config.observability_config, cudagraph_metrics=True
        )
        # Of the step that is being prepared.
        self._logits_per_request: NDArray[np.int32] | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        model = self.get_model()
        draft_model.adapt(model, self.speculator, self.vllm_config)
        if not self.is_first_pp_rank:
            # What this stage of a pipeline receives has the dtype that the model computes in now.
            self.intermediate_tensors = model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def profile_run(self, *args: Any, **kwargs: Any) -> None:
        with only_shapes():
            super().profile_run(*args, **kwargs)

    # The engine names the adapter of each request for its logits, and with speculation a request
    # has a row of logits for each draft and one more.

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        batch = super().prepare_inputs(*args, **kwargs)
        if self.num_speculative_steps:
            self._logits_per_request = np.diff(batch.cu_num_logits_np)
        return batch

    def _set_active_loras(
        self, prompt_lora_mapping: tuple[int, ...], *args: Any, **kwargs: Any
    ) -> None:
        counts, self._logits_per_request = self._logits_per_request, None
        if counts is not None:
            prompt_lora_mapping = tuple(np.repeat(prompt_lora_mapping, counts))
        super()._set_active_loras(prompt_lora_mapping, *args, **kwargs)


class AnvilModelRunnerV1(GPUModelRunnerV1):
    """Model Runner V1 on an anvil device."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        seams.adapt(self.get_model(), self.vllm_config)

    def profile_run(self, *args: Any, **kwargs: Any) -> None:
        with only_shapes():
            super().profile_run(*args, **kwargs)
