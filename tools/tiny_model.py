# SPDX-License-Identifier: Apache-2.0
"""Make a small Llama with random weights, for tests that need an engine and not an answer.

    python tools/tiny_model.py FOLDER TOKENIZER_FOLDER

Two layers, hidden size 64, 4 query heads over 2 key-value heads of size 32, in float32. The weights
are the same every time, and spread enough that the most probable token is rarely a tie. The
tokenizer, with its chat template, is copied from TOKENIZER_FOLDER and fixes the vocabulary.
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    arguments = parser.parse_args()

    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
