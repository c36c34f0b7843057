# SPDX-License-Identifier: Apache-2.0
"""Files that a command's option names; "-" is standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from vllm_anvil.cli.ready_device import Refused


def check_folder(option: str, name: str) -> None:
    """Raises Refused if the file could not be written for want of a folder: before a long run."""
    if name != "-" and not Path(name).resolve().parent.is_dir():
        raise Refused(f"{option} {name}: there is no folder {Path(name).parent}")


def write(name: str, text: str) -> None:
    """Writes the file, or prints."""
    if name == "-":
        sys.stdout.write(text)
    else:
        Path(name).write_text(text)
