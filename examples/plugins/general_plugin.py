# SPDX-License-Identifier: Apache-2.0
"""A model that the engine does not have, by a general plugin: `python general_plugin.py MODEL`.

MODEL is a Llama's folder. It is served as `SoftCapLlamaForCausalLM` of plugins_example, which its
`config.json` could ask for as well as an argument does.
"""

import sys

from vllm import LLM, SamplingParams


def main(model: str) -> None:
    overrides = {"architectures": ["SoftCapLlamaForCausalLM"], "final_logit_softcapping": 5.0}
    llm = LLM(model, max_model_len=256, hf_overrides=overrides)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
    (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
    one = output.outputs[0]
    print(f"{llm.model_config.architecture}: {one.text!r}, {one.cumulative_logprob:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
