# SPDX-License-Identifier: Apache-2.0
"""Installing into an environment that has the engine, and leaving it again."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PLATFORM = """
import json, torch, triton
from vllm.platforms import current_platform
import importlib.metadata
print(json.dumps({
    "platform": type(current_platform).__module__,
    "plugins": [p.value for p in importlib.metadata.entry_points(group="vllm.platform_plugins")],
}))
"""

IMPORTS = """
import json, vllm_anvil, anvil_attention, anvil_communicator
import vllm_anvil.device
files = [module.__file__ for module in (vllm_anvil, anvil_attention, anvil_communicator)]
print(json.dumps({"files": files, "compiled": vllm_anvil._C.__file__}))
"""


def test_install_and_uninstall(environment, wheel: Path) -> None:
    # No index: whatever the wheel requires must be there already, torch above all.
    environment.pip("install", "--no-index", wheel)
    facts, _ = environment.facts(PLATFORM)
    assert facts["platform"] == "vllm_anvil.plugin.platform"
    assert facts["plugins"] == ["vllm_anvil:register"]
    facts, _ = environment.facts(IMPORTS)
    for file in (*facts["files"], facts["compiled"]):
        assert file.startswith(str(environment.site))

    environment.pip("uninstall", "--yes", "vllm-anvil")
    assert environment.anvil_files() == []
    facts, _ = environment.facts(PLATFORM)
    assert facts == {"platform": "vllm.platforms.cpu", "plugins": []}


def test_editable_install_imports_the_checkout(environment, editable_wheel: Path) -> None:
    environment.pip("install", "--no-index", editable_wheel)
    facts, _ = environment.facts(IMPORTS)
    for file in (*facts["files"], facts["compiled"]):
        assert file.startswith(str(ROOT))

    environment.pip("uninstall", "--yes", "vllm-anvil")
    assert environment.anvil_files() == []


def test_editable_wheel_runs_no_code_at_start(editable_wheel: Path, environment) -> None:
    environment.unpack(editable_wheel)
    (path_file,) = environment.site.glob("*anvil*.pth")
    lines = path_file.read_text().splitlines()
    assert lines == [str(ROOT / name) for name in ("platform_pkg", "attention", "communicator")]
