# SPDX-License-Identifier: Apache-2.0
"""The contract of a paged attention: what one is given, what it must do, and how it refuses.

Anvil's own implementations, adapters of others' and a user's obey it alike, so that all of them
are checked, compared and served by the same code. docs/reference/attention_contract.md explains it;
this module is its definition. It needs torch alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Raised when an implementation of the version before would no longer do.
CONTRACT_VERSION = 1


class Unsupported(NotImplementedError):
    """An implementation does not serve a layer or a call; the message says why."""


class GraphSupport(enum.Enum):
    """Whether a call may be recorded into a graph and replayed with other values in its tensors."""

    NEVER = "never"  # looks at values on the host
    UNIFORM_DECODE = "uniform_decode"  # when every request has the same number of query tokens
    ALWAYS = "always"


@dataclass(frozen=True)
class AttentionSpec:
    """What stays the same for all calls of a layer.

    Attributes:
        num_heads: query heads, a multiple of `num_kv_heads`.
        head_size: elements of a query and of a key.
        value_head_size: elements of a value.
        block_size: tokens of a block of the cache.
        dtype: of query and output.
        kv_dtype: of the cache: `dtype`, another floating dtype, float8_e4m3fn, float8_e5m2 or int8.
        scale: factor on the logits.
        sliding_window: W >= 1: a query sees itself and the W - 1 keys before it, and where it is
            not causal also the W - 1 keys after it. None: no window.
        logits_soft_cap: C > 0: logits become C * tanh(logits / C). None: no cap.
        has_alibi, has_sinks: whether calls bring `alibi_slopes` and `sinks`.
        device: type of the device: "anvil", "cpu", "cuda", ...
        causal: whether every call is causal, for all of its requests. Where it is not, calls that
            are not and calls that say it per request come, too: of encoders, of cross-attention.
        batch_invariant: a row's result depends on its own request alone, to the last bit: on no
            other request of the batch, on no padding, and not on how many of the request's rows
            are computed in one call.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False
    device: str = "anvil"
    causal: bool = True
    batch_invariant: bool = False


@dataclass(frozen=True)
class AttentionCall:
    """One call: the newest tokens of each request over that request's keys in the cache.

    A request's query rows are the last of its `seq_lens` tokens; the keys and values of all of them
    are in the cache already (who serves writes them with `torch.ops.anvil.write_kv_cache` first).
    Prefill, decode and mixtures are one case. All tensors are on one device, in stream order.

    Attributes:
        query: [num_tokens, num_heads, head_size], any strides with the last dimension contiguous.
            Rows from `query_start_loc[-1]` on are padding.
        key_cache: [num_blocks, block_size, num_kv_heads, head_size], a view of the cache as the
            engine allocates it: [num_blocks, num_kv_heads, block_size, head_size +
            value_head_size] in whichever order of dimensions. Strides are any, with the last
            dimension contiguous; offsets may exceed 32 bits.
        value_cache: [num_blocks, block_size, num_kv_heads, value_head_size], likewise.
        block_table: [num_reqs, max_blocks] int32: each request's blocks in the order of its tokens.
            Entries beyond a request's length hold anything; what the cache holds beyond it, too.
        query_start_loc: [num_reqs + 1] int32, non-decreasing: request r's rows are
            `query_start_loc[r]` up to `query_start_loc[r + 1]`. A request without rows is padding.
        seq_lens: [num_reqs] int32: keys of each request, its query's included.
        output: [num_tokens, num_heads, value_head_size], any strides with the last dimension
            contiguous, **written**; aliases nothing else. Padding rows keep what they hold; rows
            that see no key become 0.
        max_query_len, max_seq_len: upper bounds on the host.
        causal: whether a query sees no later key; or [num_reqs] of bool, per request.
        alibi_slopes: [num_heads] float32: a key at distance d gets slope * d subtracted.
        sinks: [num_heads] floating: logit of one more key per head, whose value is 0.
        k_scale, v_scale: what the numbers in the cache are multiplied by, whatever its dtype.
        workspace: [`workspace_bytes`] uint8 of the implementation's own, or None where it asked for
            none. It holds anything, and nothing outlasts the call.
    """

    spec: AttentionSpec
    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    output: Tensor
    max_query_len: int
    max_seq_len: int
    causal: bool | Tensor = True
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    workspace: Tensor | None = None

    def keywords(self) -> dict[str, Any]:
        """What an implementation's function is called with: the tensors, and the spec's options."""
        spec = self.spec
        keywords = dict(vars(self))
        del keywords["spec"]
        keywords["scale"] = spec.scale
        keywords["sliding_window"] = spec.sliding_window
        keywords["logits_soft_cap"] = spec.logits_soft_cap
        if spec.batch_invariant:
            # Asked of implementations that declare it, and of no other.
            keywords["batch_invariant"] = True
        return keywords


