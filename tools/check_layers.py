# SPDX-License-Identifier: Apache-2.0
"""Check what compilers and linters do not: the C++ layer rules, file sizes, licence headers.

Prints one line per violation and exits with status 1 when there is any. The Python layer rules are
import-linter's; see pyproject.toml.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
LICENCE = "SPDX-License-Identifier: Apache-2.0"

# Each folder of csrc/, and the other folders whose headers it may include.
LAYERS: dict[str, tuple[str, ...]] = {
    "runtime": (),
    "kernels": (),
    "comm": ("runtime",),
    "triton_rt": ("runtime",),
    "torch_glue": ("runtime", "kernels", "comm", "triton_rt"),
    "bindings": ("runtime", "kernels", "comm", "triton_rt", "torch_glue"),
}
TORCH_LAYERS = ("torch_glue", "bindings")
TORCH_INCLUDE = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|caffe2|pybind11)/')
INCLUDE = re.compile(r'#\s*include\s*"([^"]+)"')

CPP = (".h", ".cpp")
# What must carry the licence header, by suffix or by name.
LICENSED = (*CPP, ".py", ".sh", ".toml", ".yaml", ".cmake")
LICENSED_NAMES = ("CMakeLists.txt", "Makefile", "MANIFEST.in", ".clang-format", "run")


def source_files() -> list[Path]:
    """Every file that is or could be committed, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def violations(file: Path, text: str) -> Iterator[str]:
    """What is wrong with one file, as "line: message"."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES and (file.suffix in CPP or file.suffix == ".py"):
        yield f"{len(lines)}: longer than {MAX_LINES} lines; split it by subject"
    licensed = file.suffix in LICENSED or file.name in LICENSED_NAMES
    if licensed and text.strip() and not any(LICENCE in line for line in lines[:2]):
        yield f"1: begins without '{LICENCE}'"
    # Examples are a user's code, which stands on torch and on nothing of csrc/.
    if file.suffix in CPP and file.parts[0] != "examples":
        yield from include_violations(file, lines)


def include_violations(file: Path, lines: list[str]) -> Iterator[str]:
    layer = file.parts[1] if file.parts[0] == "csrc" else ""
    for number, line in enumerate(lines, 1):
        if layer not in TORCH_LAYERS and TORCH_INCLUDE.match(line):
            yield f"{number}: only csrc/{' and csrc/'.join(TORCH_LAYERS)} may include torch: {line}"
            continue
        quoted = INCLUDE.match(line)
        if layer in LAYERS and quoted:
            owner = owning_layer(file, layer, quoted[1])
            if owner is None:
                yield f'{number}: "{quoted[1]}" is in no folder that csrc/{layer} may include'
            elif owner not in (layer, *LAYERS[layer]):
                yield f'{number}: csrc/{layer} may not include csrc/{owner}: "{quoted[1]}"'


def owning_layer(file: Path, layer: str, include: str) -> str | None:
    """The folder of csrc/ in which the header named by `include` lies, its own one first."""
    if (ROOT / file.parent / include).is_file():
        return layer
    for candidate in (layer, *(name for name in LAYERS if name != layer)):
        folder = ROOT / "csrc" / candidate
        if (folder / include).is_file() or (folder / "include" / include).is_file():
            return candidate
    return None


def main() -> int:
    count = 0
    for file in source_files():
        if file.suffix not in LICENSED and file.name not in LICENSED_NAMES:
            continue
        for violation in violations(file, (ROOT / file).read_text()):
            print(f"{file}:{violation}")
            count += 1
    if count:
        print(f"{count} violations", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
