# SPDX-License-Identifier: Apache-2.0
"""What a causal language model answers, by transformers on the CPU in float32.

Greedy tokens are checked with the found ones as input: a token is right where no other is more
probable by more than TIE.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

TIE = 1e-3
LOGPROB_TOLERANCE = 1e-3


class LanguageModel:
    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @lru_cache(maxsize=32)  # noqa: B019  it lives as long as a module's tests
    @torch.inference_mode()
    def computed(self, tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [len(tokens), vocabulary], a row of what follows each token, and the logarithm of
        the sum of each row's exponentials [len(tokens), 1]."""
        logits = self.model(torch.tensor([tokens])).logits[0]
        return logits, logits.logsumexp(-1, keepdim=True)

    def logprobs(self, before: list[int], tokens: list[int]) -> torch.Tensor:
        """[len(tokens)], of each token after all that are before it, of which there are some."""
        logits, total = self.computed((*before, *tokens))
        rows = slice(len(before) - 1, len(before) + len(tokens) - 1)
        return logits[rows].gather(1, torch.tensor(tokens).unsqueeze(1)).sub(total[rows])[:, 0]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def chat(self, messages: list[dict[str, str]], template: str | None = None) -> list[int]:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=True, return_dict=False
        )

    def check_greedy(self, prompt: list[int], found: list[int], repetition: float = 1.0) -> None:
        """`repetition` is the penalty of tokens that were there before."""
        logits = self.computed((*prompt, *found))[0][len(prompt) - 1 : -1]
        for number, token in enumerate(found):
            row, seen = logits[number].clone(), sorted({*prompt, *found[:number]})
            row[seen] = torch.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
            assert row[token] >= row.max() - TIE, (number, token, int(row.argmax()))

    def check_logprobs(self, prompt: list[int], found: list[int], given: list[float]) -> None:
        """Of the found tokens."""
        wanted = self.logprobs(prompt, found)
        assert (wanted - torch.tensor(given)).abs().max() < LOGPROB_TOLERANCE

    def check_prompt_logprobs(self, prompt: list[int], given: list[float]) -> None:
        """Of all tokens of a prompt but the first."""
        self.check_logprobs(prompt[:1], prompt[1:], given)

    @torch.inference_mode()
    def beams(self, prompt: list[int], width: int, length: int) -> list[dict[str, Any]]:
        """The best `width` continuations of a length, and their log-probabilities."""
        found = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=width,
            num_return_sequences=width,
            min_new_tokens=length,
            max_new_tokens=length,
            length_penalty=0.0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        return [
            {"token_ids": tokens, "logprob": score}
            for tokens, score in zip(
                found.sequences.tolist(), found.sequences_scores.tolist(), strict=True
            )
        ]
