# SPDX-License-Identifier: Apache-2.0
"""Custom arguments of a request, read and checked.

Errors are ValueError with the argument's name: raised by `validate_params`, they reach whoever sent
the request, as status 400 over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

# Token ids are 32 bits wide in the engine; which of them a vocabulary has, only the worker knows.
MOST = 2**31 - 1


def given(sampling_params: SamplingParams, name: str) -> Any:
    """The argument of this name, None where the request has none."""
    return (sampling_params.extra_args or {}).get(name)


def whole_number(name: str, value: Any, least: int, most: int = MOST) -> int:
    """`value`, which must be a whole number from `least` to `most`."""
    # True is an int in Python, and no number to who sent it.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def token_ranges(name: str, value: Any) -> list[range]:
    """The tokens that `value` lists: each entry is an id, or a text "FIRST-LAST"."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{name} must be a list of token ids that is not empty, not {value!r}")
    return [_range(name, entry) for entry in value]


def _range(name: str, entry: Any) -> range:
    if not isinstance(entry, str):
        token = whole_number(f"each token of {name}", entry, 0)
        return range(token, token + 1)
    first, dash, last = entry.strip().partition("-")
    if not (first.isdecimal() and first.isascii()) or (
        dash and not (last.isdecimal() and last.isascii())
    ):
        raise ValueError(f"{name} has {entry!r}, which is neither a token id nor FIRST-LAST")
    begin, end = int(first), int(last) if dash else int(first)
    if not begin <= end <= MOST:
        raise ValueError(f"{name} has {entry!r}, which is no range of token ids up to {MOST}")
    return range(begin, end + 1)
