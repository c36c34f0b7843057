# SPDX-License-Identifier: Apache-2.0
"""Run the C++ tests and one generation of the engine under GCC's sanitizers.

    python tools/sanitize.py [address] [undefined] [thread]

For each sanitizer, build/san-NAME holds the C++ tests (built without torch), in module/ a build of
`_C`, and in python/ a package of links to the sources with that `_C`, so that the ordinary build
stays as it is. The engine generates a few tokens with a tiny random model, in one process, and they
must be those of the ordinary build. A sanitizer's first report ends its process and fails the step,
whichever process it is.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_backend"))
import target_environment  # noqa: E402

BUILD = ROOT / "build"
SHARED = BUILD / "san"
PACKAGE = ROOT / "platform_pkg" / "vllm_anvil"
TOKENIZER = ROOT / "models" / "SmolLM2-135M-Instruct"
JOBS = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))

# Sanitizer: its run-time library, its variable, and its options beside those that all have. Work
# may run after the call that enqueued it has returned: uses of a stack that is gone are looked for.
SANITIZERS = {
    "address": ("libasan.so", "ASAN_OPTIONS", "detect_stack_use_after_return=1"),
    "undefined": ("libubsan.so", "UBSAN_OPTIONS", "print_stacktrace=1"),
    "thread": (
        "libtsan.so",
        "TSAN_OPTIONS",
        f"second_deadlock_stack=1:history_size=7:suppressions='{ROOT}/tools/sanitize_thread.supp'",
    ),
}
ADDR_NO_RANDOMIZE = 0x0040000  # <sys/personality.h>

JOB = {
    "engine": {
        "model": str(SHARED / "model"),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 4,
        "seed": 0,
    },
    "requests": [
        {"token_ids": tokens, "params": {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}}
        for tokens in (list(range(100, 140)), [7, 11, 13], [1000])
    ],
}


class Failure(Exception):
    """A step failed; the message is for the person who runs this."""


def step(title: str, *command: str | Path) -> None:
    """Run one long step with its progress in words; tools/step.sh shows the end of a failed one."""
    if subprocess.run([ROOT / "tools" / "step.sh", title, *command]).returncode != 0:
        raise Failure(title)


def compile_target(title: str, folder: Path, target: str, *options: str) -> None:
    configure = ("-S", str(ROOT), "-B", str(folder), "-G", "Ninja")
    step(f"{title}: configuring", "cmake", *configure, *options)
    step(title, "cmake", "--build", folder, "--target", target, "--parallel", JOBS)


def runtime_library(name: str) -> str:
    """The path of a library of the compiler's own."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        raise Failure(f"{command[0]} has no {name}: install GCC's sanitizer libraries")
    return path


def options(sanitizer: str, reports: Path, leaks: bool) -> dict[str, str]:
    """The sanitizer's variable: it halts at the first report and writes it below `reports`.

    To files, since a test that expects its child to die would take a report for that.
    """
    _, variable, own = SANITIZERS[sanitizer]
    # Tests raise SIGSEGV on purpose; one that is not meant ends its process, report or not.
    common = f"halt_on_error=1:exitcode=66:handle_segv=0:log_path='{reports}/report'"
    leak = f":detect_leaks={int(leaks)}" if sanitizer == "address" else ""
    return {variable: f"{common}:{own}{leak}"}


def watched(title: str, reports: Path, variables: dict[str, str], *command: str | Path) -> None:
    """A step that fails where any of its processes leaves a sanitizer's report in `reports`.

    `env` sets the variables, so that they reach the command alone and not step.sh.
    """
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    settings = [f"{name}={value}" for name, value in variables.items()]
    try:
        step(title, "env", *settings, *command)
    finally:
        found = sorted(reports.iterdir())
        for report in found:
            print(f"==> {report}\n{report.read_text(errors='replace')}", flush=True)
    if found:
        raise Failure(f"{title}: {len(found)} reports, printed above")


def run_cpp_tests(sanitizer: str, folder: Path) -> None:
    compile_target(
        f"{sanitizer}: compiling the C++ tests",
        folder,
        "all",
        f"-DANVIL_SANITIZER={sanitizer}",
        "-DANVIL_BUILD_PYTHON=OFF",
        "-DANVIL_BUILD_TESTS=ON",
    )
    # isa_symbols looks at the objects that ship, and sanitizers add symbols of their own to these.
    watched(
        f"{sanitizer}: running the C++ tests",
        folder / "reports",
        options(sanitizer, folder / "reports", leaks=True),
        *("ctest", "--test-dir", folder, "--output-on-failure", "--parallel", JOBS),
        *("--exclude-regex", r"^(kernels|comm)\.isa_symbols$"),
    )


