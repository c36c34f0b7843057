# SPDX-License-Identifier: Apache-2.0
"""What the names of arguments say about them, where nothing else does.

The engine's kernels name alike what is alike: a `block_table` holds int32, a `HEAD_DIM` is 128.
Each table is read from the top; the first pattern that matches the whole name counts, in any case.
"""

from __future__ import annotations

import re

Constant = bool | int | float | str | None

# What hardware or a form of quantisation must be there for; launches ask first.
_OFF = (
    r".*(pdl|gdc|tma|fnuz|nvfp4|use_?fp4|mxfp4|int8|int4|use_fp8|fp8_w8a8|w8a16|w4a16|ue8m0|fp64|"
    r"swap_ab|use_td|alibi|qq_bias|mm_prefix|r_swa|per_channel|per_act_token|synthetic|fp8_e4b15).*"
)

# Values of compile-time arguments, and of the numbers from which launches compute them.
_CONSTANTS: tuple[tuple[str, Constant], ...] = (
    (_OFF, False),
    (
        r"(has|use|is|apply|enable|with|write|return|load|store|fuse|even|do|save|inplace|skip)_.*",
        True,
    ),
    (r".*_(enabled|interleaved?|causal|divisible)|causal|reverse|normalize|renormalize", True),
    (r"(.*_)?eps(ilon)?", 1e-6),
    (r"fp8_max|quant_max|finfo_max", 448.0),
    (r"fp8_min", -448.0),
    (r".*(softcap|logit_cap).*", 0.0),
    (r".*(sm_|softmax_)?scale|alpha|beta|.*(softplus_)?threshold|.*lower_bound|.*limit", 1.0),
    (r".*(dot|in|input|_)_?precision", "ieee"),
    (r".*activation.*", "silu"),
    (r".*(pad_slot_id|pad_id)", -1),
    (r".*(rank|null_.*_id)", 0),
    (r".*(num_steps|speculative_steps|num_draft.*|num_tokens_per.*)", 3),
    (r".*world_?size|.*cp_size|tp_size|dcp_size|pcp_size|.*interleave_size", 1),
    (r".*(kv_splits?|splits?|split_?k|segments?.*)", 4),
    (r".*(kernel_width|conv_width|width|kernel_size)", 4),
    (r".*(page_size|block_size|cache_block)", 16),
    (r"block_?(m|n|k|q|c|s|size_m|size_n|size_k|size_q|kv|h|r|t|dv|dk|dmodel|d)", 64),
    (r"b[ktvcsmnd]|bl|nb", 64),
    (r".*block_?size.*|.*block|block.*|.*tile.*", 64),
    (r"(num_)?(top_?k|experts_per_token).*", 8),
    (r"(num_)?experts", 64),
    (r"block_?dmodel.*|block_dv|l[kv]", 128),
    (r".*(group_size|group_[nk]|quant_block|quant_group).*", 128),
    (r".*(queries_per_kv|kv_group_num|gqa_group).*", 4),
    (r".*(num_|n_)?(q_|query_|kv_|key_|value_|local_|qo_)?heads?", 8),
    (r"h|hv|hq|hk|hg|qh|kh", 8),
    (r".*rope_?(head_)?dim|rotary_dim|.*rot.*dim", 64),
    (
        r".*(head_(dim|size)|lora_rank).*|d|k|v|dim|dk|dv|hd|.*headdim|head_?size.*|d_?state|dstate",
        128,
    ),
    (r".*hidden.*|n|m|intermediate.*|.*_dim|.*width|vocab.*", 1024),
    (r".*stride.*", 1024),
    (r".*window.*", 128),
    (r".*ratio.*", 4),
    (r".*(warps|stages)", 4),
    (r".*", 16),
)

# Element types of tensors.
_ELEMENTS: tuple[tuple[str, str], ...] = (
    (r".*(cos|sin|cos_sin)(_cache)?", "bf16"),
    (r".*slot_mapping.*|positions?|.*_positions|pos", "i64"),
    (r".*(token_ids?|input_ids|sampled|seeds?)", "i64"),
    (r".*(scale_?inv|scales?|amax|absmax)", "fp32"),
    (r".*(mask|bitmask|is_.*|has_.*)", "i1"),
    (
        r".*(table|idx|ids?|indices|index|map|mapping|lens?|lengths?|cu_.*|_start|_loc|starts?|ends?|"
        r"offsets?|counts?|num_.*|seq_?lens?|seqlens?|slots?|cursor|steps?|n_.*)",
        "i32",
    ),
    (r"(cu|num|seq|block_table|req|query_start|block_ids|sorted_token|expert_ids).*", "i32"),
    (
        r".*(logits|probs?|lse|max|sum|acc|partial.*|logsumexp|temperature|top_p|min_p|penalt.*)",
        "fp32",
    ),
    (
        r".*(mid_o|segm_.*|softmax.*|slopes|sink.*|gate_cumsum|dt_bias|a_log|d_cs.*|workspace)",
        "fp32",
    ),
    (r".*(fp8|quant).*", "fp8e4nv"),
    (r".*(packed|bytes|uint8|cache_u8).*", "u8"),
    (r".*", "bf16"),
)

# Numbers that launches pass; what is not listed is an int32.
_SCALARS: tuple[tuple[str, str], ...] = (
    (r".*(eps|epsilon|scale|alpha|beta|softcap|cap|threshold|limit|factor|temperature)", "fp32"),
    (r".*", "i32"),
)


def _first(table: tuple[tuple[str, Constant], ...], name: str) -> Constant:
    return next(value for pattern, value in table if re.fullmatch(pattern, name, re.IGNORECASE))


def _plain(name: str) -> str:
    """The name without what only says that it is a pointer."""
    return re.sub(r"^(ptr|p)_|_?ptrs?$", "", name, flags=re.IGNORECASE) or name


def constant(name: str) -> Constant:
    """A value for the compile-time argument or number `name`."""
    return _first(_CONSTANTS, name)


def is_off(name: str) -> bool:
    """Whether the switch `name` is one that the engine rarely sets."""
    return re.fullmatch(_OFF, name, re.IGNORECASE) is not None


def element(name: str) -> str:
    """Triton's name of the element type of the tensor `name`."""
    return str(_first(_ELEMENTS, _plain(name)))


def scalar(name: str) -> str:
    """Triton's name of the type of the number `name`."""
    return str(_first(_SCALARS, name))
