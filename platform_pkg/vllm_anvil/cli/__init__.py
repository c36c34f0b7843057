# SPDX-License-Identifier: Apache-2.0
"""The command `vllm-anvil`. Imports neither torch nor vllm: what needs them runs in children."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    from vllm_anvil.cli.app import app

    app()
