# SPDX-License-Identifier: Apache-2.0
"""The attention that is served in this process: the native kernels, or what ANVIL_ATTENTION_IMPL
names.

Anything but the reference is asked whether it takes a layer, and checked against the reference on
small problems of that layer's geometry, before the engine starts; and what goes wrong in it later
is reported as its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vllm_anvil import envs

from .contract import AttentionCall, AttentionImplementation, AttentionSpec
from .reference_implementation import reference_attention
from .resolve import resolve

VARIABLE = "ANVIL_ATTENTION_IMPL"
_REMEDY = f"Set {VARIABLE}=reference to serve with the reference"


@dataclass(frozen=True)
class Served:
    """An implementation, under the name that the user gave it."""

    name: str
    implementation: AttentionImplementation
    _admitted: set[tuple[AttentionSpec, torch.device]] = field(default_factory=set, repr=False)
    _workspaces: dict[tuple[AttentionSpec, torch.device], torch.Tensor] = field(
        default_factory=dict, repr=False
    )

    @property
    def is_reference(self) -> bool:
        return self.implementation is reference_attention

    @property
    def reads_blindly(self) -> bool:
        """Whether a block outside of the cache would have it read memory of others."""
        return not (self.is_reference or self.implementation.checks_blocks)

    def message(self, problem: str) -> str:
        return f"{VARIABLE}={self.name}: {problem}"

    def refusal(self, spec: AttentionSpec) -> str | None:
        """Why it does not serve a layer, with the remedy; None where it does."""
        try:
            reason = self.implementation.refusal(spec)
        except Exception as error:
            reason = f"asking it failed with {type(error).__name__}: {error}"
        if reason is None:
            return None
        if spec.batch_invariant and not self.implementation.batch_invariant:
            remedy = "Unset VLLM_BATCH_INVARIANT, or name an implementation that is"
        else:
            remedy = f"{_REMEDY}, or name another implementation"
        return self.message(f"it refuses a layer of this model: {reason}. {remedy}")

    def admit(
        self, specs: Sequence[AttentionSpec], device: torch.device, most_tokens: int, most_reqs: int
    ) -> None:
        """Makes ready for layers of a geometry; of no effect for one that was admitted before.

        Args:
            specs: what a layer's calls may look like: they differ in the dtype of the query only.
                It has to take one of them, and is checked for each that it takes.
            most_tokens, most_reqs: the most that a call will have; its workspace is allocated.

        Raises:
            ValueError: it refuses the layer, or computes something else than the reference.
        """
        if self.is_reference:
            return
        taken = [spec for spec in specs if self.refusal(spec) is None]
        if not taken:
            raise ValueError(self.refusal(specs[0]))
        for spec in taken:
            if (spec, device) not in self._admitted:
                self._check(spec, device)
                self.workspace(spec, device, most_tokens, most_reqs)
                self._admitted.add((spec, device))

    def _check(self, spec: AttentionSpec, device: torch.device) -> None:
        from .invariance import verify_invariance
        from .verification import WrongAttentionError, verify

        # A model may be under construction around this, on a device and in a dtype of its own.
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.device("cpu"), torch.inference_mode():
                verify(self.implementation, spec, device)
                if spec.batch_invariant:
                    verify_invariance(self.implementation, spec, device)
        except WrongAttentionError as error:
            raise ValueError(self.message(f"{error} ({_words(spec)})")) from None
        except Exception as error:
            raise ValueError(
                self.message(
                    f"on a small problem it failed with {type(error).__name__}: {error} "
                    f"({_words(spec)})"
                )
            ) from error
        finally:
            torch.set_default_dtype(default)

    def workspace(
        self, spec: AttentionSpec, device: torch.device, most_tokens: int, most_reqs: int
    ) -> torch.Tensor | None:
        """Memory for calls, the same for all calls of a geometry on a device."""
        size = int(self.implementation.workspace_bytes(spec, most_tokens, most_reqs))
        if size == 0:
            return None
        held = self._workspaces.get((spec, device))
        if held is None or held.numel() < size:
            held = torch.empty(size, dtype=torch.uint8, device=device)
            self._workspaces[spec, device] = held
        return held

    def compute(self, call: AttentionCall, layer: str) -> None:
        """Computes a layer's call.

        Raises:
            IndexError: the block table leads out of the cache, as far as the implementation says so
                at once.
            RuntimeError: it failed; the cause is its own exception.
        """
        try:
            self.implementation(call)
        except Exception as error:
            if isinstance(error, IndexError) and self.implementation.checks_blocks:
                raise  # what it was asked to find, and no fault of its own
            raise RuntimeError(
                self.message(
                    f"it failed in layer {layer!r} with {type(error).__name__}: {error}. {_REMEDY}"
                )
            ) from error


def _words(spec: AttentionSpec) -> str:
    names = [str(dtype).removeprefix("torch.") for dtype in (spec.dtype, spec.kv_dtype)]
    return (
        f"with a query of {names[0]} and a cache of {names[1]} in blocks of {spec.block_size}, "
        f"{spec.num_heads} heads of {spec.head_size} over {spec.num_kv_heads}"
    )


_served: dict[str, Served] = {}


def served() -> Served:
    """What ANVIL_ATTENTION_IMPL names in this process's environment.

    Raises ValueError, with one message, when it names nothing that can be served.
    """
    name = envs.ANVIL_ATTENTION_IMPL
    if name not in _served:
        try:
            found = resolve(name)
            if found.prepare is not None:
                raise TypeError(
                    "it is an adapter for the benchmark, with a cache or metadata of its own"
                )
        except (ImportError, TypeError, ValueError) as error:
            raise ValueError(f"{VARIABLE}={name}: {error}") from error
        _served[name] = Served(name, found)
    return _served[name]
