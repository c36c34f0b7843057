# SPDX-License-Identifier: Apache-2.0
"""Remove media packages that cannot be imported beside the torch of this environment.

The engine asks for torchvision, torchaudio and torchcodec without a version, so pip may bring
builds made for another torch. A broken torchvision stops every transformers model from loading
("operator torchvision::nms does not exist"); an absent one stops only image processing. So
whatever fails to import is uninstalled, and the reason is printed.

Run it with the Python of the environment to mend: `.venv/bin/python tools/mend_environment.py`.
"""

import importlib.util
import subprocess
import sys

PACKAGES = ("torchvision", "torchaudio", "torchcodec")


def import_failure(package: str) -> str | None:
    """The last line of what a fresh process says to `import package`; None where it works."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch, {package}"], capture_output=True, text=True
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"the process ended with status {done.returncode}"


def main() -> int:
    if importlib.util.find_spec("torch") is None:
        print(f"no torch in the environment of {sys.executable}: install the engine first")
        return 1
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        failure = import_failure(package)
        if failure is None:
            continue
        print(f"{package} does not work beside this torch and is removed: {failure}")
        subprocess.run(
            [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", package], check=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
