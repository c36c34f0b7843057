# SPDX-License-Identifier: Apache-2.0
"""What each processor leaves of one row of logits, written down token by token.

(tokens before the one to sample, how many of them are the prompt, the request's `extra_args`,
logits [vocabulary], which may be written to) -> logits [vocabulary]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import NoRepeatNGramLogitsProcessor

Reference = Callable[[list[int], int, dict[str, Any], torch.Tensor], torch.Tensor]
BARRED = float("-inf")


def allowed_tokens(
    tokens: list[int], prompt: int, args: dict[str, Any], row: torch.Tensor
) -> torch.Tensor:
    if "allowed_tokens" in args:
        listed: set[int] = set()
        for entry in args["allowed_tokens"]:
            first, _, last = str(entry).partition("-")
            listed |= set(range(int(first), int(last or first) + 1))
        row[sorted(set(range(len(row))) - listed)] = BARRED
    return row


def no_repeat_ngram(
    tokens: list[int], prompt: int, args: dict[str, Any], row: torch.Tensor
) -> torch.Tensor:
    if "no_repeat_ngram_size" not in args:
        return row
    theirs = NoRepeatNGramLogitsProcessor(args["no_repeat_ngram_size"])
    return theirs(torch.tensor([tokens]), row.unsqueeze(0))[0]  # type: ignore[arg-type]


def minimum_phrase_length(
    tokens: list[int], prompt: int, args: dict[str, Any], row: torch.Tensor
) -> torch.Tensor:
    if "min_phrase_length" in args:
        length = 0
        for token in tokens[prompt:]:
            length = 0 if token in args["phrase_end_tokens"] else length + 1
        if length < args["min_phrase_length"]:
            for token in args["phrase_end_tokens"]:
                if token < len(row):
                    row[token] = BARRED
    return row
