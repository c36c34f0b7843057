# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's op database on the device, and writes docs/reference/op_support.md from it.

python tests/device/op_support.py [OP ...]   one line of JSON for each op (default: all)
python tests/device/op_support.py --write    the page
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import op_checks
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/op_support.md"

# Ops that make or take tensors which the device does not have.
SPARSE = {"sparse.mm", "sparse.sampled_addmm", "to_sparse"}

FORMS = ("call", "in-place", "out=", "empty out=", "strided")

# The sources that register PyTorch's CPU kernels for the device.
FALLBACK_SOURCES = {"fallback_registration.cpp", "frequent.cpp", "convolution.cpp"}


class KernelSources(TorchDispatchMode):
    """Notes which sources of ours register the kernels that run for tensors of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        # A mode is handed Python numbers for tensors that were made from numbers.
        args = [
            torch.tensor(value)
            if isinstance(value, int | float | complex) and str(argument.type) == "Tensor"
            else value
            for value, argument in zip(args, arguments, strict=False)
        ]
        leaves = pytree.tree_leaves((args, kwargs))
        devices = [leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if not any(
            isinstance(device, torch.device) and device.type == "anvil" for device in devices
        ):
            return func(*args, **kwargs)
        table = torch._C._dispatch_dump_table(func.name())
        source = re.search(r"^PrivateUse1: .*/torch_glue/.*?(\w+\.cpp)", table, re.MULTILINE)
        if source is not None:
            self.found.add(source[1])
        # detach needs no other op, and its kernel would come back here.
        if source is not None or func is torch.ops.aten.detach.default:
            return func(*args, **kwargs)
        # A kernel for every backend, made of other ops: which are those?
        with self:
            key = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
            return func.redispatch(key, *args, **kwargs)


def without_cpu_kernel(op: Any) -> bool:
    # The jiterator claims the CPU in the database, and raises there: it compiles CUDA code.
    return not op.supported_dtypes("cpu") or op.name.startswith("jiterator")


class Finding(dict[str, Any]):
    """What was found out about an op; the errors among it name the check that failed."""

    def attempt(self, what: str, check: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return check(*arguments)
        except Exception as error:
            self["errors"].append(f"{what}: {type(error).__name__}: {error}")
            return None


def dtypes_of(op: Any) -> list[torch.dtype]:
    supported = op.supported_dtypes("cpu")
    if op.name in op_checks.WITHOUT_HALF:
        supported = supported - {torch.bfloat16, torch.float16}
    return [dtype for dtype in op_checks.DTYPES if dtype in supported] or [min(supported, key=str)]


def examine(op: Any) -> Finding:
    found = Finding(op=op.formatted_name, runs="refused", errors=[])
    if without_cpu_kernel(op):
        found["reason"] = "no CPU kernel"
        return found
    dtypes = dtypes_of(op)
    if op.name in SPARSE:
        found["reason"] = "sparse tensors"
        found.attempt("refusal", refuse, op, dtypes[0])
        return found
    found["dtypes"] = [op_checks.DTYPES.get(d, str(d).removeprefix("torch.")) for d in dtypes]
    found["forms"] = compare_with_cpu(op, dtypes, found)
    calls = [call for _, call in op_checks.samples(op, dtypes[0], seed=op_checks.ROUNDS)]
    queued = {found.attempt("queued", op_checks.check_queued, op, call, 0) for call in calls}
    found["caller"] = "some wait" if len(queued) > 1 else "queued" if True in queued else "waits"
    with KernelSources() as sources:
        for call in calls:
            found.attempt("kernels", op_checks.on_device(op, call), 0)
    found["runs"] = "fallback" if sources.found & FALLBACK_SOURCES else "native"
    if found["runs"] == "native":
        floats = [dtype for dtype in dtypes if dtype in op_checks.TOLERANCES]
        found["float64"] = [op_checks.DTYPES[dtype] for dtype in floats]
        for dtype in floats:
            for _, call in op_checks.samples(op, dtype, seed=0):
                found.attempt(f"float64, {dtype}", op_checks.check_float64, op, call, dtype)
    return found


def compare_with_cpu(op: Any, dtypes: list[torch.dtype], found: Finding) -> list[str]:
    """The forms that the CPU has for any sample, all of which were compared."""
    compared: set[str] = set()
    for seed in range(op_checks.ROUNDS):
        for number, (sample, plain) in enumerate(op_checks.samples(op, dtypes[0], seed)):
            for form, call in op_checks.forms(op, sample, plain):
                if number == 0 or form.startswith("call"):
                    what = f"{form}, sample {number}, round {seed}"
                    if found.attempt(what, op_checks.check, op, call, seed):
                        compared |= set(form.split(", "))
        for dtype in dtypes[1:]:
            _, call = next(op_checks.samples(op, dtype, seed))
            found.attempt(f"{dtype}, round {seed}", op_checks.check, op, call, seed)
    return [form for form in FORMS if form in compared]


def refuse(op: Any, dtype: torch.dtype) -> None:
    _, call = next(op_checks.samples(op, dtype, seed=0))
    try:
        op_checks.on_device(op, call)(seed=0)
    except NotImplementedError as error:
        assert "sparse" in str(error).lower(), error
    else:
        raise AssertionError("not refused")


def examine_all(names: set[str]) -> Iterator[Finding]:
    warnings.filterwarnings("ignore")
    # The device reads these when it is first used, which importing the database does.
    os.environ |= {"ANVIL_DEBUG_DELAY": "50", "ANVIL_DEBUG_POISON": "1"}
    from torch.testing._internal.common_methods_invocations import op_db

    assert torch.empty(64, device="anvil").isnan().all(), "memory is not poisoned"
    for op in op_db:
        if not names or op.formatted_name in names:
            yield examine(op)


HEAD = """\
# Ops

