# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators in batch-invariant mode: `python invariant_operators.py RESULT.json`.

RESULT: {"varies": operators of which a row alone has other bits than in a batch, with the sizes,
"wrong": operators that are replaced and compute something else than PyTorch on the CPU, "places":
those that are wrong where they write to `out` or to their first argument, "refusal": what an
operator without such a form says, "looked_at": {"rows": operators, "values": operators}}. Operators
and arguments are those of PyTorch's own table.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
from vllm.model_executor.determinism import batch_invariant

import vllm_anvil.device  # noqa: F401
from vllm_anvil.plugin.batch_invariance.elementwise import ELEMENTWISE
from vllm_anvil.plugin.batch_invariance.install import install

COUNTS = (2, 3, 17, 33)
DTYPES = (torch.float32, torch.bfloat16)
# Beside elementwise functions and reductions: what else makes a row of a row.
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "glu": lambda x: F.glu(x[..., : x.shape[-1] // 2 * 2]),
    "add by alpha": lambda x: torch.add(x, x.flip(-1), alpha=0.3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(-1), x, value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(-1), x, value=0.3),
    "lerp": lambda x: torch.lerp(x, x.flip(-1), 0.3),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sum of the middle": lambda x: x.unsqueeze(1).expand(-1, 9, -1).contiguous().sum(1),
    "conv1d": lambda x: F.conv1d(x.unsqueeze(1), x.new_ones(3, 1, 2)).flatten(1),
    "attention": lambda x: F.scaled_dot_product_attention(
        *[x[:, :500].reshape(len(x), 1, 1, -1)] * 2, x[:, :500].reshape(len(x), 1, 1, -1)
    ),
}
DEPTHS = ((576, 100), (1536, 64), (77, 33))


def products(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    for depth, columns in DEPTHS:
        x = torch.randn(COUNTS[-1], depth).to("anvil", dtype)
        weight = torch.randn(columns, depth).to("anvil", dtype)
        offset = torch.randn(columns).to("anvil", dtype)
        blocks = torch.randn(4, depth, 9).to("anvil", dtype)
        yield "linear", lambda x, w=weight, b=offset: F.linear(x, w, b), x
        yield "mm", lambda x, w=weight: x @ w.t(), x
        yield "columns of mm", lambda x, w=weight: (w @ x.t()).t(), x
        yield "addmm", lambda x, w=weight, b=offset: torch.addmm(b, x, w.t(), alpha=0.5), x
        yield "mv", lambda x, w=weight: x @ w[0], x
        yield (
            "bmm",
            lambda x, b=blocks: torch.einsum("nd,hde->nhe", x, b).contiguous(),
            x,
        )
        yield (
            "baddbmm",
            lambda x, b=blocks: torch.baddbmm(
                x.new_ones(4, 1, 1), x.expand(4, *x.shape), b
            ).transpose(0, 1),
            x,
        )


def same_alone(call: Callable[..., Any], *rows: Tensor) -> bool:
    def computed(part: slice) -> Tensor:
        result = call(*(one[part].clone() for one in rows))
        return (result if isinstance(result, Tensor) else result[0]).cpu()

    counts = [count for count in COUNTS if count <= len(rows[0])]
    alone = torch.cat([computed(slice(i, i + 1)) for i in range(counts[-1])])
    return all(
        torch.equal(computed(slice(0, count)).nan_to_num(), alone[:count].nan_to_num())
        for count in counts
    )


def look_at_rows() -> tuple[list[str], list[str]]:
    varies, looked_at = [], []

    def look(name: str, call: Callable[..., Any], *rows: Tensor) -> None:
        try:
            same = same_alone(call, *rows)
        except (TypeError, RuntimeError, AttributeError, AssertionError):
            return  # the function wants other arguments, or takes no such numbers
        looked_at.append(name)
        if not same:
            varies.append(f"{name} of {rows[0].dtype} {list(rows[0].shape)}")

    for op in op_db:
        if not isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo | ReductionOpInfo):
            continue
        reduces = isinstance(op, ReductionOpInfo)
        for dtype in DTYPES:
            for rows, size in ((33, 7), (33, 1000), (3, 49152)):
                if dtype not in op.dtypes or (size > 1000 and not reduces):
                    continue
                x, y = (0.05 + 0.9 * torch.rand(2, rows, size)).to("anvil", dtype)
                if isinstance(op, BinaryUfuncInfo):
                    look(op.name, op.op, x, y)
                elif reduces:
                    look(op.name, lambda x, op=op: op.op(x, dim=-1), x)
                else:
                    look(op.name, op.op, x + 1 if op.name == "acosh" else x)
    for dtype in DTYPES:
        for rows, size in ((33, 7), (33, 1000), (3, 49152)):
            for name, call in OTHERS.items():
                look(name, call, torch.randn(rows, size).to("anvil", dtype))
        for name, call, x in products(dtype):
            look(name, call, x)
    return varies, looked_at


# What is replaced beside functions of elements. What the engine replaces, with functions that take
# fewer arguments than PyTorch's, is looked at in tests/triton/kernels/test_batch_invariant.py.
OURS = {
    "mm",
    "addmm",
    "addmm_decomposed",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "sum",
    "nansum",
    "logsumexp",
}
OURS |= {"nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.linear"}


def look_at_values() -> tuple[list[str], list[str]]:
    wrong, looked_at = [], []
    for op in op_db:
        name = op.name.removeprefix("nn.functional.").replace("special.", "special_")
        if op.name not in OURS and name not in ELEMENTWISE:
            continue
        for dtype in {*DTYPES, torch.float64, torch.int64} & op.dtypes:
            for sample in op.sample_inputs("cpu", dtype):
                try:
                    expected = op.op(sample.input, *sample.args, **sample.kwargs)
                except RuntimeError:
                    continue
                placed = sample.transform(lambda v: v.to("anvil") if isinstance(v, Tensor) else v)
                found = op.op(placed.input, *placed.args, **placed.kwargs)
                looked_at.append(op.name)
                try:
                    near = {"rtol": 0.03, "atol": 0.03} if dtype == torch.bfloat16 else {}
                    torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **near)
                except AssertionError as error:
                    wrong.append(f"{op.name} of {dtype}: {str(error)[:300]}")
                    break
    return wrong, looked_at


