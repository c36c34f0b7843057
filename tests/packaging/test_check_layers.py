# SPDX-License-Identifier: Apache-2.0
"""The layer check finds what it is for, and this checkout passes it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = "// SPDX-License-Identifier: Apache-2.0\n"


@pytest.fixture(scope="module")
def check_layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_layers", ROOT / "tools" / "check_layers.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("csrc/runtime/a.cpp", HEADER + "#include <torch/library.h>\n", "may include torch"),
        ("csrc/kernels/a-inl.h", HEADER + '#include "ATen/ATen.h"\n', "may include torch"),
        ("tests/cpp/kernels/a.cpp", HEADER + "#  include <c10/util.h>\n", "may include torch"),
        ("csrc/kernels/a.cpp", HEADER + '#include "anvil/runtime.h"\n', "csrc/runtime"),
        ("csrc/runtime/a.cpp", HEADER + '#include "cpu_features.h"\n', "csrc/kernels"),
        ("csrc/runtime/a.cpp", HEADER + '#include "nowhere.h"\n', "in no folder"),
        ("csrc/runtime/a.cpp", "int x;\n", "SPDX"),
        ("platform_pkg/vllm_anvil/a.py", "x = 1\n", "SPDX"),
        ("tests/a.py", "# SPDX-License-Identifier: Apache-2.0\n" + "x = 1\n" * 500, "501"),
    ],
)
def test_finds(check_layers: ModuleType, file: str, text: str, words: str) -> None:
    (found,) = check_layers.violations(Path(file), text)
    assert words in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("csrc/torch_glue/core/a.cpp", HEADER + "#include <torch/library.h>\n"),
        ("csrc/torch_glue/core/a.cpp", HEADER + '#include "anvil/runtime.h"\n'),
        ("csrc/kernels/a.cpp", HEADER + '#include "cpu_features.h"\n#include <vector>\n'),
        ("examples/custom_op/a.cpp", HEADER + "#include <torch/library.h>\n"),
        ("tests/a.py", "# SPDX-License-Identifier: Apache-2.0\n" + "x = 1\n" * 499),
    ],
)
def test_lets_pass(check_layers: ModuleType, file: str, text: str) -> None:
    assert list(check_layers.violations(Path(file), text)) == []
