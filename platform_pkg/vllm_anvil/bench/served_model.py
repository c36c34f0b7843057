# SPDX-License-Identifier: Apache-2.0
"""The model that is measured: a folder, or the shape of one with random weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_anvil.bench.model_cost import ELEMENT_BYTES, ModelCost
from vllm_anvil.bench.scenario import Scenario, longest_request, most_tokens

# What the engine itself asks of a request beyond the scenarios: the check of the tokens.
LEAST_LENGTH = 64
# Blocks of the KV cache are at most this long on either side.
LONGEST_BLOCK = 128
LEAST_CACHE = 256 << 20


@dataclass(frozen=True)
class Shape:
    """A model's sizes, for one whose weights are made up."""

    name: str
    model_type: str
    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    longest: int
    rope_theta: float
    tied: bool = True

    def config(self) -> dict[str, Any]:
        """As a Hugging Face config.json."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.longest,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "dtype": "bfloat16",
        }


_LLAMA, _QWEN3 = ("llama", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM")
_SHAPES = (
    Shape("smollm2-135m", *_LLAMA, 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5),
    Shape("smollm2-360m", *_LLAMA, 960, 2560, 32, 15, 5, 64, 49152, 8192, 1e5),
    Shape("qwen3-0.6b", *_QWEN3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6),
    Shape("llama-3.2-1b", *_LLAMA, 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5),
    Shape("llama-3.2-3b", *_LLAMA, 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5),
)
SHAPES = {shape.name: shape for shape in _SHAPES}


@dataclass(frozen=True)
class ServedModel:
    """A folder with a config.json, and how the engine is to load it."""

    name: str
    folder: Path
    config: dict[str, Any]
    made_up: bool

    @classmethod
    def from_folder(cls, folder: Path) -> ServedModel:
        """Raises ValueError for a folder without a configuration."""
        file = folder / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise ValueError(
                f"{folder} is no folder of a model: there is no {file.name} in it"
            ) from None
        except ValueError as error:
            raise ValueError(f"{file} is no JSON: {error}") from None
        return cls(folder.name, folder.resolve(), config, made_up=False)

    @classmethod
    def from_shape(cls, name: str, folder: Path) -> ServedModel:
        """Writes the configuration into the folder. Raises ValueError for an unknown name."""
        shape = SHAPES.get(name)
        if shape is None:
            raise ValueError(f"there is no shape {name!r}; there are {', '.join(SHAPES)}")
        (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
        return cls(name, folder, shape.config(), made_up=True)

    @property
    def vocabulary(self) -> int:
        return int(self._text_config["vocab_size"])

    @property
    def _text_config(self) -> dict[str, Any]:
        return self.config.get("text_config", self.config)

    def dtype(self, wanted: str) -> str:
        """The dtype of that name; "auto" is the checkpoint's own, on both sides."""
        if wanted != "auto":
            return wanted
        text = self._text_config
        return str(text.get("dtype") or text.get("torch_dtype") or "float32")

    def cost(self) -> ModelCost:
        """Raises ValueError where no floor is known."""
        return ModelCost.from_config(self.config)

    def engine_arguments(
        self, scenarios: Sequence[Scenario], dtype: str, prefix_caching: bool
    ) -> dict[str, Any]:
        """Arguments of vllm.LLM, the same for both sides.

        Raises ValueError where the model's positions do not reach as far as a scenario.
        """
        longest = max(LEAST_LENGTH, longest_request(scenarios))
        positions = self._text_config.get("max_position_embeddings")
        if positions is not None and longest > positions:
            raise ValueError(
                f"{self.name} has {positions} positions, and a scenario needs {longest}"
            )
        arguments: dict[str, Any] = {
            "model": str(self.folder),
            "dtype": dtype,
            "max_model_len": longest,
            "enable_prefix_caching": prefix_caching,
            "seed": 0,
        }
        if self.made_up:
            arguments |= {"load_format": "dummy", "skip_tokenizer_init": True}
        cache = self._cache_bytes(scenarios, longest, dtype)
        if cache is not None:
            arguments["kv_cache_memory_bytes"] = cache
        return arguments

    def _cache_bytes(self, scenarios: Sequence[Scenario], longest: int, dtype: str) -> int | None:
        """A KV cache for all that is run at once, so that both sides hold the same; None: the
        engine's own choice, where the model's make is not known."""
        try:
            cost = self.cost()
        except ValueError:
            return None
        tokens = max(
            most_tokens(scenarios, LONGEST_BLOCK), -(-longest // LONGEST_BLOCK) * LONGEST_BLOCK
        )
        # A block more for each layer than is needed: one of them is the engine's own.
        needed = (tokens + 2 * LONGEST_BLOCK) * cost.kv_elements * ELEMENT_BYTES[dtype]
        return max(LEAST_CACHE, needed)
