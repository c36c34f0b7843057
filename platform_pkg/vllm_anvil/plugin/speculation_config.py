# SPDX-License-Identifier: Apache-2.0
"""What of speculative decoding is refused on the device, each by the name of the method or option.

What is served runs on Model Runner V2, whose speculators and rejection sampler are PyTorch and
Triton. V1 is left out altogether: what the engine would fall back to it for is refused instead.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import SpeculativeConfig, VllmConfig

from vllm_anvil.plugin.refusal import Refusal

SERVED = ("ngram", "ngram_gpu", "draft_model", "eagle", "eagle3")
_REMEDY = "Use ngram, draft_model, eagle or eagle3"
_NO_SPECULATOR = f"Model Runner V2 has no such speculator. {_REMEDY}"
_NOT_PROVEN = f"its drafts are not proven on the device. {_REMEDY}"

_METHODS = {
    "suffix": _NO_SPECULATOR,
    "medusa": _NO_SPECULATOR,
    "mlp_speculator": _NO_SPECULATOR,
    "custom_class": _NO_SPECULATOR,
    "mtp": _NOT_PROVEN,
    "dflash": _NOT_PROVEN,
    "dspark": _NOT_PROVEN,
    "extract_hidden_states": f"it hands hidden states to a connector, and none works. {_REMEDY}",
}


def _where(applies: Callable[[SpeculativeConfig], bool]) -> Callable[[VllmConfig], bool]:
    """Asks a configuration that speculates; others do not apply."""
    return lambda c: c.speculative_config is not None and applies(c.speculative_config)


def _method(name: str) -> Callable[[VllmConfig], bool]:
    return _where(lambda s: s.method == name)


def _unknown(config: SpeculativeConfig) -> bool:
    return config.method not in (*SERVED, *_METHODS)


def _asks_for_nothing_of_v1(config: SpeculativeConfig) -> bool:
    return (
        config.method in SERVED
        and not config.parallel_drafting
        and not config.use_heterogeneous_vocab
    )


REFUSALS = (
    *(
        Refusal(f"--speculative-config method {name}", _method(name), reason)
        for name, reason in _METHODS.items()
    ),
    Refusal("this method of --speculative-config", _where(_unknown), _NOT_PROVEN),
    Refusal(
        "--speculative-config with VLLM_USE_V2_MODEL_RUNNER=0",
        lambda c: not c.use_v2_model_runner and _where(_asks_for_nothing_of_v1)(c),
        "speculation is Model Runner V2's here. Unset the variable",
    ),
    Refusal(
        "--speculative-config with a model that drafts, and --pipeline-parallel-size",
        lambda c: (
            c.parallel_config.pipeline_parallel_size > 1
            and _where(lambda s: s.uses_draft_kv_cache() and s.method in SERVED)(c)
        ),
        "drafts of a model are not proven over several stages. Use ngram, or "
        "--tensor-parallel-size",
    ),
    Refusal(
        "--speculative-config parallel_drafting",
        _where(lambda s: s.parallel_drafting and s.method in SERVED),
        "Model Runner V2 drafts one token after the other. Leave it out",
    ),
    Refusal(
        "--speculative-config use_heterogeneous_vocab",
        _where(lambda s: s.use_heterogeneous_vocab),
        "Model Runner V2 takes a draft's tokens as the model's own. Use a draft model with the "
        "model's vocabulary",
    ),
)
