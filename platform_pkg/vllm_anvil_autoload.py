# SPDX-License-Identifier: Apache-2.0
"""Answers `import torch` (entry-point group `torch.backends`), outside the package on purpose.

torch fails to import when an entry point of that group does. This module keeps torch usable where
the package is damaged or gone while its metadata is still installed: a deleted checkout, an
interrupted removal. It imports nothing unless ANVIL_AUTOLOAD asks for the device;
`vllm_anvil.envs` describes the variable.
"""

import os


def autoload() -> None:
    """Do what `vllm_anvil.autoload` does where ANVIL_AUTOLOAD is set, and nothing otherwise."""
    if os.environ.get("ANVIL_AUTOLOAD", "0") not in ("", "0"):
        import vllm_anvil

        vllm_anvil.autoload()
