# SPDX-License-Identifier: Apache-2.0
"""Paged attention in plain torch: runs on any device, and is what kernels are compared with.

It is written for exactness first (float32 arithmetic throughout) and for speed where plain torch
allows: requests with equally long queries share one batched matmul, long queries are computed in
tiles, and only visible keys are ever read.
"""

import torch

from .batch_plan import BatchPlan, KeyTile, QueryTile, plan_batch


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    causal: bool | torch.Tensor = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    plan: BatchPlan | None = None,
) -> None:
    """Attention of each request's newest tokens over its keys and values in a paged cache.

    A request's query rows are the last `query_len` of its `seq_len` tokens; the keys and values
    of all of them are in the cache already. Prefill, decode and mixtures are one case.

    Args:
        query: [num_tokens, num_heads, head_size], float16, bfloat16, float32 or float64. May
            have more rows than `query_start_loc[-1]`; those are padding and are not read.
        key_cache: [num_blocks, block_size, num_kv_heads, head_size], any strides, of any
            floating dtype, float8 included, or int8. `num_heads` is a multiple of `num_kv_heads`.
        value_cache: [num_blocks, block_size, num_kv_heads, value_head_size], likewise.
        block_table: [num_reqs, max_blocks] int32 or int64. Entries beyond a request's length
            are never used, and neither is what the cache holds beyond it.
        query_start_loc: [num_reqs + 1] int32 or int64, non-decreasing: request r's rows are
            `query_start_loc[r]` up to `query_start_loc[r + 1]`. Empty requests are skipped.
        seq_lens: [num_reqs] int32 or int64: keys of each request, its query included.
        scale: factor on the logits.
        output: [num_tokens, num_heads, value_head_size], written in place, any floating dtype;
            must not alias the inputs. Padding rows keep their contents; rows that see no key
            become 0.
        causal: whether a query sees no later key; or [num_reqs] of bool or int, per request.
        sliding_window: W >= 1: a query sees itself and the W - 1 keys before it, and without
            `causal` also the W - 1 keys after it. None: no window.
        logits_soft_cap: C > 0: logits become C * tanh(logits / C). None: no cap.
        alibi_slopes: [num_heads]: a key at distance d gets slope * d subtracted.
        sinks: [num_heads]: logit of one more key per head, with a value of 0.
        k_scale, v_scale: what the numbers in the caches are multiplied by.
        plan: `plan_batch` of the same batch and options, built here if None.

    Arithmetic is float32, or float64 if the query is.

    Raises:
        ValueError: shapes that contradict one another, or an option out of range.
        IndexError: `query_start_loc` decreases, or leads out of the query. Block table entries are
            not checked, see `torch.ops.anvil.check_block_table`.
    """
    num_heads, head_size = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    _check(query, key_cache, value_cache, output, sliding_window, logits_soft_cap)
    for name, per_head in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if per_head is not None and per_head.shape != (num_heads,):
            raise ValueError(f"{name} must be [{num_heads}] (one per head), got {per_head.shape}")
    if plan is None:
        plan = plan_batch(
            _checked_starts(query_start_loc, query.shape[0]),
            seq_lens,
            block_table,
            block_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=max(head_size, value_cache.shape[3]),
            causal=causal,
            sliding_window=sliding_window,
        )
    for tile in plan.tiles:
        # Keys enter by the logits alone, values by the result.
        result = _attend(
            query,
            key_cache,
            value_cache,
            tile,
            scale * k_scale,
            logits_soft_cap,
            alibi_slopes,
            sinks,
        )
        if v_scale != 1.0:
            result.mul_(v_scale)
        output[tile.rows] = result.to(output.dtype)


