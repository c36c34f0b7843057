# SPDX-License-Identifier: Apache-2.0
"""A model that the engine does not have: Llama whose logits are capped softly, as Gemma 2's are.

A checkpoint asks for it in its `config.json`:

    "architectures": ["SoftCapLlamaForCausalLM"], "final_logit_softcapping": 30.0
"""

from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.llama import LlamaForCausalLM


class SoftCapLlamaForCausalLM(LlamaForCausalLM):
    """Logits are cap * tanh(logits / cap), with the cap `final_logit_softcapping`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self.logits_processor = LogitsProcessor(
            config.vocab_size, soft_cap=float(config.final_logit_softcapping)
        )
