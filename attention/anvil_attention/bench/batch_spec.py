# SPDX-License-Identifier: Apache-2.0
"""Batches as text, in the grammar that attention benchmarks share.

    batch := group ("_" group)*
    group := [count] "q" length ["s" length]
    length := digits ["k"]

A group is `count` requests (1 if left out), each with `q` query tokens, the newest of `s` tokens
(as many as the query's if left out). "k" is 1024. `q2k` is a prefill of 2048 tokens, `8q1s4k` are
8 decodes on 4096 tokens, `2q2k_32q1s1k` mixes two prefills with 32 decodes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from anvil_attention.synthetic_batch import Request

GRAMMAR = "[count]q<length>[k][s<length>[k]], groups joined by _: q2k, 8q1s4k, 2q2k_32q1s1k"
# What a batch may sum up to: beyond it a typing error is likelier than a machine that runs it.
MOST_REQUESTS = 1 << 16
MOST_TOKENS = 1 << 27

_GROUP = re.compile(r"(\d+)?q(\d+)(k?)(?:s(\d+)(k?))?", re.ASCII)


def parse(text: str) -> tuple[Request, ...]:
    """The requests of a batch, in the order of the text.

    Raises ValueError, which names the group and shows the grammar.
    """
    requests: list[Request] = []
    for group in text.split("_"):
        found = _GROUP.fullmatch(group)
        if found is None:
            raise _error(text, group, "it does not follow the grammar")
        count = 1 if found[1] is None else int(found[1])
        query_len = _length(found[2], found[3])
        seq_len = query_len if found[4] is None else _length(found[4], found[5])
        if count == 0:
            raise _error(text, group, "it has no requests")
        if query_len == 0:
            raise _error(text, group, "it has no query tokens")
        if seq_len < query_len:
            raise _error(
                text,
                group,
                f"a sequence of {seq_len} tokens cannot end with {query_len} query tokens",
            )
        if count > MOST_REQUESTS - len(requests) or count * seq_len > MOST_TOKENS:
            raise _error(text, group, f"more than {MOST_REQUESTS} requests or {MOST_TOKENS} tokens")
        requests += [Request(query_len, seq_len)] * count
    return tuple(requests)


def format_batch(requests: Sequence[Request]) -> str:
    """The shortest text of a batch: `parse` gives the same requests for it."""
    groups = []
    for request, members in itertools.groupby(requests):
        count = len(list(members))
        text = f"{count if count > 1 else ''}q{_short(request.query_len)}"
        if request.seq_len != request.query_len:
            text += f"s{_short(request.seq_len)}"
        groups.append(text)
    return "_".join(groups)


def kind(requests: Sequence[Request]) -> str:
    """ "decode", "prefill", "extend" (new tokens on top of others), or "mixed"."""
    kinds = {
        "decode" if r.query_len == 1 else "prefill" if r.query_len == r.seq_len else "extend"
        for r in requests
    }
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _length(digits: str, suffix: str) -> int:
    return int(digits) * (1024 if suffix else 1)


def _short(length: int) -> str:
    return f"{length // 1024}k" if length and length % 1024 == 0 else str(length)


def _error(text: str, group: str, why: str) -> ValueError:
    where = f"batch {text!r}" if group == text else f"group {group!r} of batch {text!r}"
    return ValueError(f"{where}: {why}. The grammar is {GRAMMAR}")