def _serves_all(spec: AttentionSpec) -> str | None:
    return None


def _no_workspace(spec: AttentionSpec, max_tokens: int, max_requests: int) -> int:
    return 0


@dataclass(frozen=True)
class AttentionImplementation:
    """One implementation of the contract.

    Attributes:
        name: for tables and messages.
        function: `function(**call.keywords())`: writes `output` and returns None. It changes
            nothing else, and raises `Unsupported` for a call that it cannot serve.
        version: of the contract that it was written for.
        refuses: a reason in words why it cannot serve a layer, or None where it can. Asked before
            anything is called; see `refusal`.
        workspace_bytes: (spec, most tokens of a call, most requests) -> bytes that it needs.
        graph_support: see `GraphSupport`.
        batch_invariant: whether it serves layers with `AttentionSpec.batch_invariant`. Its
            function then takes one more keyword, `batch_invariant`, which is given for those only.
        checks_blocks: whether a call whose block table leads out of the cache, or whose
            `query_start_loc` leads out of the query, reads and writes nothing and is an IndexError:
            raised at once, or by the device's next wait. Who serves then makes no check before it.
        prepare: for adapters of implementations with a cache or metadata of their own: given a
            call, does what a step does once for all layers, or what had happened before it, and
            returns the part that is a layer's attention as a function without arguments, which
            then is all that is timed. Such an implementation cannot be served.
    """

    name: str
    function: Callable[..., Any]
    version: int = CONTRACT_VERSION
    refuses: Callable[[AttentionSpec], str | None] = _serves_all
    workspace_bytes: Callable[[AttentionSpec, int, int], int] = _no_workspace
    graph_support: GraphSupport = GraphSupport.NEVER
    batch_invariant: bool = False
    checks_blocks: bool = False
    prepare: Callable[[AttentionCall], Callable[[], None]] | None = field(default=None)

    def refusal(self, spec: AttentionSpec) -> str | None:
        """Why it cannot serve a layer, by what it declares and by `refuses`; None where it can."""
        if spec.batch_invariant and not self.batch_invariant:
            return "its results depend on the batch, and VLLM_BATCH_INVARIANT asks that they do not"
        return self.refuses(spec)

    def __call__(self, call: AttentionCall) -> None:
        """Computes a call. Raises whatever the function does, and TypeError where it returns
        something: a result in a tensor of its own would be lost."""
        returned = self.function(**call.keywords())
        if returned is not None:
            raise TypeError(
                f"attention {self.name!r} returned {type(returned).__name__}; it must write "
                "`output` and return None"
            )


def attention(
    function: Callable[..., Any] | None = None, **attributes: Any
) -> Any:  # a decorator, with or without arguments
    """Declares a function to be an attention: `@attention` or `@attention(name=..., ...)` with the
    attributes of `AttentionImplementation`. A plain function serves as well, with the defaults."""
    if function is None:
        return lambda actual: attention(actual, **attributes)
    name = attributes.pop("name", function.__name__)
    return AttentionImplementation(name=name, function=function, **attributes)


def as_implementation(found: Any, name: str) -> AttentionImplementation:
    """What a user named, as an implementation.

    Raises TypeError for something that is none, and ValueError for another version's.
    """
    if not isinstance(found, AttentionImplementation):
        if not callable(found):
            raise TypeError(f"{name} is no attention: it is {type(found).__name__}, not a function")
        found = AttentionImplementation(name=name, function=found)
    if found.version != CONTRACT_VERSION:
        raise ValueError(
            f"{name} was written for version {found.version} of the attention contract, and this "
            f"is version {CONTRACT_VERSION} (docs/reference/attention_contract.md)"
        )
    return found
