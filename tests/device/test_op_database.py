# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op database on the device: every op gives what it gives on the CPU, or is refused.

The arithmetic of a fallback op is the CPU's own; the way there and back is tested: aliasing,
strides, dtypes, out-of-place and in-place forms, lists, scalars, generators.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import vllm_anvil.device  # noqa: F401

warnings.filterwarnings("ignore")
op_database = pytest.importorskip("torch.testing._internal.common_methods_invocations")

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

# Ops that make or take tensors which the device does not have.
REFUSED = {"sparse.mm", "sparse.sampled_addmm", "to_sparse"}

# Ops that want one of their tensors on the CPU, on every accelerator.
INDICES_ON_CPU = {"tensor_split"}

SAMPLES = 3


def to_device(value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.layout != torch.strided:
                return leaf.to("anvil")
            # A strided clone on the device: same sizes, strides and offset as the sample.
            storage = leaf.detach().untyped_storage()
            moved = torch.empty(0, dtype=leaf.dtype, device="anvil")
            copied = torch.empty(storage.nbytes(), dtype=torch.uint8, device="anvil")
            copied.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
            moved.set_(copied.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride())
            return moved.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device):
            return torch.device("anvil")
        return "anvil" if leaf == "cpu" and isinstance(leaf, str) else leaf

    return pytree.tree_map(move, value)


def clone(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)


def compare(on_anvil: Any, on_cpu: Any, values: bool) -> None:
    ours, theirs = pytree.tree_leaves(on_anvil), pytree.tree_leaves(on_cpu)
    assert len(ours) == len(theirs)
    for a, c in zip(ours, theirs, strict=True):
        if not isinstance(c, torch.Tensor):
            assert not values or a == c or a != a
            continue
        assert a.device.type == "anvil" and a.shape == c.shape and a.dtype == c.dtype
        assert a.stride() == c.stride()
        if values:
            torch.testing.assert_close(a.detach().cpu(), c.detach(), equal_nan=True, rtol=0, atol=0)


def dtype_of(op: Any) -> torch.dtype:
    supported = op.supported_dtypes("cpu")
    preferred = (torch.float32, torch.int64, torch.complex64, torch.bool)
    return next((d for d in preferred if d in supported), next(iter(supported)))


# The jiterator claims the CPU in the database, and raises there: it compiles CUDA code.
HAVE_CPU_KERNEL = [
    op
    for op in op_database.op_db
    if op.supported_dtypes("cpu") and not op.name.startswith("jiterator")
]


@pytest.mark.parametrize("op", HAVE_CPU_KERNEL, ids=lambda op: op.formatted_name)
def test_op_equals_the_cpu(op: Any) -> None:
    dtype = dtype_of(op)
    for number, sample in zip(range(SAMPLES), op.sample_inputs("cpu", dtype), strict=False):
        arguments = (sample.input, *sample.args)
        keywords = sample.kwargs
        if op.name in REFUSED:
            with pytest.raises(NotImplementedError, match="(?i)sparse"):
                device_arguments, device_keywords = to_device((arguments, keywords))
                op(*device_arguments, **device_keywords)
            return
        device_arguments, device_keywords = to_device((arguments, keywords))
        if op.name in INDICES_ON_CPU:
            device_arguments = (device_arguments[0], *arguments[1:])
        torch.manual_seed(number)
        expected = op(*arguments, **keywords)
        torch.manual_seed(number)
        compare(op(*device_arguments, **device_keywords), expected, op.name not in VALUES_DIFFER)
        in_place = op.inplace_variant
        if (
            in_place is not None
            and number == 0
            and not op.name.startswith("_")
            and sample.broadcasts_input is False
        ):
            cpu_self, device_self = clone(sample.input), to_device(clone(sample.input))
            try:
                expected = in_place(cpu_self, *sample.args, **keywords)
            except RuntimeError:
                continue  # this sample has no in-place form: the result's dtype or shape differs
            result = in_place(device_self, *device_arguments[1:], **device_keywords)
            assert result is device_self
            compare(result, expected, op.name not in VALUES_DIFFER)
