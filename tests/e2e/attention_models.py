# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random float32 weights, one for each kind of attention, and what they answer.

Each kind's `make_*` writes a folder that the engine serves; the function after it computes with
transformers what the engine must answer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

VOCABULARY = 260
# Beginning, end, padding, unknown; then the bytes.
SPECIAL = ("<|startoftranscript|>", "</s>", "[PAD]", "[UNK]")
SAMPLING_RATE = 16_000
WINDOW = 12


def _byte_tokens() -> dict[str, int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {symbol: number for number, symbol in enumerate([*SPECIAL, *alphabet])}


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_byte_tokens(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=128, **names
    ).save_pretrained(folder)


def make_hybrid(folder: Path) -> None:
    """Gemma 2: layers with a sliding window and layers without in turn, and a soft cap."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=WINDOW,
            query_pre_attn_scalar=16,
            max_position_embeddings=256,
            initializer_range=0.3,
            attn_logit_softcapping=5.0,
        )
    ).to(torch.float32)
    # Its head is its embedding. With a large one the most probable token is always the last one.
    model.model.embed_tokens.weight.data.mul_(0.05)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def most_probable(
    folder: Path, prompts: list[list[int]], continuations: list[list[int]]
) -> list[list[int]]:
    """The most probable token at each place of the continuations, given all before it: a greedy
    continuation is its own."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    found = []
    with torch.inference_mode():
        for prompt, tokens in zip(prompts, continuations, strict=True):
            logits = model(torch.tensor([prompt + tokens])).logits[0]
            found.append(logits[len(prompt) - 1 : -1].argmax(-1).tolist())
    return found


def make_encoder(folder: Path) -> None:
    """BERT: encoder-only."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=128,
            initializer_range=0.2,
        )
    ).save_pretrained(folder)
    save_tokenizer(folder)


def embeddings(folder: Path, prompts: list[list[int]]) -> torch.Tensor:
    """[prompts, hidden]: of each prompt's first token, of length 1."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        first = [model(torch.tensor([prompt])).last_hidden_state[0, 0] for prompt in prompts]
    return torch.nn.functional.normalize(torch.stack(first), dim=-1)


def make_encoder_decoder(folder: Path) -> None:
    """Whisper: cross-attention to an encoder of one second of sound."""
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_mel_bins=16,
            max_source_positions=50,
            max_target_positions=64,
            init_std=0.3,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            decoder_start_token_id=0,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    model.model.decoder.embed_tokens.weight.data.mul_(0.05)  # as above
    model.save_pretrained(folder)
    tokenizer = WhisperTokenizer(
        vocab=_byte_tokens(), merges=[], extra_special_tokens=list(SPECIAL[:1])
    )
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)


def sounds(lengths: list[int]) -> list[np.ndarray]:
    """Noise of so many samples, the same each time."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(length).astype(np.float32) for length in lengths]


def most_probable_heard(
    folder: Path,
    heard: list[np.ndarray],
    prompts: list[list[int]],
    continuations: list[list[int]],
) -> list[list[int]]:
    """As `most_probable`, for what was heard with each prompt."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    found = []
    with torch.inference_mode():
        for sound, prompt, tokens in zip(heard, prompts, continuations, strict=True):
            features = extractor(sound, sampling_rate=SAMPLING_RATE, return_tensors="pt")
            logits = model(
                input_features=features.input_features,
                decoder_input_ids=torch.tensor([prompt + tokens]),
            ).logits[0]
            found.append(logits[len(prompt) - 1 : -1].argmax(-1).tolist())
    return found
