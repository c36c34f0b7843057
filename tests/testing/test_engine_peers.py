# SPDX-License-Identifier: Apache-2.0
"""The engine's own kernels as peers: right where they are said to take a call, else refused."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vllm_anvil.references import activation, norm, rotary
from vllm_anvil.testing import engine_peers
from vllm_anvil.testing.op_case import Case, Op, Tolerance
from vllm_anvil.testing.parity import check_op
from vllm_anvil.testing.result import ENGINE


@pytest.fixture(scope="module")
def peers() -> dict[str, dict[str, Callable[..., Any]]]:
    try:
        return engine_peers.peers()
    except engine_peers.EngineUnavailable as error:
        pytest.skip(str(error))


def norm_case(name: str, dtype: torch.dtype, width: int = 64, **options: Any) -> Case:
    def make(inputs: Any) -> dict[str, Any]:
        x = inputs.normal(5, width, dtype=dtype)
        more = {"residual": inputs.normal(5, width, dtype=dtype)} if "fused" in name else {}
        return {
            "x": x,
            **more,
            "weight": inputs.normal(width, dtype=dtype),
            "epsilon": 1e-6,
            **options,
        }

    return Case(f"{name}-{dtype}-{width}-{options}", make)


def gated_case(dtype: torch.dtype, **options: Any) -> Case:
    return Case(
        f"{dtype}-{options}", lambda inputs: {"x": inputs.normal(3, 128, dtype=dtype), **options}
    )


def rotary_case(dtype: torch.dtype, is_neox: bool, with_key: bool) -> Case:
    def make(inputs: Any) -> dict[str, Any]:
        table = rotary.cos_sin_cache(rotary.frequencies(32, 1e4), 50)
        return {
            "positions": inputs.integers(6, high=50),
            "query": inputs.normal(6, 4, 48, dtype=dtype),
            "key": inputs.normal(6, 2 * 48, dtype=dtype) if with_key else None,
            "head_size": 48,
            "cos_sin_cache": table.to(dtype),
            "is_neox": is_neox,
        }

    return Case(f"{dtype}-neox{is_neox}-key{with_key}", make)


DTYPES = (torch.float32, torch.bfloat16)
# The engine rounds to the arguments' dtype in between, some of it more than once.
LOOSE = Tolerance(4.0, 0.02)
OPS = [
    Op(
        name,
        "norm",
        getattr(norm, name),
        tuple(norm_case(name, dtype) for dtype in DTYPES),
        allowed=LOOSE,
    )
    for name in ("rms_norm", "fused_add_rms_norm", "fused_add_rms_norm_")
] + [
    Op(
        "silu_and_mul",
        "activation",
        activation.silu_and_mul,
        tuple(gated_case(dtype) for dtype in DTYPES),
        allowed=LOOSE,
    ),
    Op(
        "gelu_and_mul",
        "activation",
        activation.gelu_and_mul,
        tuple(gated_case(d, approximate=a) for d in DTYPES for a in ("none", "tanh")),
        allowed=LOOSE,
    ),
    Op(
        "rotary_embedding",
        "rotary",
        rotary.rotary_embedding,
        tuple(rotary_case(d, n, k) for d in DTYPES for n in (True, False) for k in (True, False)),
        allowed=LOOSE,
    ),
]


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_computes_what_our_op_does(op: Op, peers: dict[str, dict[str, Any]]) -> None:
    results = list(check_op(op, "cpu", peers[op.qualified_name]))
    engine = [result for result in results if result.implementation == ENGINE]
    assert len(engine) == len(op.cases)
    assert [line for result in engine for line in result.failures()] == []
    assert [result.skipped for result in engine if result.skipped] == []
    assert all(comparison.passed for result in engine for comparison in result.apart.values())


def test_refuses_what_the_kernel_does_not_take(peers: dict[str, dict[str, Any]]) -> None:
    refused = [
        (norm_case("rms_norm", torch.float32, width=60), "multiple of 8"),
        (norm_case("rms_norm", torch.float32, variance_size=16), "variance_size"),
        (norm_case("rms_norm", torch.float32, weight_offset=1.0), "weight_offset"),
        (norm_case("rms_norm", torch.float64), "floating dtype"),
    ]
    op = Op("rms_norm", "norm", norm.rms_norm, tuple(case for case, _ in refused), allowed=LOOSE)
    engine = [r for r in check_op(op, "cpu", peers["anvil::rms_norm"]) if not r.counts]
    for result, (_, words) in zip(engine, refused, strict=True):
        assert words in (result.skipped or "")


def test_imports_no_engine() -> None:
    code = (
        "import sys\nfrom vllm_anvil.testing import engine_peers\n"
        "try:\n    engine_peers.peers()\nexcept engine_peers.EngineUnavailable as error:\n"
        "    print(error)\nassert 'vllm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
