# SPDX-License-Identifier: Apache-2.0
"""Questions about one long text, which is computed once: `python prefix_caching.py URL`.

The server was started with `--served-model-name model --enable-prompt-tokens-details`.
"""

import sys

from openai import OpenAI

TEXT = " ".join(
    f"House number {number} is {colour} and has {number % 5 + 1} windows."
    for number, colour in enumerate(["red", "green", "blue", "white"] * 4)
)
QUESTIONS = ["Which houses are red?", "How many houses are there?", "Which has most windows?"]


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    for question in QUESTIONS:
        messages = [{"role": "user", "content": f"{TEXT}\n{question}"}]
        usage = client.chat.completions.create(
            model="model", messages=messages, temperature=0, max_tokens=4
        ).usage
        details = usage.prompt_tokens_details
        cached = details.cached_tokens or 0 if details else 0
        print(f"{question} {cached} of {usage.prompt_tokens} tokens were there")


if __name__ == "__main__":
    main(*sys.argv[1:])
