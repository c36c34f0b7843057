# SPDX-License-Identifier: Apache-2.0
"""Custom logits processors for Model Runner V2, chosen by name.

    vllm serve MODEL --logits-processors vllm_anvil.logits_processors:NoRepeatNGram

| Class | Arguments of a request | What it does |
|---|---|---|
| `AllowedTokens` | `allowed_tokens` | leaves these tokens, as many as there are |
| `NoRepeatNGram` | `no_repeat_ngram_size` | no n-gram of the prompt and the output comes twice |
| `MinimumPhraseLength` | `min_phrase_length`, `phrase_end_tokens` | no phrase ends early |

Arguments go into `SamplingParams.extra_args`, or into `vllm_xargs` of an HTTP request. A request
without them is left alone. They run on any device of torch, and with several rows a request, as
speculative decoding has them. None is an entry point of the group `vllm.logits_processors`, since
the engine loads all of that group in every process of whoever has the package installed.
"""

from vllm_anvil.logits_processors.allowed_tokens import AllowedTokens
from vllm_anvil.logits_processors.minimum_phrase_length import MinimumPhraseLength
from vllm_anvil.logits_processors.no_repeat_ngram import NoRepeatNGram

__all__ = ["AllowedTokens", "MinimumPhraseLength", "NoRepeatNGram"]
