# SPDX-License-Identifier: Apache-2.0
"""Whether results depend on the batch: what a layer with `AttentionSpec.batch_invariant` promises.

An engine cuts a prompt into steps by what else is in the batch, and finds the beginning of another
in its prefix cache. So a row is computed here in a batch, with its request alone, and, where it is
causal, by itself, and must be the same bits each time.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .contract import AttentionCall, AttentionImplementation, AttentionSpec
from .synthetic_batch import Request, make_call
from .verification import WrongAttentionError, bind, place_call, synchronise

# Long and short, so that work is shared out differently with and without the others. Lengths are
# no multiples of what kernels cut keys into.
BATCH = (Request(1, 2053), Request(4, 1031), Request(5, 5), Request(1, 77), Request(3, 300))


def verify_invariance(
    implementation: AttentionImplementation, spec: AttentionSpec, device: torch.device | str
) -> None:
    """Computes the rows of a batch in three ways.

    Raises:
        WrongAttentionError: a row is not the same each time; the message names it.
        Exception: whatever the implementation raised.
    """
    host = make_call(spec, BATCH, seed=7, padding=3, causal=spec.causal)
    batch = _computed(implementation, host, device)
    starts = host.query_start_loc.tolist()
    for number, request in enumerate(BATCH):
        rows = batch[starts[number] : starts[number + 1]]
        ways = {"the request alone": [range(request.query_len)]}
        if spec.causal:
            ways["the row alone"] = [range(row, row + 1) for row in range(request.query_len)]
        for how, parts in ways.items():
            result = torch.cat(
                [_computed(implementation, rows_of(host, number, part), device) for part in parts]
            )
            if not torch.equal(rows, result):
                row = int((rows != result).flatten(1).any(1).nonzero()[0])
                raise WrongAttentionError(
                    f"results depend on the batch: row {row} of a request of {request.query_len} "
                    f"rows and {request.seq_len} keys is not the same with {how}"
                )


def rows_of(host: AttentionCall, request: int, rows: range) -> AttentionCall:
    """The call with some rows of one of its requests, as a step of their own.

    Args:
        host: on the CPU.
        rows: of the request's rows in `host`; there are no keys behind the last of them.
    """
    first, end = host.query_start_loc[request : request + 2].tolist()
    seq_len = int(host.seq_lens[request]) - (end - first - rows.stop)
    chosen = slice(first + rows.start, first + rows.stop)
    return replace(
        host,
        query=host.query[chosen],
        output=host.output[chosen],
        block_table=host.block_table[request : request + 1],
        query_start_loc=torch.tensor([0, len(rows)], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
        max_query_len=len(rows),
        max_seq_len=seq_len,
    )


def _computed(
    implementation: AttentionImplementation, host: AttentionCall, device: torch.device | str
) -> torch.Tensor:
    """[rows of requests, num_heads, value_head_size], on the CPU."""
    placed = place_call(host, device, implementation)
    bind(implementation, placed.call)()
    synchronise(placed.call.query.device)
    return placed.output.view[: int(host.query_start_loc[-1])].cpu()
