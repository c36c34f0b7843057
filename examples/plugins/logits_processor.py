# SPDX-License-Identifier: Apache-2.0
"""Logits processors of one's own and of Anvil, in one batch: `python logits_processor.py MODEL`.

Two are named, one is a class of this file. Each request says with its custom arguments which of
them it wants.
"""

import sys

import torch
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class NoEnd(LogitsProcessor):
    """Masks the end of the text for requests with the argument `no_end`."""

    def __init__(self, vllm_config, req_states):
        self.end = vllm_config.model_config.hf_config.eos_token_id
        self.wanted = torch.zeros(req_states.max_num_reqs, dtype=torch.bool)
        self.wanted_on_device = self.wanted.to(req_states.device, copy=True)

    def add_request(self, req_idx, sampling_params):
        wanted = bool((sampling_params.extra_args or {}).get("no_end"))
        self.wanted[req_idx] = wanted
        return wanted

    def apply_staged_writes(self):
        self.wanted_on_device.copy_(self.wanted, non_blocking=True)

    def apply(self, logits, ctx):
        wanted = self.wanted_on_device[ctx.expanded_idx_mapping.long()]
        logits[:, self.end].masked_fill_(wanted, float("-inf"))
        return logits


def main(model: str) -> None:
    llm = LLM(
        model,
        max_model_len=512,
        logits_processors=[
            "plugins_example.target_token:TargetToken",
            "vllm_anvil.logits_processors:NoRepeatNGram",
            NoEnd,
        ],
    )
    (hello,) = llm.get_tokenizer().encode("hello", add_special_tokens=False)[:1]
    wanted = {
        "nothing": None,
        "one token": {"target_token": hello},
        "no three tokens twice": {"no_repeat_ngram_size": 3},
        "no end": {"no_end": True},
    }
    params = [
        SamplingParams(temperature=0, max_tokens=24, extra_args=arguments)
        for arguments in wanted.values()
    ]
    prompt = "Repeat after me: the sea, the sea, the sea,"
    outputs = llm.generate([prompt] * len(params), params, use_tqdm=False)
    for name, output in zip(wanted, outputs, strict=True):
        print(f"{name}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
