# SPDX-License-Identifier: Apache-2.0
"""How a batch of requests is cut into tiles of bounded size, in plain torch.

A plan holds everything about a step that does not depend on a layer's data: which query rows are
computed together, which keys each row may see and where those keys lie in the cache. It is built
once a step and shared by all layers of the same geometry.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

# Bound on the elements of any temporary of a tile (gathered keys, logits): 8 MiB in float32.
TILE_ELEMENTS = 1 << 21
# Bound on the query rows of one request in a tile.
TILE_ROWS = 512
# Keys of a tile at least, however many elements each of them costs.
MIN_TILE_KEYS = 128
# Keys that a tile may compute in vain, whatever the lengths, before it is worth another tile.
PADDING_KEYS = 256
# How far a query sees without a sliding window: beyond any sequence.
UNLIMITED = 1 << 40


@dataclass(frozen=True)
class KeyTile:
    """`num_keys` consecutive keys of each request of a query tile."""

    position: torch.Tensor  # [num_reqs, num_keys] int64; past a request's last key: masked
    block: torch.Tensor  # [num_reqs, num_keys] int64, into the cache; always a readable block
    offset: torch.Tensor  # [num_reqs, num_keys] int64, within the block
    masked: bool  # whether some row of the query tile may not see some of these keys
    rows: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def cache_rows(self, block_step: int, offset_step: int) -> torch.Tensor:
        """[num_reqs, num_keys] row numbers in a cache seen as a matrix of head-sized rows.

        Steps are in rows. All layers of a cache group share one geometry, so this is computed
        by the first layer of a step only.
        """
        key = (block_step, offset_step)
        if key not in self.rows:
            self.rows[key] = self.block * block_step + self.offset * offset_step
        return self.rows[key]


@dataclass(frozen=True)
class QueryTile:
    """The same number of query rows of each of `num_reqs` requests."""

    rows: slice | torch.Tensor  # the num_reqs * num_rows rows of the query, request by request
    num_reqs: int
    num_rows: int
    position: torch.Tensor  # [num_reqs, num_rows] int64: position in the sequence
    first: torch.Tensor  # [num_reqs, num_rows] int64: first visible key
    last: torch.Tensor  # [num_reqs, num_rows] int64: last visible key; before `first`: none
    has_empty_rows: bool
    keys: tuple[KeyTile, ...]


@dataclass(frozen=True)
class BatchPlan:
    """The tiles of one step, on the device of the block table."""

    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True)
class _Piece:
    """Consecutive query rows of one request, with the keys that any of them sees."""

    request: int
    first_row: int
    num_rows: int
    position: int
    causal: bool
    seq_len: int
    first_key: int
    num_keys: int


def plan_batch(
    query_start_loc: torch.Tensor | Sequence[int],
    seq_lens: torch.Tensor | Sequence[int],
    block_table: torch.Tensor,
    block_size: int,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    causal: bool | torch.Tensor = True,
    sliding_window: int | None = None,
) -> BatchPlan:
    """Cuts a batch into tiles.

    Arguments are those of `reference.paged_attention`; lengths that are already on the host may
    be given as sequences of int, which saves a wait for the device.
    """
    starts = _on_host(query_start_loc)
    lens = _on_host(seq_lens)
    num_reqs = len(starts) - 1
    flags = [causal] * num_reqs if isinstance(causal, bool) else _on_host(causal)
    if len(lens) < num_reqs or len(flags) < num_reqs or block_table.shape[0] < num_reqs:
        raise ValueError(
            f"query_start_loc describes {num_reqs} requests, but there are {len(lens)} seq_lens, "
            f"{len(flags)} causal flags and {block_table.shape[0]} block table rows"
        )

    pieces: dict[tuple[int, bool], list[_Piece]] = {}
    for request in range(num_reqs):
        query_len = starts[request + 1] - starts[request]
        for begin in range(0, query_len, TILE_ROWS):
            num_rows = min(TILE_ROWS, query_len - begin)
            position = lens[request] - query_len + begin
            flag = bool(flags[request])
            first_key, _ = _visible(position, lens[request], flag, sliding_window)
            _, last_key = _visible(position + num_rows - 1, lens[request], flag, sliding_window)
            num_keys = max(0, last_key - first_key + 1)
            piece = _Piece(
                request,
                starts[request] + begin,
                num_rows,
                position,
                flag,
                lens[request],
                first_key,
                num_keys,
            )
            # Pieces without keys stay apart: they have no key that padding could repeat.
            pieces.setdefault((num_rows, num_keys == 0), []).append(piece)

    tiles = []
    for (num_rows, _), group in pieces.items():
        elements_per_key = max(num_kv_heads * head_size, num_heads * num_rows)
        for members in _pack(group, elements_per_key):
            tiles.append(
                _build_tile(members, elements_per_key, block_table, block_size, sliding_window)
            )
    return BatchPlan(tuple(tiles))


def _on_host(values: torch.Tensor | Sequence[int]) -> list[int]:
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)


def _visible(
    position: int, seq_len: int, causal: bool, sliding_window: int | None
) -> tuple[int, int]:
    """First and last key that a query at `position` sees."""
    reach = UNLIMITED if sliding_window is None else sliding_window - 1
    last = position if causal else position + reach
    return max(position - reach, 0), min(last, seq_len - 1)


def _pack(pieces: list[_Piece], elements_per_key: int) -> list[list[_Piece]]:
    """Groups pieces of similar length, so that padding to the longest costs little."""
    groups: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda p: p.num_keys):
        group = groups[-1] if groups else None
        if (
            group is None
            or piece.num_keys > 2 * group[0].num_keys + PADDING_KEYS
            or piece.num_keys * elements_per_key * (len(group) + 1) > TILE_ELEMENTS
        ):
            groups.append([piece])
        else:
            group.append(piece)
    # The order of the query again: a batch of decodes then reads and writes one slice.
    return [sorted(group, key=lambda p: p.first_row) for group in groups]


def _build_tile(
    pieces: list[_Piece],
    elements_per_key: int,
    block_table: torch.Tensor,
    block_size: int,
    sliding_window: int | None,
) -> QueryTile:
    device = block_table.device
    num_rows = pieces[0].num_rows
    table = torch.tensor(
        [(p.request, p.first_row, p.position, p.causal, p.seq_len, p.first_key) for p in pieces]
    )
    request, first_row, position, causal, seq_len, first_key = table.unsqueeze(-1).unbind(1)
    step = torch.arange(num_rows)
    position = position + step
    reach = UNLIMITED if sliding_window is None else sliding_window - 1
    first = (position - reach).clamp_min(0)
    last = torch.minimum(torch.where(causal.bool(), position, position + reach), seq_len - 1)

    rows: slice | torch.Tensor
    if all(b.first_row - a.first_row == num_rows for a, b in itertools.pairwise(pieces)):
        rows = slice(pieces[0].first_row, pieces[0].first_row + len(pieces) * num_rows)
    else:
        rows = (first_row + step).flatten().to(device)

    tables = block_table.index_select(0, request.flatten().to(device))
    num_keys = max(p.num_keys for p in pieces)
    # More keys than fit are only ever those of a single piece.
    keys_per_tile = min(max(TILE_ELEMENTS // elements_per_key, MIN_TILE_KEYS), max(num_keys, 1))
    last_key = last[:, -1:]
    keys = []
    for begin in range(0, num_keys, keys_per_tile):
        key_position = first_key + torch.arange(begin, min(begin + keys_per_tile, num_keys))
        # Past a request's last key that key is read again, so that nothing unwritten can enter.
        readable = torch.minimum(key_position, last_key)
        masked = bool(
            (key_position[:, :1] < first[:, -1:]).any()
            or (key_position[:, -1:] > last[:, :1]).any()
        )
        index = (readable // block_size).to(device)
        keys.append(
            KeyTile(
                position=key_position.to(device),
                block=tables.gather(1, index).long(),
                offset=(readable % block_size).to(device),
                masked=masked,
            )
        )
    return QueryTile(
        rows=rows,
        num_reqs=len(pieces),
        num_rows=num_rows,
        position=position.to(device),
        first=first.to(device),
        last=last.to(device),
        has_empty_rows=bool((last < first).any()),
        keys=tuple(keys),
    )