<!-- Generated by `make docs`, with tests/device/op_support.py; a test keeps it true. -->

Each op of PyTorch's op database (`torch.testing._internal.common_methods_invocations.op_db`, by
`OpInfo.formatted_name`), run on the device and on the CPU: values agree bit for bit (where an op is
random or leaves memory as it is: shapes), and so do dtypes, strides, offsets, what shares memory
with what, and what was written to the arguments. Every call is made at least twice with fresh
values, the device starts each command late by a random time, and memory without contents is filled
with NaN.

**Runs** says whose kernel it is, for calls out of place:

- *native*: kernels, views and factories of the device;
- *fallback*: at least in part PyTorch's CPU kernel, on the device's memory;
- *refused*: the device has dense tensors only, and where PyTorch itself has no CPU kernel there is
  nothing to fall back to.

**Caller** says what a call does that was made before with such shapes, while the stream is busy:
*queued*, it comes back at once; *waits*, it comes back when it has run, for instance since data
decides what it gives; *some wait*, depending on the arguments.

**Forms** are those that the CPU has and that were compared: out of place (*call*), *in-place*,
*out=* of the right shape, *empty out=*, which is resized, and each of them with inputs that are
*strided*: every other element of a tensor twice as large, beginning with the second. **Dtypes**:
the first in all forms, the others out of place.
"""


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def page(findings: list[Finding]) -> str:
    runs = ("native", "fallback", "refused")
    callers = ("queued", "some wait", "waits")
    count = Counter((found["runs"], found.get("caller", "")) for found in findings)
    total = Counter(found["runs"] for found in findings)
    summary = [(r, total[r], *(count[r, c] or "" for c in callers)) for r in runs]
    exact = [
        (name, sum(name in f.get("float64", ()) for f in findings), *op_checks.TOLERANCES[dtype])
        for dtype, name in op_checks.DTYPES.items()
        if dtype in op_checks.TOLERANCES
    ]
    ops = [
        (
            f"`{found['op']}`",
            f"refused: {found['reason']}" if "reason" in found else found["runs"],
            found.get("caller", ""),
            ", ".join(found.get("forms", ())),
            ", ".join(found.get("dtypes", ())),
        )
        for found in sorted(findings, key=lambda found: found["op"])
    ]
    return "\n".join(
        (
            HEAD,
            table(("Runs", "Ops", *callers), [*summary, ("all", len(findings), "", "", "")]),
            "## Native ops against float64\n",
            "Results on the device, held against the CPU's in float64 for the same inputs.\n",
            table(("Dtype", "Ops", "Relative tolerance", "Absolute tolerance"), exact),
            "## All ops\n",
            table(("Op", "Runs", "Caller", "Forms", "Dtypes"), ops),
        )
    )


def main() -> None:
    names = set(sys.argv[1:]) - {"--write"}
    findings = []
    for found in examine_all(names):
        findings.append(found)
        if "--write" not in sys.argv:
            print(json.dumps(found), flush=True)
        elif len(findings) % 100 == 0:
            print(f"{len(findings)} ops", flush=True)
    if "--write" in sys.argv:
        PAGE.write_text(page(findings))
        wrong = [f"{found['op']}: {error}" for found in findings for error in found["errors"]]
        sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