def _check(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    sliding_window: int | None,
    logits_soft_cap: float | None,
) -> None:
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = key_cache.shape[2]
    if key_cache.shape[3] != head_size or key_cache.shape[:3] != value_cache.shape[:3]:
        raise ValueError(
            f"key_cache {tuple(key_cache.shape)} and value_cache {tuple(value_cache.shape)} must "
            f"be [num_blocks, block_size, num_kv_heads, head_size] with the query's head_size "
            f"{head_size} for keys"
        )
    if num_heads % num_kv_heads != 0:
        raise ValueError(f"{num_heads} query heads are no multiple of {num_kv_heads} KV heads")
    if output.shape != (num_tokens, num_heads, value_cache.shape[3]):
        raise ValueError(
            f"output must be {(num_tokens, num_heads, value_cache.shape[3])} "
            f"[num_tokens, num_heads, value_head_size], got {tuple(output.shape)}"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, got {sliding_window}")
    if logits_soft_cap is not None and not logits_soft_cap > 0:
        raise ValueError(f"logits_soft_cap must be positive, got {logits_soft_cap}")


def _checked_starts(query_start_loc: torch.Tensor, num_tokens: int) -> list[int]:
    starts: list[int] = query_start_loc.tolist()
    least = 0
    for index, start in enumerate(starts):
        if not least <= start <= num_tokens:
            raise IndexError(
                f"query_start_loc[{index}] is {start}; it must be at least {least}, where the "
                f"request before begins, and at most {num_tokens}, the rows of the query"
            )
        least = start
    return starts


def _attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tile: QueryTile,
    scale: float,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[num_reqs * num_rows, num_heads, value_head_size] of one query tile.

    Inside, the query heads of one KV head are more rows of the same matmul: tensors are
    [num_reqs, num_kv_heads, queries_per_kv * num_rows, ...].
    """
    num_heads, head_size = query.shape[1:]
    num_kv_heads, value_head_size = value_cache.shape[2:]
    shape = (tile.num_reqs, num_kv_heads, num_heads // num_kv_heads, tile.num_rows)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32

    q = query[tile.rows].view(tile.num_reqs, tile.num_rows, num_kv_heads, shape[2], head_size)
    q = q.permute(0, 2, 3, 1, 4).to(dtype).mul(scale)
    q = q.reshape(tile.num_reqs, num_kv_heads, shape[2] * tile.num_rows, head_size)
    slopes = None if alibi_slopes is None else alibi_slopes.to(dtype).view(shape[1], shape[2], 1, 1)

    if len(tile.keys) == 1 and sinks is None and not tile.has_empty_rows:
        logits = _logits(q, key_cache, tile, tile.keys[0], shape, soft_cap, slopes)
        values = _gather(value_cache, tile.keys[0], dtype)
        out = torch.matmul(torch.softmax(logits, dim=-1), values)
    else:
        out = _attend_online(q, key_cache, value_cache, tile, shape, soft_cap, slopes, sinks)
    out = out.view(*shape, value_head_size).permute(0, 3, 1, 2, 4)
    return out.reshape(tile.num_reqs * tile.num_rows, num_heads, value_head_size)


def _attend_online(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tile: QueryTile,
    shape: tuple[int, int, int, int],
    soft_cap: float | None,
    slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over any number of key tiles, by a running maximum and sum."""
    running = (*q.shape[:3], 1)
    if sinks is None:
        maximum = q.new_full(running, float("-inf"))
        total = q.new_zeros(running)
    else:
        # A sink is a key that was seen first and whose value is zero.
        per_row = sinks.to(q.dtype).view(1, shape[1], shape[2], 1).expand(shape)
        maximum = per_row.reshape(running)
        total = q.new_ones(running)
    out = q.new_zeros((*q.shape[:3], value_cache.shape[3]))
    for keys in tile.keys:
        logits = _logits(q, key_cache, tile, keys, shape, soft_cap, slopes)
        new_maximum = torch.maximum(maximum, logits.amax(dim=-1, keepdim=True))
        # Rows that have seen no key yet: any finite value keeps exp() from NaN.
        shift = new_maximum.masked_fill(new_maximum == float("-inf"), 0.0)
        weights = logits.sub_(shift).exp_()
        correction = (maximum - shift).exp_()
        total = total * correction + weights.sum(dim=-1, keepdim=True)
        out = out.mul_(correction).add_(torch.matmul(weights, _gather(value_cache, keys, q.dtype)))
        maximum = new_maximum
    return out.div_(total.masked_fill_(total == 0, 1.0))


def _logits(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    tile: QueryTile,
    keys: KeyTile,
    shape: tuple[int, int, int, int],
    soft_cap: float | None,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    """[num_reqs, num_kv_heads, queries_per_kv * num_rows, num_keys], -inf where not visible."""
    logits = torch.matmul(q, _gather(key_cache, keys, q.dtype).transpose(-1, -2))
    if soft_cap is not None:
        logits.div_(soft_cap).tanh_().mul_(soft_cap)
    by_head = logits.view(*shape, logits.shape[-1])
    position = keys.position[:, None, :]
    if slopes is not None:
        distance = (position - tile.position[:, :, None]).abs_()
        by_head.sub_(slopes * distance[:, None, None].to(logits.dtype))
    if keys.masked:
        hidden = (position < tile.first[:, :, None]) | (position > tile.last[:, :, None])
        by_head.masked_fill_(hidden[:, None, None], float("-inf"))
    return logits


def _gather(cache: torch.Tensor, keys: KeyTile, dtype: torch.dtype) -> torch.Tensor:
    """[num_reqs, num_kv_heads, num_keys, head_size] of a [block, offset, head, element] cache."""
    num_kv_heads, head_size = cache.shape[2:]
    steps = cache.stride()[:3]
    if cache.stride(3) != 1 or any(step % head_size for step in steps):
        return cache[keys.block, keys.offset].transpose(1, 2).to(dtype)
    # Every head of every token is one row of a matrix over the same memory: a single row gather
    # brings them in the order that matmul wants.
    block_step, offset_step, head_step = (step // head_size for step in steps)
    ends = [
        step // head_size * (size - 1) for step, size in zip(steps, cache.shape[:3], strict=True)
    ]
    matrix = cache.as_strided((1 + sum(ends), head_size), (head_size, 1), cache.storage_offset())
    heads = torch.arange(num_kv_heads, device=cache.device) * head_step
    index = keys.cache_rows(block_step, offset_step)[:, None, :] + heads[:, None]
    return matrix.index_select(0, index.flatten()).view(*index.shape, head_size).to(dtype)
