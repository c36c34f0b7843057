# SPDX-License-Identifier: Apache-2.0
"""Media packages that do not work beside the installed torch are removed, and only those."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEND = ROOT / "tools" / "mend_environment.py"


def install(site: Path, name: str, source: str) -> None:
    """A package of one module, with the metadata that pip needs to remove it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (site / f"{name}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


def test_removes_what_cannot_be_imported(environment, engine: Path, run) -> None:
    install(environment.site, "torchvision", "raise RuntimeError('operator x does not exist')\n")
    install(environment.site, "torchaudio", "")
    done = run(environment.python, MEND)
    assert done.returncode == 0, done.stderr
    assert "torchvision" in done.stdout
    assert "operator x does not exist" in done.stdout
    assert "torchaudio" not in done.stdout
    assert not (environment.site / "torchvision.py").exists()
    assert (environment.site / "torchaudio.py").exists()

    again = run(environment.python, MEND)
    assert (again.returncode, again.stdout) == (0, "")


def test_without_torch(bare_environment, run) -> None:
    done = run(bare_environment.python, MEND)
    assert done.returncode == 1
    assert "install the engine first" in done.stdout