def link_package(package: Path) -> None:
    """Make `package` a vllm_anvil of links to everything but the ordinary `_C`."""
    package.mkdir(parents=True, exist_ok=True)
    for entry in package.iterdir():
        if entry.is_symlink():
            entry.unlink()
    for entry in PACKAGE.iterdir():
        if not entry.name.startswith("_C."):
            (package / entry.name).symlink_to(entry)


def generate(title: str, root: Path, reports: Path, environment: dict[str, str]) -> list[list[int]]:
    """The engine's tokens for JOB, with the vllm_anvil that is in folder `root`."""
    job, result = reports.with_suffix(".job.json"), reports.with_suffix(".json")
    result.unlink(missing_ok=True)
    job.write_text(json.dumps(JOB))
    variables = {
        "PYTHONPATH": f"{root}:{ROOT / 'attention'}:{ROOT / 'communicator'}",
        "ANVIL_TARGET": "anvil",
        "ANVIL_STRICT": "1",
        "ANVIL_DEVICE_MEMORY": "1GiB",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **environment,
    }
    # An engine that hangs is aborted, and faulthandler shows where each of its threads is.
    python = ("timeout", "--signal=ABRT", "1800", sys.executable, "-X", "faulthandler")
    script = ROOT / "tests" / "e2e" / "engine_run.py"
    watched(title, reports, variables, *python, script, job, result)
    return [output["token_ids"] for output in json.loads(result.read_text())["outputs"]]


def run_engine(sanitizer: str, folder: Path, expected: list[list[int]]) -> None:
    package = folder / "python" / "vllm_anvil"
    link_package(package)
    target = target_environment.find()
    compile_target(
        f"{sanitizer}: compiling the C++ module",
        folder / "module",
        "_C",
        f"-DANVIL_SANITIZER={sanitizer}",
        f"-DCMAKE_PREFIX_PATH={target.torch_cmake_prefix()}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DANVIL_PYTHON_OUTPUT_DIR={package}",
    )
    # Python is not linked against the C++ library, whose functions the run-time libraries look up
    # when they start. Python and torch leave memory behind by design.
    preloaded = [runtime_library(SANITIZERS[sanitizer][0]), runtime_library("libstdc++.so")]
    reports = folder / "engine"
    environment = {"LD_PRELOAD": ":".join(preloaded), **options(sanitizer, reports, leaks=False)}
    if sanitizer == "thread":
        # How OpenMP's threads wait for each other is invisible to ThreadSanitizer: every parallel
        # loop would be a race.
        environment["OMP_NUM_THREADS"] = "1"
    tokens = generate(f"{sanitizer}: generating", package.parent, reports, environment)
    if tokens != expected:
        raise Failure(f"{sanitizer}: generated {tokens}, and the ordinary build {expected}")


def ordinary_tokens() -> list[list[int]]:
    if not (SHARED / "model" / "tokenizer.json").is_file():
        script = ROOT / "tools" / "tiny_model.py"
        command = (sys.executable, script, SHARED / "model", TOKENIZER)
        step("making a tiny model", *command)
    return generate("generating with the ordinary build", PACKAGE.parent, SHARED / "engine", {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sanitizers", nargs="*", metavar="|".join(SANITIZERS))
    chosen = parser.parse_args().sanitizers or list(SANITIZERS)
    if unknown := set(chosen) - set(SANITIZERS):
        parser.error(f"no such sanitizer: {', '.join(unknown)}")
    # ThreadSanitizer of GCC 13 and earlier cannot place its memory between highly randomised
    # mappings. Children inherit this; where it is forbidden, most systems work without.
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    try:
        SHARED.mkdir(parents=True, exist_ok=True)
        for sanitizer in chosen:
            run_cpp_tests(sanitizer, BUILD / f"san-{sanitizer}")
        expected = ordinary_tokens()
        for sanitizer in chosen:
            run_engine(sanitizer, BUILD / f"san-{sanitizer}", expected)
    except Failure as failure:
        raise SystemExit(f"sanitize: failed: {failure}") from None
    print(f"sanitize: no reports of {', '.join(chosen)}")


if __name__ == "__main__":
    main()
