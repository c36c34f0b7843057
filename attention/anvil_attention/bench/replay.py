# SPDX-License-Identifier: Apache-2.0
"""Recorded serving steps as problems."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anvil_attention.contract import AttentionCall, AttentionSpec
from anvil_attention.synthetic_batch import Request
from anvil_attention.verification import check_block_table
from vllm_anvil.testing import recording

from .problem import Problem


def recorded_problems(path: Path, device: str) -> list[Problem]:
    """The attention calls of a recording, in its order.

    Raises ValueError for a file that holds none, or one that leads out of its cache, and what
    `recording.load` raises.
    """
    calls = [call for call in recording.load(path).calls if call.op == recording.PAGED_ATTENTION]
    if not calls:
        raise ValueError(
            f"{path} holds no call of {recording.PAGED_ATTENTION}: record serving with "
            "ANVIL_RECORD=DIR"
        )
    return [
        problem_of(f"{path.stem}#{index}", call.arguments, call.results.get("output"), device)
        for index, call in enumerate(calls)
    ]


def problem_of(
    name: str, arguments: Mapping[str, Any], output: Tensor | None, device: str
) -> Problem:
    """A problem from the arguments of an `AttentionCall`, whose spec is a dict.

    Args:
        output: what the call wrote when it was recorded, padding included; None: not known.
    """
    spec = _spec(dict(arguments["spec"]), device)
    known = {field.name for field in fields(AttentionCall)} - {"spec", "workspace"}
    given = {key: value for key, value in arguments.items() if key in known}
    if "output" not in given:
        shape = (*given["query"].shape[:2], spec.value_head_size)
        given["output"] = torch.empty(shape, dtype=spec.dtype)
    call = AttentionCall(spec=spec, **given)
    starts, lens = call.query_start_loc.tolist(), call.seq_lens.tolist()
    requests = tuple(
        Request(end - start, length)
        for (start, end), length in zip(itertools.pairwise(starts), lens, strict=False)
    )
    try:
        check_block_table(call)
    except IndexError as error:
        raise ValueError(f"{name} cannot be run: {error}") from error
    return Problem(shape=name, spec=spec, requests=requests, recorded=call, recorded_output=output)


def _spec(given: dict[str, Any], device: str) -> AttentionSpec:
    for name in ("dtype", "kv_dtype"):
        if isinstance(given[name], str):
            given[name] = getattr(torch, given[name].removeprefix("torch."))
    return AttentionSpec(**(given | {"device": torch.device(device).type}))