def look_at_places() -> list[str]:
    """Operators that write to a tensor that is there give what they give otherwise."""
    x, y = torch.rand(2, 9, 9).to("anvil")
    forms: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "mm": (torch.mm, (x, y)),
        "addmm": (torch.addmm, (x[0], x, y)),
        "baddbmm": (torch.baddbmm, (x.expand(2, 9, 9), x.expand(2, 9, 9), y.expand(2, 9, 9))),
        "mv": (torch.mv, (x, y[0])),
        "sum": (torch.sum, (x, [0])),
        "sigmoid": (torch.sigmoid, (x,)),
        "pow": (torch.pow, (x, 0.3)),
        "pow of tensors": (torch.pow, (x, y)),
        "logsumexp": (torch.logsumexp, (x, [1])),
    }
    wrong = []
    for name, (call, args) in forms.items():
        expected, out = call(*args), torch.empty(0, device="anvil")
        if call(*args, out=out) is not out or not torch.equal(out, expected):
            wrong.append(name)
    for name, args in (("sigmoid_", ()), ("pow_", (0.3,)), ("add_", (y,)), ("addmm_", (x, y))):
        place = x.clone()
        expected = getattr(x, name[:-1])(*args)
        if getattr(place, name)(*args) is not place or not torch.equal(place, expected):
            wrong.append(name)
    return wrong


def refusal() -> str:
    x = torch.ones(2, 2, 2, device="anvil")
    try:
        torch.addbmm(x[0], x, x)
    except NotImplementedError as error:
        return str(error)
    return ""


def main(result: str) -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    install()
    batch_invariant.enable_batch_invariant_mode()
    varies, rows = look_at_rows()
    wrong, values = look_at_values()
    looked_at = {"rows": sorted(set(rows)), "values": sorted(set(values))}
    report = {
        "varies": varies,
        "wrong": wrong,
        "places": look_at_places(),
        "refusal": refusal(),
        "looked_at": looked_at,
    }
    Path(result).write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
