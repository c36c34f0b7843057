# SPDX-License-Identifier: Apache-2.0
"""Whether an implementation of the attention contract does what it must.

`check` runs one call and looks at everything that the contract promises: the values, rows of
padding, memory around the output, inputs, cache and workspace. `verify` does it for a handful of
small batches of a layer, in about a second: it is asked before an implementation serves.

The op `torch.ops.anvil.check_block_table` keeps a call whose block table leads out of the cache
from being run. A process that uses the library `_C` must have loaded it before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.references import registration
from vllm_anvil.testing.layouts import Placed

from .contract import AttentionCall, AttentionImplementation, AttentionSpec, Unsupported
from .reference_implementation import reference_attention
from .synthetic_batch import APART, POISON, Request, make_call, poisoned


class WrongAttentionError(RuntimeError):
    """An implementation broke the contract; the message says how."""


@dataclass(frozen=True)
class Allowed:
    """How far results may be off.

    Attributes:
        row: the error of a token's head, in the Euclidean norm, relative to what is expected.
        element, share: an element's error: `element` of itself and `share` of the root mean square
            of its token's head.
    """

    row: float
    element: float
    share: float


# What implementations may lose: the result and the weights rounded to the dtype, sums in float32.
# A row that is off by one part in a hundred is always outside.
ALLOWED = {
    torch.bfloat16: Allowed(row=6e-3, element=6e-3, share=1.5e-2),
    torch.float16: Allowed(row=1.5e-3, element=1.5e-3, share=4e-3),
    torch.float32: Allowed(row=5e-5, element=1e-4, share=2e-4),
    torch.float64: Allowed(row=5e-5, element=1e-4, share=2e-4),
}
# float64 costs twice as much; above this many multiply-adds float32 is exact enough.
FLOAT64_UP_TO = 1 << 31
# Requests of `verify` are no longer than this, whatever the window.
LONGEST = 8192


@dataclass(frozen=True)
class PlacedCall:
    """A call on a device, between guards.

    Attributes:
        call: its tensors on the device.
        host: the same on the CPU, untouched.
        output, workspace: those of `call` within their buffers.
    """

    call: AttentionCall
    host: AttentionCall
    output: Placed
    workspace: Placed | None

    def reset(self) -> None:
        """Makes output and workspace what they were: nothing of an earlier run is left in them."""
        for placed in (self.output, self.workspace):
            if placed is not None:
                placed.buffer.view(torch.uint8).fill_(POISON)
        # Adapters may write to the same memory from the host.
        synchronise(self.call.query.device)


def place_call(
    host: AttentionCall,
    device: torch.device | str,
    implementation: AttentionImplementation | None = None,
    *,
    output_gap: int = 0,
) -> PlacedCall:
    """Copies a call to a device. Strides are kept; `output` and `workspace` get new memory.

    Args:
        host: on the CPU.
        implementation: whose workspace the call gets; None: none.
        output_gap: elements between one token's output and the next one's.
    """
    moved: dict[int, Tensor] = {}
    changes: dict[str, Any] = {
        field.name: _move(value, device, moved)
        for field in dataclasses.fields(host)
        if isinstance(value := getattr(host, field.name), Tensor) and field.name != "output"
    }
    output = _guarded(host.output.shape, host.output.dtype, device, output_gap)
    size = 0
    if implementation is not None:
        rows, requests = host.query.shape[0], host.seq_lens.shape[0]
        size = implementation.workspace_bytes(host.spec, rows, requests)
    workspace = _guarded(torch.Size([size]), torch.uint8, device, 0) if size else None
    changes["output"] = output.view
    changes["workspace"] = None if workspace is None else workspace.view
    call = dataclasses.replace(host, **changes)
    return PlacedCall(call, host, output, workspace)


def bind(implementation: AttentionImplementation, call: AttentionCall) -> Callable[[], None]:
    """What computes `call`, as a function without arguments; preparation is done here."""
    if implementation.prepare is not None:
        return implementation.prepare(call)
    return lambda: implementation(call)


def expected_output(host: AttentionCall) -> Tensor:
    """[rows of requests, num_heads, value_head_size] in float64, on the CPU, by the reference."""
    spec = host.spec
    rows = int(host.query_start_loc[-1])
    work = rows * host.max_seq_len * spec.num_heads * (spec.head_size + spec.value_head_size)
    precise = torch.float64 if work <= FLOAT64_UP_TO else torch.float32
    wide = dataclasses.replace(
        host,
        spec=dataclasses.replace(spec, batch_invariant=False),
        query=host.query.to(precise),
        output=torch.zeros(host.output.shape, dtype=precise),
        workspace=None,
    )
    reference_attention(wide)
    return wide.output[:rows].double()


def check(
    implementation: AttentionImplementation,
    placed: PlacedCall,
    expected: Tensor | None = None,
    least_norm: Tensor | None = None,
) -> Callable[[], None]:
    """Runs a call and compares. Returns what ran it, to be run again.

    Args:
        expected: of `expected_output`, computed here if None.
        least_norm: as in `difference`.

    Raises:
        WrongAttentionError: it broke the contract.
        Unsupported: it refuses the layer or the call.
        IndexError: the block table leads out of the cache; nothing was run.
        Exception: whatever the implementation raised.
    """
    call = placed.call
    reason = implementation.refusal(call.spec)
    if reason is not None:
        raise Unsupported(reason)
    check_block_table(call)
    if expected is None:
        expected = expected_output(placed.host)
    run = bind(implementation, call)
    run()
    synchronise(call.query.device)
    problem = _changed(placed) or wrong_values(placed, expected, least_norm)
    if problem is not None:
        raise WrongAttentionError(problem)
    return run


def check_block_table(call: AttentionCall) -> None:
    """Raises IndexError where a call's block table leads out of its cache.

    Waits for the device: what is queued behind a check that fails runs all the same.
    """
    registration.register()
    num_blocks, block_size = call.key_cache.shape[:2]
    torch.ops.anvil.check_block_table(
        call.block_table, call.query_start_loc, call.seq_lens, block_size, num_blocks
    )
    synchronise(call.block_table.device)


def verify(
    implementation: AttentionImplementation, spec: AttentionSpec, device: torch.device | str
) -> None:
    """Runs small batches of every kind through an implementation.

    Raises what `check` raises; a WrongAttentionError names the batch.
    """
    for name, host in small_calls(spec):
        placed = place_call(host, device, implementation, output_gap=8)
        try:
            check(implementation, placed)
        except WrongAttentionError as error:
            raise WrongAttentionError(f"{name}: {error}") from None


def small_calls(spec: AttentionSpec) -> Iterator[tuple[str, AttentionCall]]:
    """Named calls that a serving engine makes, on the CPU."""
    block = spec.block_size
    decode = [Request(1, n) for n in (1, block, block + 1, 3 * block + 2)]
    mixed = [Request(1, 2 * block + 5), Request(7, 7), Request(5, 3 * block + 5), Request(1, 3)]
    batches = {
        "decode": decode,
        "prefill": [Request(block + 3, block + 3), Request(5, 5)],
        "mixed": mixed,
    }
    window = spec.sliding_window
    if window is not None:
        longer = min(window + block // 2 + 3, LONGEST)
        batches["window"] = [Request(1, longer), Request(min(3, longer), longer)]
    causal: dict[str, bool | list[bool]] = {}
    if not spec.causal:
        batches["not causal"] = [Request(n, n) for n in (block + 3, 1, 5)]
        batches["attention to an encoder"] = [Request(1, 2 * block + 1), Request(4, 2)]
        batches["causal or not"] = mixed
        causal = {"not causal": False, "attention to an encoder": False}
        causal["causal or not"] = [True, False, True, False]
    layouts = ("LBHNC", "LBNHC", APART) if block == 1 else ("LBHNC", "LBNHC")
    for seed, (name, requests) in enumerate(batches.items()):
        for layout in layouts:
            padding = 3 if name == "mixed" else 0
            # Scales are the layer's way of reading a cache of smaller numbers.
            scaled = spec.kv_dtype.itemsize == 1 and name == "mixed"
            yield (
                f"{name}, cache {layout}",
                make_call(
                    spec,
                    requests,
                    seed=seed,
                    layout=layout,
                    padding=padding,
                    causal=causal.get(name, True),
                    k_scale=0.5 if scaled else 1.0,
                    v_scale=2.0 if scaled else 1.0,
                ),
            )


def wrong_values(
    placed: PlacedCall, expected: Tensor, least_norm: Tensor | None = None
) -> str | None:
    """What is wrong with the values of `placed.output`, or None.

    Args:
        expected: [rows of requests, num_heads, value_head_size] float64, on the CPU.
        least_norm: as in `difference`.
    """
    actual = placed.output.view.detach().cpu()[: expected.shape[0]]
    return difference(actual, expected, least_norm)


def difference(actual: Tensor, expected: Tensor, least_norm: Tensor | None = None) -> str | None:
    """How results differ from what is expected beyond what their dtype allows, or None.

    Args:
        actual: [rows, num_heads, value_head_size], on the CPU.
        expected: the same in float64.
        least_norm: [rows, num_heads] float64: errors are measured against a norm of at least that
            much. For heads of few elements, which now and then cancel out to nearly nothing.
    """
    allowed = ALLOWED.get(actual.dtype, ALLOWED[torch.float32])
    # What a row that its sink outweighs comes down to in float16 is as far off as its numbers lie
    # apart, however small.
    smallest = torch.finfo(actual.dtype).smallest_normal * torch.finfo(actual.dtype).eps
    actual = actual.double()
    if actual.numel() and bool(actual.isnan().all()):
        return "output was not written, or everything in it is NaN"
    error = ((actual - expected).abs() - smallest).clamp_min(0).nan_to_num(torch.inf, torch.inf)
    norm = torch.linalg.vector_norm(expected, dim=-1, keepdim=True)
    if least_norm is not None:
        norm = torch.maximum(norm, least_norm.unsqueeze(-1))
    mean = norm / expected.shape[-1] ** 0.5
    # Rows that see no key are exactly 0; the smallest number keeps them comparable.
    bound = expected.abs() * allowed.element + mean * allowed.share + 1e-30
    too_far = error > bound
    if bool(too_far.any()):
        token, head, element = (
            int(i) for i in torch.unravel_index((error / bound).argmax(), error.shape)
        )
        return (
            f"wrong values: output[{token}, {head}, {element}] is "
            f"{float(actual[token, head, element]):.6g} instead of "
            f"{float(expected[token, head, element]):.6g} "
            f"({int(too_far.sum())} of {error.numel()} elements are too far off)"
        )
    row = torch.linalg.vector_norm(error, dim=-1) / (norm.squeeze(-1) + 1e-30)
    # In few elements roundings do not average out: in one, each may be at its largest.
    most = allowed.row * (1 + 2 / expected.shape[-1])
    if row.numel() and float(row.max()) > most:
        token, head = (int(i) for i in torch.unravel_index(row.argmax(), row.shape))
        return (
            f"wrong values: output[{token}, {head}] is off by {float(row.max()):.2%} as a whole; "
            f"{most:.2%} is allowed"
        )
    return None


def synchronise(device: torch.device) -> None:
    """Waits for the device's work."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def _changed(placed: PlacedCall) -> str | None:
    """What was changed that must not be, or None."""
    call, host = placed.call, placed.host
    view = placed.output.view
    if view.shape != host.output.shape or view.dtype != host.output.dtype:
        return (
            f"output became {list(view.shape)} {view.dtype}; it was given as "
            f"{list(host.output.shape)} {host.output.dtype}, to be written in place"
        )
    if view.untyped_storage().data_ptr() != placed.output.buffer.untyped_storage().data_ptr():
        return "output got other memory; it must be written in place"
    for field in dataclasses.fields(host):
        before, after = getattr(host, field.name), getattr(call, field.name)
        if field.name in ("output", "workspace") or not isinstance(before, Tensor):
            continue
        if not _same_memory_contents(before, after):
            return f"{field.name} was changed, or memory beside it; only output may be"
    rows = int(host.query_start_loc[-1])
    written = Placed(view[:rows], placed.output.buffer)
    if written.surroundings_changed():
        if placed.output.surroundings_changed():
            return "memory around output was written"
        return "rows of padding were written; they must keep what they hold"
    if placed.workspace is not None and placed.workspace.surroundings_changed():
        return "memory around the workspace was written: workspace_bytes is too small"
    return None


def _same_memory_contents(before: Tensor, after: Tensor) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    now = torch.empty(0, dtype=torch.uint8, device=after.device).set_(after.untyped_storage())
    return torch.equal(_bytes(before), now.cpu())


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _move(tensor: Tensor, device: torch.device | str, moved: dict[int, Tensor]) -> Tensor:
    """The same view of a copy of the storage, which other views of it share."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in moved:
        moved[storage.data_ptr()] = _bytes(tensor).to(device, copy=True)
    whole = moved[storage.data_ptr()].view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _guarded(shape: torch.Size, dtype: torch.dtype, device: torch.device | str, gap: int) -> Placed:
    """Contiguous rows, `gap` elements apart, with a guard before and behind."""
    rows, width = shape[0], shape[1:].numel()
    guard = max(64, width)
    buffer = poisoned(2 * guard + rows * (width + gap), dtype).to(device)
    inner = torch.empty(shape[1:], device="meta").stride()
    return Placed(buffer.as_strided(shape, (width + gap, *inner), guard), buffer)
