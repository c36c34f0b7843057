# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of paged attention; `triton_kernels` launches it. Importing this needs Triton.

A program computes the query rows of one KV head that lie in one *tile*: consecutive tokens of one
request, times the query heads that share the KV head. It walks over the keys that any of these
rows sees, keeping the softmax up as they come.
"""

# Triton reads annotations as they are, so they must not become strings.

import triton
import triton.language as tl


@triton.jit
def _request_of_tile(query_start_loc, num_reqs, tile, TOKENS: tl.constexpr):
    """The request to which a tile belongs, among tiles that are dealt out as follows.

    Request r begins with tile `query_start_loc[r] // TOKENS + r`. That leaves each request at
    least the tiles that it needs, so the last one that begins at or before a tile owns it, and
    the number of all tiles is known without a look at the lengths.
    """
    low = 0
    high = num_reqs
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_start_loc + middle) // TOKENS + middle
        if begins <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _soft_capped(logits, cap):
    """cap * tanh(logits / cap), through an exponential that cannot overflow."""
    shrunk = tl.exp(tl.abs(logits) * (-2.0 / cap))
    size = cap * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(logits < 0, -size, size)


@triton.jit(
    do_not_specialize=[
        "num_reqs",
        "shortest",
        "longest",
        "causal",
        "reach",
    ]
)
def paged_attention_kernel(
    query,
    key_cache,
    value_cache,
    block_table,
    query_start_loc,
    seq_lens,
    output,
    causal_per_request,
    alibi_slopes,
    sinks,
    query_token_stride,
    query_head_stride,
    key_block_stride,
    key_token_stride,
    key_head_stride,
    value_block_stride,
    value_token_stride,
    value_head_stride,
    table_stride,
    output_token_stride,
    output_head_stride,
    num_reqs,
    shortest,
    longest,
    causal,
    reach,
    scale,
    soft_cap,
    v_scale,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PER_REQUEST: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    BY_ROWS: tl.constexpr,
):
    """One tile of query rows of one KV head. Grid: (tiles, KV heads).

    Args:
        query ... sinks: as in `contract.AttentionCall`, with the last dimension contiguous.
            `causal_per_request`, `alibi_slopes` and `sinks` are read where PER_REQUEST, HAS_ALIBI
            and HAS_SINKS say so.
        *_stride: in elements.
        shortest, longest: requests with fewer or more query rows are left to another launch.
        causal: 0 or 1, for all requests unless PER_REQUEST.
        reach: how many keys before itself a query sees, and after itself where it is not causal.
        scale: factor on query times key as they are stored.
        v_scale: factor on values as they are stored.
        GROUP: query heads of a KV head.
        ROWS: rows of a tile, a power of two; ROWS // GROUP tokens times GROUP heads are used.
        KEYS: keys of one step, a power of two.
        HEAD_TILE, VALUE_TILE: head sizes, rounded up to powers of two.
        IN_FLOAT32: multiply in float32; otherwise in the type of the query (and what the values
            are multiplied by is rounded to it), with float32 sums.
        BY_ROWS: multiply queries and keys row by row, with no copy of the keys that lies the way
            that a matrix product reads it. Needs IN_FLOAT32.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = _request_of_tile(query_start_loc, num_reqs, tile, TOKENS)
    start = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - start
    first_token = (tile - (start // TOKENS + request)) * TOKENS
    if (first_token >= query_len) | (query_len < shortest) | (query_len > longest):
        return
    seq_len = tl.load(seq_lens + request)
    if PER_REQUEST:
        causal = tl.load(causal_per_request + request).to(tl.int32)

    # Rows of the tile: tokens, and within a token the heads of the group.
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    used = (row < TOKENS * GROUP) & (token < query_len)
    position = seq_len - query_len + token
    first_key = tl.maximum(position - reach, 0)
    last_key = tl.minimum(tl.where(causal != 0, position, position + reach), seq_len - 1)
    last_key = tl.where(used, last_key, -1)

    feature = tl.arange(0, HEAD_TILE)
    value_feature = tl.arange(0, VALUE_TILE)
    token_row = (start + token).to(tl.int64)
    q_place = query + (token_row * query_token_stride + head * query_head_stride)[:, None]
    q_mask = used[:, None]
    if HEAD_TILE != HEAD_SIZE:
        q_mask = q_mask & (feature < HEAD_SIZE)[None, :]
    q = tl.load(q_place + feature[None, :], mask=q_mask, other=0.0)
    if IN_FLOAT32:
        q = q.to(tl.float32)

    if HAS_SINKS:
        # A sink is a key that was seen first and whose value is zero.
        most = tl.load(sinks + head, mask=used, other=0.0).to(tl.float32)
        total = tl.full((ROWS,), 1.0, tl.float32)
    else:
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
    if HAS_ALIBI:
        slope = tl.load(alibi_slopes + head, mask=used, other=0.0).to(tl.float32)
    out = tl.zeros((ROWS, VALUE_TILE), tl.float32)

    # The keys that some row sees have no gap: what lies outside of them is not read.
    begin = tl.maximum(seq_len - query_len + first_token - reach, 0)
    end = tl.max(last_key, 0) + 1
    key_base = key_cache + kv_head.to(tl.int64) * key_head_stride
    value_base = value_cache + kv_head.to(tl.int64) * value_head_stride
    table = block_table + request.to(tl.int64) * table_stride
    for key_start in range(begin, end, KEYS):
        key = key_start + tl.arange(0, KEYS)
        within = key < end
        block = tl.load(table + key // BLOCK_SIZE, mask=within, other=0).to(tl.int64)
        offset = key % BLOCK_SIZE
        k_place = key_base + (block * key_block_stride + offset * key_token_stride)[:, None]
        k_mask = within[:, None]
        if HEAD_TILE != HEAD_SIZE:
            k_mask = k_mask & (feature < HEAD_SIZE)[None, :]
        k = tl.load(k_place + feature[None, :], mask=k_mask, other=0.0).to(q.dtype)
        if BY_ROWS:
            logits = tl.sum(q[:, None, :] * k[None, :, :], 2) * scale
        else:
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if HAS_SOFT_CAP:
            logits = _soft_capped(logits, soft_cap)
        if HAS_ALIBI:
            distance = tl.abs(key[None, :] - position[:, None]).to(tl.float32)
            logits = logits - slope[:, None] * distance
        seen = (key[None, :] >= first_key[:, None]) & (key[None, :] <= last_key[:, None])
        logits = tl.where(seen, logits, float("-inf"))

        new_most = tl.maximum(most, tl.max(logits, 1))
        # Rows that have seen no key yet: any finite value keeps exp() from NaN.
        shift = tl.where(new_most == float("-inf"), 0.0, new_most)
        weight = tl.exp(logits - shift[:, None])
        shrink = tl.exp(most - shift)
        total = total * shrink + tl.sum(weight, 1)
        most = new_most

        v_place = value_base + (block * value_block_stride + offset * value_token_stride)[:, None]
        v_mask = within[:, None]
        if VALUE_TILE != VALUE_HEAD_SIZE:
            v_mask = v_mask & (value_feature < VALUE_HEAD_SIZE)[None, :]
        v = tl.load(v_place + value_feature[None, :], mask=v_mask, other=0.0).to(q.dtype)
        out = tl.dot(weight.to(q.dtype), v, out * shrink[:, None], input_precision="ieee")

    out = out * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    o_place = output + (token_row * output_token_stride + head * output_head_stride)[:, None]
    o_mask = used[:, None]
    if VALUE_TILE != VALUE_HEAD_SIZE:
        o_mask = o_mask & (value_feature < VALUE_HEAD_SIZE)[None, :]
    out = out.to(output.dtype.element_ty)
    tl.store(o_place + value_feature[None, :], out, mask=o_mask)
