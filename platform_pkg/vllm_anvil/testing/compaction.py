# SPDX-License-Identifier: Apache-2.0
"""Cuts the arguments of a call down to what it uses, so that they fit into a file.

A cache keeps only the blocks that the call reads or writes, a table only the rows that are looked
up, and the numbers that lead to them are changed to match. Dtypes, dimension orders and, where a
tensor is a view of a larger one, its strides stay: they are part of what a kernel is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import changed

# A view that leaves more than this unused is stored without its strides.
MOST_SPREAD = 4


@dataclass(frozen=True)
class Compacted:
    """A call's arguments, on the CPU.

    Attributes:
        arguments: by name.
        kept: of arguments that were cut down, the entries of dimension 0 that are left.
        rows: of results whose further rows are padding, how many are none.
    """

    arguments: dict[str, Any]
    kept: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def results(self, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of results on the CPU, cut down as the arguments of their names were, with zeros
        for padding."""
        copies = {
            name: portable(select(value, self.kept[name]) if name in self.kept else value)
            for name, value in results.items()
        }
        for name, rows in self.rows.items():
            copies[name][rows:] = 0
        return copies


def portable(tensor: Tensor) -> Tensor:
    """A copy on the CPU, with the same strides, in memory of its own that holds nothing else."""
    tensor = tensor.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or span > MOST_SPREAD * tensor.numel() or _overlaps(tensor):
        return tensor.to("cpu", copy=True).contiguous()
    view = torch.zeros(span, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return view.copy_(tensor)


def _overlaps(tensor: Tensor) -> bool:
    reached = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda both: both[1]
    ):
        if size > 1 and stride < reached:
            return True
        reached += (size - 1) * stride
    return False


def select(tensor: Tensor, index: Tensor) -> Tensor:
    """Those entries of dimension 0, on the CPU, with the dimensions in the same order in memory."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
    inverse = [order.index(d) for d in range(tensor.dim())]
    rows = tensor.permute(order).index_select(order.index(0), index.to(tensor.device))
    return rows.cpu().permute(inverse)


def compact(op: str, arguments: Mapping[str, Any]) -> Compacted:
    """The arguments of one of `torch.ops.anvil`'s ops, or of `paged_attention`.

    Args:
        arguments: by name; those of `paged_attention` are the fields of an AttentionCall, with
            `spec` as a dict.

    Raises:
        IndexError: a number leads outside of what it is looked up in.
    """
    if op in _CUT:
        return _CUT[op](dict(arguments))
    return Compacted(_copied(arguments))


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return changed(dict(arguments), portable)


def _looked_up(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(different numbers in order, each number's place among them)."""
    distinct, places = numbers.cpu().unique(return_inverse=True)
    return distinct.long(), places.to(numbers.dtype)


def _rows_of(table: str, numbers: str) -> Callable[[dict[str, Any]], Compacted]:
    """For an op that looks up `numbers` in the rows of `table`."""

    def cut(arguments: dict[str, Any]) -> Compacted:
        rows, places = _looked_up(arguments.pop(numbers))
        whole = arguments.pop(table)
        copied = _copied(arguments) | {numbers: places, table: select(whole, rows)}
        return Compacted(copied, {table: rows})

    return cut


