# SPDX-License-Identifier: Apache-2.0
"""Write the pages and records that are made from the code, or check that they are up to date.

python tools/generate_docs.py [--check]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "platform_pkg"))

import op_table  # noqa: E402
import plugin_surfaces  # noqa: E402
import triton_inventory  # noqa: E402

from vllm_anvil import envs  # noqa: E402

# docs/reference/op_support.md is not among them: it takes minutes to find out what it says. `make
# docs` writes it with tests/device/op_support.py, and tests/device/test_op_database.py checks it.
PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/environment.md": envs.markdown,
    "docs/reference/ops.md": op_table.page,
    "docs/reference/plugin_surfaces.md": plugin_surfaces.PLUGINS.text,
    "docs/reference/capabilities.md": plugin_surfaces.CAPABILITIES.text,
    "platform_pkg/vllm_anvil/plugin/triton_inventory/checked.json": triton_inventory.checked_record,
    "docs/reference/triton_kernels.md": triton_inventory.page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if one is stale")
    check = parser.parse_args().check
    stale = []
    for name, generate in PAGES.items():
        page = ROOT / name
        text = generate()
        if page.is_file() and page.read_text() == text:
            continue
        stale.append(name)
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
            print(f"wrote {name}")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
