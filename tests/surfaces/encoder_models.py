# SPDX-License-Identifier: Apache-2.0
"""Encoders that embed, classify and score: small random ones, and what all of them answer, by
transformers on the CPU in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CLASSES, TOKEN_CLASSES = 3, 5


def make_bert(folder: Path, vocabulary_of: Path, architecture: str, labels: int) -> None:
    """A BERT of two layers with random weights, and another model's tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(vocabulary_of)
    torch.manual_seed(labels)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
        num_labels=labels,
    )
    getattr(transformers, architecture)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Encoder:
    """`auto` is the class of transformers that has the model's head, AutoModel for none."""

    def __init__(self, folder: Path, auto: str) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        of_auto = getattr(transformers, auto)
        self.model = of_auto.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def outputs(self, *texts: str) -> Any:
        """Of one text, or of a pair."""
        return self.model(**self.tokenizer(*texts, return_tensors="pt"))

    def hidden(self, text: str) -> torch.Tensor:
        """[tokens, hidden size]"""
        return self.outputs(text).last_hidden_state[0]

    def embedding(self, text: str) -> torch.Tensor:
        """[hidden size], the mean of all tokens with length 1."""
        return torch.nn.functional.normalize(self.hidden(text).mean(0), dim=0)

    def probabilities(self, text: str) -> torch.Tensor:
        """[classes], or [tokens, classes]"""
        return self.outputs(text).logits[0].softmax(-1)

    def score(self, text: str, other: str) -> float:
        """Of a cross encoder with one label."""
        return float(self.outputs(text, other).logits[0, 0].sigmoid())
