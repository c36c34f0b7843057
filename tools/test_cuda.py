# SPDX-License-Identifier: Apache-2.0
"""Check Anvil's references and its Triton attention on a GPU: `make test-cuda`.

    python tools/test_cuda.py [--device cuda] [--op NAME ...] [--batch SPEC ...] [--model FOLDER]

Runs from a checkout, on a machine that has torch and Triton and nothing else of Anvil's needs:
neither the compiled module nor vLLM, and none of the libraries of the commands. Three parts:

parity      every op case on the device, by the op's reference, against float64 on the CPU
attention   reference, Triton kernel and torch's own attention on a few batches, checked and timed
generation  where a CUDA build of vLLM is there: a model served with ANVIL_TARGET=cuda

The exit status is 0 when all parts passed; a part that cannot be run here is left out, with words.
`--device cpu` runs the first two parts, without Triton, anywhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [str(ROOT / folder) for folder in ("platform_pkg", "attention", "communicator")]
sys.path[:0] = SOURCES

import torch  # noqa: E402

IMPLEMENTATIONS = {"cuda": ["reference", "triton", "sdpa"], "cpu": ["reference", "sdpa"]}
# Small enough for the whole to take minutes, the reference included.
SHAPES = {"cuda": ["llama-3-8b", "smollm2"], "cpu": ["smollm2"]}
BATCHES = {"cuda": ["8q1s4k", "q1k", "2q256_14q1s1k"], "cpu": ["3q1s100", "q64"]}
GENERATION_TIMEOUT_S = 150.0

Part = Callable[[argparse.Namespace], bool]


def main() -> int:
    arguments = parse()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA GPU; --device cpu runs without one.")
        return 2
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "the host"
    print(f"device {arguments.device}: {name}, torch {torch.__version__}, {triton_version()}")

    from vllm_anvil.references import registration

    registration.register()
    parts: dict[str, Part] = {
        "parity": parity,
        "attention": attention,
        "generation": generation,
    }
    passed = {}
    for title in arguments.part or parts:
        print(f"\n== {title}")
        started = time.monotonic()
        try:
            passed[title] = parts[title](arguments)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            passed[title] = False
        print(f"{title}: {words(passed[title])} ({time.monotonic() - started:.1f} s)")
    print("\n" + ", ".join(f"{title} {words(ok)}" for title, ok in passed.items()))
    return 0 if all(passed.values()) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--part", action="append", choices=("parity", "attention", "generation"), help="only this"
    )
    parser.add_argument("--op", action="append", default=[], help="parity of this op only")
    parser.add_argument("--shape", action="append", help="a model's heads, such as llama-3-8b")
    parser.add_argument("--batch", action="append", help="a batch, such as 8q1s4k")
    parser.add_argument("--model", type=Path, help="folder of a model to generate with")
    return parser.parse_args()


def words(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def triton_version() -> str:
    try:
        return f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        return "no triton"


def parity(arguments: argparse.Namespace) -> bool:
    from vllm_anvil.testing import registry, report
    from vllm_anvil.testing.parity import check_all

    found = registry.load()
    for problem in found.problems:
        print(problem)
    ops = found.choose(arguments.op)
    results = list(check_all(ops, arguments.device))
    print(report.summary(results))
    return bool(results) and report.succeeded(results) and not found.problems


def attention(arguments: argparse.Namespace) -> bool:
    from anvil_attention.bench.implementations import candidates
    from anvil_attention.bench.model_shapes import model_shape
    from anvil_attention.bench.runner import Settings, run
    from anvil_attention.bench.suite import LayerOptions

    kind = arguments.device
    options = LayerOptions(dtype="bfloat16", block_size=16)
    problems = [
        options.problem(model_shape(shape), batch, kind)
        for shape in arguments.shape or SHAPES[kind]
        for batch in arguments.batch or BATCHES[kind]
    ]
    names = IMPLEMENTATIONS[kind]
    settings = Settings(repeats=3, min_time_s=0.02, pause_s=0.01)
    results = run(problems, candidates(names), torch.device(kind), settings)
    rows = list(results.rows())
    show(("shape", "batch", "implementation", "time", "GB/s", "of ceiling", "result"), lines(rows))
    for row in rows:
        if row["message"]:
            print(f"{row['shape']} {row['batch']}, {row['implementation']}: {row['message']}")
    return not results.failed(set(names))


def lines(rows: Sequence[dict]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        numbers = ("-", "-", "-")
        if row["median_s"] is not None:
            numbers = (
                f"{row['median_s'] * 1e6:.1f} us",
                f"{row['bytes_per_second'] / 1e9:.1f}",
                f"{row['fraction_of_ceiling']:.2f}",
            )
        yield row["shape"], row["batch"], row["implementation"], *numbers, row["status"]


def show(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def generation(arguments: argparse.Namespace) -> bool:
    if arguments.device != "cuda":
        print("left out: it needs a GPU")
        return True
    if importlib.util.find_spec("vllm") is None:
        print("left out: vLLM is not installed")
        return True
    with installed() as path:
        ours = generate("cuda", path, arguments.model)
        engines = generate("off", path, arguments.model)
    if ours is None:
        return False
    print(f"platform {ours['platform']}, worker {ours['worker']}, attention {ours['attention']}")
    print(f"tokens {ours['tokens']}")
    if engines is not None:
        pairs = [
            (one, other)
            for mine, theirs in zip(ours["tokens"], engines["tokens"], strict=True)
            for one, other in zip(mine, theirs, strict=True)
        ]
        same = sum(one == other for one, other in pairs)
        print(f"{same} of {len(pairs)} are those of vLLM's own platform ({engines['attention']})")
    return ours["platform"] == "AnvilCudaPlatform" and ours["attention"] == ["ANVIL_ATTN"]


def generate(target: str, path: str, model: Path | None) -> dict | None:
    """What tools/cuda_generation.py reports; None, with its last words printed, if it failed."""
    environ = os.environ | {
        "ANVIL_TARGET": target,
        "PYTHONPATH": os.pathsep.join([path, *SOURCES, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(ROOT / "tools" / "cuda_generation.py")]
    try:
        done = subprocess.run(
            command + ([str(model)] if model else []),
            env=environ,
            capture_output=True,
            text=True,
            timeout=GENERATION_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        print(f"ANVIL_TARGET={target}: no answer within {GENERATION_TIMEOUT_S:g} s")
        return None
    report = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    if done.returncode != 0 or not report:
        print(f"ANVIL_TARGET={target}: exit status {done.returncode}")
        print("\n".join((done.stdout + done.stderr).splitlines()[-30:]))
        return None
    return json.loads(report[-1].removeprefix("REPORT "))


@contextmanager
def installed() -> Iterator[str]:
    """A module path that makes the checkout count as installed: vLLM finds plugins by metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory(prefix="vllm-anvil-cuda-") as folder:
        info = Path(folder, f"vllm_anvil-{project['version']}.dist-info")
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        groups = {g: v for g, v in project["entry-points"].items() if g.startswith("vllm.")}
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
                for group, points in groups.items()
            )
        )
        yield folder


if __name__ == "__main__":
    sys.exit(main())
