# SPDX-License-Identifier: Apache-2.0
"""The page docs/reference/ops.md."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for root in ("platform_pkg", "attention"):
    sys.path.insert(0, str(ROOT / root))

# Where ops are plugged into the engine.
CALLERS = {
    "vllm_anvil.plugin": ROOT / "platform_pkg/vllm_anvil/plugin",
    "anvil_attention": ROOT / "attention/anvil_attention",
}


def page() -> str:
    """From the tables of this checkout; users' tables are not in it."""
    import vllm_anvil.ops  # noqa: F401  the ops, native where they are
    from vllm_anvil.testing import registry, support_table

    found = registry.load()
    own = [q for q, name in found.distributions.items() if name == registry.DISTRIBUTION]
    problems = [p for p in found.problems if p.distribution == registry.DISTRIBUTION]
    if problems:
        raise RuntimeError("\n".join(map(str, problems)))
    ops = [found.ops[name] for name in own]
    used = support_table.callers((op.name for op in ops), CALLERS)
    return support_table.page(ops, ("anvil", "cpu"), used)
