# SPDX-License-Identifier: Apache-2.0
"""Texts, chats and beams without a server: `python offline.py MODEL`."""

import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import BeamSearchParams

CONVERSATION = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
TEMPLATE = "{% for message in messages %}Question: {{ message['content'] }}\nAnswer:{% endfor %}"


def main(model: str) -> None:
    llm = LLM(model, max_model_len=512)
    greedy = SamplingParams(temperature=0, max_tokens=16)
    for output in llm.generate(["The sea is", "A violin has"], greedy, use_tqdm=False):
        print(f"generate: {output.prompt!r} {output.outputs[0].text!r}")
    for template in (None, TEMPLATE):
        (output,) = llm.chat(CONVERSATION, greedy, use_tqdm=False, chat_template=template)
        print(f"chat: {output.outputs[0].text!r}")
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    (found,) = llm.beam_search([{"prompt": "Once upon a"}], params)
    for sequence in found.sequences:
        print(f"beam: {sequence.cum_logprob:.2f} {sequence.text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
