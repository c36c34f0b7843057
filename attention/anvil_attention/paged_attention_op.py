# SPDX-License-Identifier: Apache-2.0
"""``torch.ops.anvil.paged_attention``: the attention contract as an op, on every device.

The reference below is what it computes where there is no native form. Needs torch alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_anvil.references import registration

from . import reference

NAME = "paged_attention"
SCHEMA = (
    "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor query_start_loc, Tensor seq_lens, Tensor(a!) output, float scale, "
    "int max_query_len, int max_seq_len, bool causal=True, Tensor? causal_per_request=None, "
    "int? sliding_window=None, float? logits_soft_cap=None, Tensor? alibi_slopes=None, "
    "Tensor? sinks=None, float k_scale=1.0, float v_scale=1.0, "
    "bool batch_invariant=False) -> ()"
)

_library: torch.library.Library | None = None  # what it registers is gone when it is


def register() -> None:
    """Completes ``torch.ops.anvil`` with the op and those that it uses. Again: changes nothing.

    As for `references.registration`: a process that uses the library `_C` has loaded it before.
    """
    global _library
    if _library is not None:
        return
    registration.register()
    _library = torch.library.Library("anvil", "FRAGMENT")
    if not hasattr(torch.ops.anvil, NAME):
        _library.define(NAME + SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(NAME, paged_attention, "CompositeExplicitAutograd")
    # It writes to an argument and returns nothing, which leaves tracing nothing to compute.
    torch.library.register_fake(f"anvil::{NAME}", lambda *args, **kwargs: None, lib=_library)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    causal: bool = True,
    causal_per_request: Tensor | None = None,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    batch_invariant: bool = False,
) -> None:
    """Attention of each request's newest tokens over its keys in a paged cache.

    Args:
        query, key_cache, value_cache, block_table, query_start_loc, seq_lens, alibi_slopes, sinks,
        k_scale, v_scale: as in `contract.AttentionCall`.
        output: likewise, **written**.
        scale, sliding_window, logits_soft_cap: as in `contract.AttentionSpec`.
        max_query_len, max_seq_len: upper bounds on the requests' lengths.
        causal: whether a query sees no later key, for all requests.
        causal_per_request: [num_reqs] of bool, instead of `causal`.
        batch_invariant: whether a row's result must be the same, bit by bit, in whatever batch its
            request is, and however its prompt is cut into steps. The native form then is slower
            where batches are small; the reference is as it is.

    Raises:
        IndexError: a block that a request uses is not in the cache, a request is longer than its
            row of the block table, or `query_start_loc` decreases or leads out of the query;
            `output` is unchanged.
        ValueError: shapes that contradict one another, or an option out of range.
    """
    torch.ops.anvil.check_block_table(
        block_table, query_start_loc, seq_lens, key_cache.shape[1], key_cache.shape[0]
    )
    reference.paged_attention(
        query,
        key_cache,
        value_cache,
        block_table,
        query_start_loc,
        seq_lens,
        scale,
        output,
        causal=causal if causal_per_request is None else causal_per_request,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
    )
