# SPDX-License-Identifier: Apache-2.0
"""Chats, log-probabilities, structured outputs and tools: `python generation.py URL`.

The server was started with `--served-model-name model`, and for the tool with
`--enable-auto-tool-choice --tool-call-parser hermes`.
"""

import json
import sys

from openai import OpenAI

QUESTION = [{"role": "user", "content": "Who wrote Romeo and Juliet?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")

    def chat(**arguments):
        return client.chat.completions.create(
            model="model", messages=QUESTION, temperature=0, max_tokens=60, **arguments
        )

    parts = [part.choices[0].delta.content or "" for part in chat(stream=True)]
    print(f"streamed: {''.join(parts)!r} in {len(parts)} parts")

    answer = client.completions.create(
        model="model", prompt="The sea is", max_tokens=4, temperature=0, logprobs=1
    )
    found = answer.choices[0].logprobs
    print("log-probabilities:", dict(zip(found.tokens, found.token_logprobs, strict=True)))

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    print("person:", json.loads(chat(response_format=schema).choices[0].message.content))
    year = {"structured_outputs": {"regex": "(15|16)[0-9]{2}"}}
    print("year:", chat(extra_body=year).choices[0].message.content)

    chosen = {"type": "function", "function": {"name": "weather"}}
    (call,) = chat(tools=[WEATHER], tool_choice=chosen).choices[0].message.tool_calls
    print("tool:", call.function.name, json.loads(call.function.arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
