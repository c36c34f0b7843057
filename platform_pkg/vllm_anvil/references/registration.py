# SPDX-License-Identifier: Apache-2.0
"""Makes ``torch.ops.anvil`` complete on any machine and any device.

Where the library `_C` is loaded, it has defined the ops and runs them natively on anvil and CPU
tensors. The references are registered below that: for ops without a native form, for tensors of
other devices, and, where `_C` is not loaded, for everything.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import (
    activation,
    attention_states,
    cache,
    ceiling,
    embedding,
    experts,
    gemm,
    lora,
    norm,
    rotary,
    sampling,
    softmax,
)

# Name -> arguments and results, as csrc/torch_glue/ops/register.cpp has them.
SCHEMAS = {
    "rms_norm": (
        "(Tensor x, Tensor? weight, float epsilon, int? variance_size=None, "
        "float weight_offset=0.0) -> Tensor"
    ),
    "fused_add_rms_norm": (
        "(Tensor x, Tensor residual, Tensor? weight, float epsilon, int? variance_size=None, "
        "float weight_offset=0.0) -> (Tensor, Tensor)"
    ),
    "fused_add_rms_norm_": (
        "(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon, "
        "int? variance_size=None, float weight_offset=0.0) -> ()"
    ),
    "layer_norm": "(Tensor x, Tensor? weight, Tensor? bias, float epsilon) -> Tensor",
    "silu_and_mul": "(Tensor x) -> Tensor",
    "gelu_and_mul": '(Tensor x, str approximate="none") -> Tensor',
    "softmax": "(Tensor x) -> Tensor",
    "log_softmax": "(Tensor x) -> Tensor",
    "rotary_embedding": (
        "(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox, int[] mrope_section=[], "
        "bool mrope_interleaved=False) -> ()"
    ),
    "qk_norm_rotary_write_kv_cache": (
        "(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor(c!) key_cache, "
        "Tensor(d!) value_cache, Tensor slot_mapping, Tensor cos_sin_cache, bool is_neox, "
        "Tensor? query_weight=None, Tensor? key_weight=None, float? epsilon=None, "
        "float weight_offset=0.0, int[] mrope_section=[], bool mrope_interleaved=False) -> ()"
    ),
    "embedding": "(Tensor ids, Tensor weight, ScalarType? dtype=None) -> Tensor",
    "packed_embedding": (
        "(Tensor ids, Tensor packed, int rows, int hidden, ScalarType? dtype=None) -> Tensor"
    ),
    "merge_attn_states": (
        "(Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, Tensor suffix_lse) "
        "-> (Tensor, Tensor)"
    ),
    "write_kv_cache": (
        "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor slot_mapping, float k_scale=1.0, float v_scale=1.0) -> ()"
    ),
    "copy_blocks": "(Tensor(a!) cache, Tensor block_pairs) -> ()",
    "swap_blocks": "(Tensor src, Tensor(a!) dst, Tensor block_pairs) -> ()",
    "check_block_table": (
        "(Tensor block_table, Tensor query_start_loc, Tensor seq_lens, int block_size, "
        "int num_blocks) -> ()"
    ),
    "linear": "(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "packed_linear": (
        "(Tensor input, Tensor packed, int columns, Tensor? bias=None, ScalarType? dtype=None, "
        "ScalarType? input_dtype=None, Tensor? rows_in_use=None, bool keep_remainders=False) "
        "-> Tensor"
    ),
    "pack_linear": "(Tensor weight, int? unit=None) -> Tensor",
    "unpack_linear": "(Tensor packed, int columns, int depth) -> Tensor",
    "choose_experts": (
        "(Tensor logits, Tensor(a!) weights, Tensor(b!) ids, str scoring, bool renormalize, "
        "Tensor? bias=None, float scale=1.0, Tensor? skip=None) -> ()"
    ),
    "mixture_of_experts": (
        "(Tensor input, Tensor gate_up, Tensor down, Tensor weights, Tensor ids, int intermediate, "
        'str activation="silu", Tensor? expert_map=None, ScalarType? input_dtype=None, '
        "Tensor? rows_in_use=None, bool keep_remainders=False) -> Tensor"
    ),
    "lora_shrink": (
        "(Tensor input, Tensor[] a, Tensor order, Tensor starts, Tensor(a!) shrunk, "
        "float scale=1.0, Tensor? ranks=None) -> ()"
    ),
    "lora_expand": (
        "(Tensor shrunk, Tensor[] b, Tensor order, Tensor starts, Tensor(a!) output, "
        "int offset=0, bool add=True, Tensor? ranks=None) -> ()"
    ),
    "topk_topp": "(Tensor(a!) logits, Tensor? k, Tensor? p, float mask_value) -> ()",
    "ceiling_read": "(Tensor buffer) -> Tensor",
    "ceiling_arithmetic": "(Tensor seed, int steps) -> Tensor",
}
# These compute nothing that means anything: a benchmark reads what the machine can do off them.
MEASURES = frozenset({"ceiling_read", "ceiling_arithmetic"})

_FAMILIES = (
    norm,
    activation,
    softmax,
    rotary,
    embedding,
    attention_states,
    cache,
    gemm,
    experts,
    lora,
    sampling,
    ceiling,
)
REFERENCES: dict[str, Callable[..., Any]] = {
    name: next(getattr(family, name) for family in _FAMILIES if hasattr(family, name))
    for name in SCHEMAS
}

_library: torch.library.Library | None = None  # what it registers is gone when it is


def is_registered() -> bool:
    """Whether `register` has run in this process."""
    return _library is not None


def register() -> None:
    """Completes ``torch.ops.anvil`` in this process. Doing it again changes nothing.

    `_C` must be loaded before, where it is used at all: no op can be defined twice, so from here on
    a process without `_C` remains without it.
    """
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("anvil", "FRAGMENT")
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.anvil, name):
            _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, REFERENCES[name], "CompositeExplicitAutograd")
