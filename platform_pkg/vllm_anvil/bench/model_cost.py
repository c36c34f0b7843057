# SPDX-License-Identifier: Apache-2.0
"""What a step of a model costs at least: bytes that must be read, operations that must be done.

From the model's configuration, for dense decoders with gated MLPs. The weights are those of the
matrix products, each read once a step; the rows of the embedding and the norms' weights, and all
that is written, are too little to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_anvil.bench.scenario import Kind, Scenario

# Models whose layers are attention and a gated MLP, all of them alike.
DENSE_GATED = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"),
    *("smollm3", "granite", "olmo2"),
)
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Ceilings:
    """Bytes read, and operations done in the model's dtype, per second."""

    read: float
    arithmetic: float


@dataclass(frozen=True)
class Cost:
    """Of one step, or of all prompts of a prefill."""

    read_bytes: float
    operations: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The time that it takes at least."""
        return max(self.read_bytes / ceilings.read, self.operations / ceilings.arithmetic)

    def bound(self, ceilings: Ceilings) -> str:
        """Which of the two takes longer: "reading" or "arithmetic"."""
        reading = self.read_bytes / ceilings.read >= self.operations / ceilings.arithmetic
        return "reading" if reading else "arithmetic"


@dataclass(frozen=True)
class ModelCost:
    """The sizes that decide.

    Attributes:
        windows: for each layer, how many tokens before itself a token attends to; None: all.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    windows: tuple[int | None, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelCost:
        """From a Hugging Face config.json. Raises ValueError for a model of another make."""
        model_type = str(config.get("model_type"))
        if model_type not in DENSE_GATED:
            raise ValueError(
                f"no floor is known for models of type {model_type}: there is one for "
                + ", ".join(DENSE_GATED)
            )
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            windows=_windows(config, layers),
        )

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        projections = (2 * self.heads + 2 * self.kv_heads) * self.head_size
        return self.hidden * (projections + 3 * self.intermediate)

    @property
    def weights(self) -> int:
        """Elements of all matrices that a step multiplies by, the output head among them."""
        return len(self.windows) * self.layer_weights + self.head_weights

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def kv_elements(self) -> int:
        """Elements of the KV cache for one token, in all layers."""
        return len(self.windows) * 2 * self.kv_heads * self.head_size

    def cost(self, scenario: Scenario, dtype: str) -> Cost | None:
        """Of a decode step or a whole prefill; None where no requests are timed."""
        if scenario.kind is Kind.DECODE:
            # Halfway: the steps between the first token and the last are timed.
            return self._decode(scenario.batch, scenario.prompt + scenario.tokens / 2, dtype)
        if scenario.kind is Kind.PREFILL:
            return self._prefill(scenario.batch, scenario.prompt, dtype)
        return None

    def _decode(self, batch: int, context: float, dtype: str) -> Cost:
        seen = sum(min(context, window or context) for window in self.windows)
        cached = batch * seen * 2 * self.kv_heads * self.head_size
        return Cost(
            read_bytes=(self.weights + cached) * ELEMENT_BYTES[dtype],
            operations=batch * (2 * self.weights + 4 * seen * self.heads * self.head_size),
        )

    def _prefill(self, batch: int, length: int, dtype: str) -> Cost:
        pairs = sum(_pairs(length, min(length, window or length)) for window in self.windows)
        layers = len(self.windows) * self.layer_weights
        return Cost(
            read_bytes=(self.weights + batch * length * self.kv_elements) * ELEMENT_BYTES[dtype],
            operations=batch
            * (2 * (length * layers + self.head_weights) + 4 * pairs * self.heads * self.head_size),
        )


def _pairs(length: int, window: int) -> int:
    """Pairs of a token and one that it attends to, itself included."""
    return window * (window + 1) // 2 + (length - window) * window


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    if not window or config.get("use_sliding_window") is False:
        return (None,) * layers
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    model_type = config["model_type"]
    if model_type == "gemma2":
        return tuple(window if layer % 2 == 0 else None for layer in range(layers))
    if model_type == "gemma3_text":
        pattern = config.get("sliding_window_pattern") or 6
        return tuple(window if (layer + 1) % pattern else None for layer in range(layers))
    if model_type in ("mistral", "phi3"):
        return (window,) * layers
    return (None,) * layers