def _write_kv_cache(arguments: dict[str, Any]) -> Compacted:
    slots = arguments.pop("slot_mapping").cpu()
    key_cache, value_cache = arguments.pop("key_cache"), arguments.pop("value_cache")
    block_size = key_cache.shape[1]
    written = slots >= 0
    blocks, places = _looked_up(slots[written] // block_size)
    renumbered = torch.full_like(slots, -1)
    renumbered[written] = places * block_size + slots[written] % block_size
    keys, values = _caches(key_cache, value_cache, blocks)
    copied = _copied(arguments)
    copied |= {"key_cache": keys, "value_cache": values, "slot_mapping": renumbered}
    return Compacted(copied, {"key_cache": blocks, "value_cache": blocks})


def _qk_norm_rotary_write_kv_cache(arguments: dict[str, Any]) -> Compacted:
    """Rows of the table as for `rotary_embedding`, blocks of the caches as for `write_kv_cache`."""
    looked_up = {name: arguments.pop(name) for name in ("cos_sin_cache", "positions")}
    turning = _rows_of("cos_sin_cache", "positions")(looked_up)
    writing = _write_kv_cache(arguments)
    return Compacted(writing.arguments | turning.arguments, writing.kept | turning.kept)


def _copy_blocks(arguments: dict[str, Any]) -> Compacted:
    blocks, pairs = _looked_up(arguments["block_pairs"])
    cache = select(arguments["cache"], blocks)
    return Compacted({"cache": cache, "block_pairs": pairs}, {"cache": blocks})


def _swap_blocks(arguments: dict[str, Any]) -> Compacted:
    sources, from_places = _looked_up(arguments["block_pairs"][:, 0])
    targets, to_places = _looked_up(arguments["block_pairs"][:, 1])
    cut = {
        "src": select(arguments["src"], sources),
        "dst": select(arguments["dst"], targets),
        "block_pairs": torch.stack([from_places, to_places], dim=1),
    }
    return Compacted(cut, {"src": sources, "dst": targets})


def _paged_attention(arguments: dict[str, Any]) -> Compacted:
    """Padding (rows, requests, blocks behind a request's last) becomes zeros. What the workspace
    and the output held is left out."""
    arguments.pop("workspace", None)
    starts, lens = arguments["query_start_loc"].cpu(), arguments.pop("seq_lens").cpu()
    table = arguments.pop("block_table").cpu()
    key_cache, value_cache = arguments.pop("key_cache"), arguments.pop("value_cache")
    block_size = key_cache.shape[1]
    # The engine's padding has no rows; its lengths may be those of an earlier step.
    lens = torch.where(starts.diff()[: len(lens)] > 0, lens, torch.zeros_like(lens))
    counts = -(-lens // block_size)
    width = max(1, int(counts.max())) if len(counts) else 1
    used = torch.arange(width) < counts[:, None]
    table = table[:, :width]
    blocks, places = _looked_up(table[used])
    renumbered = torch.zeros_like(table)
    renumbered[used] = places
    keys, values = _caches(key_cache, value_cache, blocks)

    rows = int(starts[-1])
    output = torch.zeros_like(portable(arguments.pop("output")))
    copied = _copied(arguments) | {"key_cache": keys, "value_cache": values, "output": output}
    copied["query"][rows:] = 0
    copied |= {"block_table": renumbered, "seq_lens": lens}
    return Compacted(copied, rows={"output": rows})


def _caches(key_cache: Tensor, value_cache: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of both caches; in one piece of memory where the engine has them in one, each
    token's value behind its key."""
    head_size = key_cache.shape[3]
    together = (
        key_cache.untyped_storage().data_ptr() == value_cache.untyped_storage().data_ptr()
        and key_cache.dtype == value_cache.dtype
        and key_cache.stride() == value_cache.stride()
        and key_cache.storage_offset() + head_size == value_cache.storage_offset()
        and key_cache.shape[:3] == value_cache.shape[:3]
    )
    if not together:
        return select(key_cache, blocks), select(value_cache, blocks)
    shape = (*key_cache.shape[:3], head_size + value_cache.shape[3])
    whole = key_cache.as_strided(shape, key_cache.stride(), key_cache.storage_offset())
    both = select(whole, blocks)
    return both[..., :head_size], both[..., head_size:]


_CUT: dict[str, Callable[[dict[str, Any]], Compacted]] = {
    "paged_attention": _paged_attention,
    "write_kv_cache": _write_kv_cache,
    "copy_blocks": _copy_blocks,
    "swap_blocks": _swap_blocks,
    "embedding": _rows_of("weight", "ids"),
    "qk_norm_rotary_write_kv_cache": _qk_norm_rotary_write_kv_cache,
    "rotary_embedding": _rows_of("cos_sin_cache", "positions"),
}
