# SPDX-License-Identifier: Apache-2.0
"""What an op of PyTorch's op database gives on the device, held against what it gives on the CPU.

Every call is made at least twice with fresh values of the same shapes: the first may teach the
device what the results look like, the later ones are queued by what was learned. Each call gets its
own copies of its arguments, so that what it writes to them is compared as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from op_calls import Call, sharing, tensors
from torch.utils import _pytree as pytree

import vllm_anvil.device  # noqa: F401

# Results are random, uninitialised, or about the device: only shape and dtype are compared.
VALUES_DIFFER = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided",
    "exponential", "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "normal", "normal_in_place", "pca_lowrank",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip

# Through this the database's functions for random ops seed and restore generators, which waits.
SEEDED = "torch.testing._internal.common_methods_invocations.wrapper_set_seed"

# Ops that want one of their tensors on the CPU, on every accelerator.
INDICES_ON_CPU = {"tensor_split"}

# PyTorch's CPU kernels lose their way in an empty `out=` with a storage offset.
WITHOUT_OFFSET_OUT = {"native_batch_norm", "_native_batch_norm_legit"}

# In half precision PyTorch accumulates in other dtypes on the CPU than on any other device.
WITHOUT_HALF = {"nn.functional.linear_cross_entropy"}

SAMPLES = 3
ROUNDS = 2
# The first that an op supports is checked in all forms, the others out of place.
DTYPES = {
    torch.float32: "f32",
    torch.int64: "i64",
    torch.complex64: "c64",
    torch.bool: "bool",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
# Against float64: what torch.testing allows results of a dtype by default (rtol, atol).
TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}


def samples(op: Any, dtype: torch.dtype, seed: int) -> Iterator[tuple[Any, Call]]:
    torch.manual_seed(seed)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, set_seed=False), SAMPLES):
        yield sample, Call(op, (sample.input, *sample.args), dict(sample.kwargs))


def forms(op: Any, sample: Any, call: Call) -> Iterator[tuple[str, Call]]:
    """The ways to make a call, by name."""
    yield "call", call
    yield "call, strided", call.strided()
    if op.inplace_variant is not None and not sample.broadcasts_input:
        in_place = Call(op.inplace_variant, call.arguments, call.keywords)
        yield "in-place", in_place
        yield "in-place, strided", in_place.strided()
    if not op.supports_out:
        return
    results = call.moved("cpu")(seed=0)
    if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(results)):
        return
    results = tuple(results) if isinstance(results, tuple) else results
    for form, make in (
        ("out=", lambda result: torch.ones_like(result).contiguous()),
        ("empty out=", lambda result: result.new_empty(0)),
    ):
        out = pytree.tree_map(make, results)
        with_out = Call(op, call.arguments, call.keywords | {"out": out})
        yield form, with_out
        if form == "out=" or op.name not in WITHOUT_OFFSET_OUT:
            yield f"{form}, strided", with_out.strided()


def on_device(op: Any, call: Call) -> Call:
    result = call.moved("anvil")
    if op.name in INDICES_ON_CPU:
        result.arguments = (result.arguments[0], *call.arguments[1:])
    return result


def compare_tensor(ours: torch.Tensor, theirs: torch.Tensor, values: bool) -> None:
    for what in ("dtype", "shape", "stride", "storage_offset", "is_conj", "is_neg"):
        a, c = (getattr(tensor, what) for tensor in (ours, theirs))
        a, c = (a(), c()) if callable(a) else (a, c)
        assert a == c, f"{what} {a}, on the CPU {c}"
    if values:
        torch.testing.assert_close(
            ours.detach().cpu(), theirs.detach(), equal_nan=True, rtol=0, atol=0
        )


def compare(ours: Any, our_call: Call, theirs: Any, their_call: Call, values: bool) -> None:
    leaves, expected = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    assert len(leaves) == len(expected), f"{len(leaves)} results, on the CPU {len(expected)}"
    for a, c in zip(leaves, expected, strict=True):
        if isinstance(c, torch.Tensor):
            assert a.device.type == "anvil", f"a result on {a.device}"
            compare_tensor(a, c, values)
        else:
            assert not values or a == c or a != a, f"{a}, on the CPU {c}"
    for a, c in zip(our_call.tensors(), their_call.tensors(), strict=True):
        compare_tensor(a, c, values)
    a = sharing(our_call.tensors() + tensors(ours))
    c = sharing(their_call.tensors() + tensors(theirs))
    assert a == c, f"shared memory {a}, on the CPU {c}"


def check(op: Any, call: Call, seed: int) -> bool:
    """Whether the CPU can make this call. The device has to give the same, or the same error."""
    ours, theirs = on_device(op, call), call.moved("cpu")
    try:
        expected = theirs(seed)
    except Exception as error:
        try:
            ours(seed)
            torch.anvil.synchronize()
        except type(error):
            return False
        raise AssertionError(f"nothing raised; on the CPU {error!r}") from error
    compare(ours(seed), ours, expected, theirs, op.name not in VALUES_DIFFER)
    return True


def check_queued(op: Any, call: Call, seed: int) -> bool:
    """Whether a call that was made before comes back while the stream is busy with something else.

    Its arguments are let go before it can have run.
    """
    # A slow host may need longer for the call than the stream is kept busy.
    for milliseconds in (10, 100):
        ours, theirs = on_device(op, call), call.moved("cpu")
        expected = theirs(seed)
        shared = sharing(theirs.tensors() + tensors(expected))
        torch.manual_seed(seed)
        torch.anvil.synchronize()
        torch.anvil._sleep(milliseconds)
        awake = torch.anvil.current_stream().record_event()
        with patch(SEEDED, lambda function, *args, **kwargs: function(*args, **kwargs)):
            result = ours.run()
        queued = not awake.query()
        assert sharing(ours.tensors() + tensors(result)) == shared
        del ours
        nothing = Call(op, ())
        compare(result, nothing, expected, nothing, op.name not in VALUES_DIFFER)
        if queued:
            return True
    return False


def check_float64(op: Any, call: Call, dtype: torch.dtype) -> None:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != dtype:
            return tensor
        # All of the storage, which some ops look at.
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        everything = tensor.as_strided((elements,), (1,), 0).double()
        return everything.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    exact = Call(op, *pytree.tree_map_only(torch.Tensor, widen, (call.arguments, call.keywords)))
    ours = tensors(on_device(op, call)(seed=0))
    rtol, atol = TOLERANCES[dtype]
    for a, c in zip(ours, tensors(exact(seed=0)), strict=True):
        if a.dtype == dtype and c.dtype == torch.float64 and op.name not in VALUES_DIFFER:
            torch.testing.assert_close(a.double().cpu(), c, equal_nan=True, rtol=rtol, atol=atol)
