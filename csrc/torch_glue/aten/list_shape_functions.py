# SPDX-License-Identifier: Apache-2.0
"""Lists PyTorch's structured ops with the C++ functions that infer their results' shapes.

    python list_shape_functions.py TORCH_INCLUDE_DIR OUTPUT

PyTorch itself registers Python functions over these at its dispatcher, so that C++ can reach them
by name only. Writes one line for each op, `SHAPE_FUNCTION("aten::mm", mm, mm)`: its name, the
function in at::meta, and the struct in at::_ops that has its type; and before them the headers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FUNCTION = re.compile(r"TORCH_API (.*?) (\w+)\((.*)\);")
OPERATOR = re.compile(
    r"struct TORCH_API (\w+) \{\s*using schema = (.*?) \((.*?)\);"
    r'.*?name = "(.*?)";.*?overload_name = "(.*?)";.*?schema_str = "(.*?)";',
    re.DOTALL,
)


def split_arguments(text: str) -> list[str]:
    """The arguments of a parameter list, without what stands inside brackets being split."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<({") - (character in ">)}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def type_of_parameter(parameter: str) -> str:
    """`const at::Scalar & alpha=1` -> `constat::Scalar&`."""
    without_default = parameter.split("=")[0].strip()
    return re.sub(r"\s*\b\w+$", "", without_default).replace(" ", "")


def shape_functions(header: Path) -> dict[str, set[tuple[str, tuple[str, ...]]]]:
    """Signatures by function name, from an op's *_meta_dispatch.h."""
    found: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for result, name, parameters in FUNCTION.findall(header.read_text()):
        types = tuple(map(type_of_parameter, split_arguments(parameters)))
        found.setdefault(name, set()).add((result.replace(" ", ""), types))
    return found


def entries(ops: Path, base: str) -> list[str]:
    functions = shape_functions(ops / f"{base}_meta_dispatch.h")
    lines = []
    for struct, result, types, name, overload, schema in OPERATOR.findall(
        (ops / f"{base}_ops.h").read_text()
    ):
        if name not in (f"aten::{base}", f"aten::{base}_"):
            continue
        function = name.removeprefix("aten::")
        if re.search(r"\*.*\(a!\)", schema) and not function.endswith("_"):
            candidates = (f"{function}_outf", f"{function}_symint_outf")
        else:
            candidates = (function, f"{function}_symint")
        signature = (
            result.replace(" ", ""),
            tuple(part.strip().replace(" ", "") for part in split_arguments(types)),
        )
        for candidate in candidates:
            if signature in functions.get(candidate, ()):
                full_name = f"{name}.{overload}" if overload else name
                lines.append(f'SHAPE_FUNCTION("{full_name}", {candidate}, {struct})')
    return lines


def main() -> None:
    include, output = Path(sys.argv[1]), Path(sys.argv[2])
    ops = include / "ATen" / "ops"
    bases = sorted(
        base
        for path in ops.glob("*_meta.h")
        if (ops / f"{(base := path.name.removesuffix('_meta.h'))}_meta_dispatch.h").is_file()
    )
    lines = [line for base in bases for line in entries(ops, base)]
    if not lines:
        sys.exit(f"found no structured ops in {ops}: has PyTorch's layout changed?")
    text = "\n".join(lines) + "\n"
    if not output.is_file() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    main()
