# SPDX-License-Identifier: Apache-2.0
"""Triton's disk cache survives what happens to files: kernels are found, or compiled again."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import HEAD, output, run

from vllm_anvil.triton_backend.cache import CheckedCacheManager

# Prints whether the kernel was right, and whether it was found in the cache.
REPORT = """
hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
print(scaled(), hits)
"""
COMPILED, FOUND = "True [False]", "True [True]"

DAMAGE = """
def cut_short(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)

def empty(file):
    file.write_bytes(b"")

def fill_with_garbage(file):
    file.write_bytes(os.urandom(file.stat().st_size))

def delete(file):
    file.unlink()

def forbid(file):
    file.chmod(0)

DAMAGE = [cut_short, flip_a_bit, empty, fill_with_garbage, delete, forbid]
"""


def test_damaged_files_are_made_again(tmp_path: Path) -> None:
    """Every file of a kernel in every way; the kernel is asked for anew each time."""
    program = (
        DAMAGE
        + """
from pathlib import Path

hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)

def ask():
    scale.device_caches.clear()
    right = scaled()
    return right and hits.pop()

is_root = os.geteuid() == 0  # who may read everything
assert ask() is False and ask() is True
cache = Path(os.environ["TRITON_CACHE_DIR"])
files = sorted(cache.glob("*/*"))  # of the kernel; beside it is what Triton says of itself
print(sorted(file.name for file in files))
for damage in DAMAGE:
    for file in files:
        damage(file)
        readable = damage is forbid and is_root
        if ask() is not readable:
            print(damage.__name__, file.name, "was taken as it was")
        if ask() is not True:
            print(damage.__name__, file.name, "was not mended")
"""
    )
    names = ["json", "llir", "obj", "source", "ttir"]
    expected = ["__grp__scale.json", *(f"scale.{name}" for name in names)]
    assert output(tmp_path, program) == [str(expected)]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckedCacheManager:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return CheckedCacheManager("KEY")


def stored(manager: CheckedCacheManager) -> dict[str, str]:
    group = {name: manager.put(content, name) for name, content in CONTENTS.items()}
    manager.put_group("kernel.json", group)
    return group


CONTENTS = {"kernel.json": "{}", "kernel.obj": b"\x00\xff", "kernel.ttir": "module {}"}


def test_a_group_is_found_as_it_was_stored(manager: CheckedCacheManager) -> None:
    assert manager.get_group("kernel.json") is None
    group = stored(manager)
    assert CheckedCacheManager("KEY").get_group("kernel.json") == group
    assert CheckedCacheManager("OTHER").get_group("kernel.json") is None
    assert Path(group["kernel.obj"]).read_bytes() == b"\x00\xff"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        "{}",
        '{"child_paths": 7, "sha256": {}}',
        '{"child_paths": {}, "sha256": {}}',
        '{"child_paths": {"kernel.json": "/etc/passwd"}, "sha256": {"kernel.json": "0"}}',
        '{"child_paths": {"kernel.json": "/etc/passwd"}}',
        '{"child_paths": {"kernel.json": null}, "sha256": {"kernel.json": null}}',
        '{"child_paths": {"kernel.json": "/"}, "sha256": {"kernel.json": "0"}}',
    ],
)
def test_a_list_that_is_none(manager: CheckedCacheManager, text: str) -> None:
    stored(manager)
    manager.put(text, "__grp__kernel.json")
    assert manager.get_group("kernel.json") is None
    group = stored(manager)
    assert manager.get_group("kernel.json") == group


def test_files_that_are_read_alone_are_checked(manager: CheckedCacheManager) -> None:
    name = "kernel.autotune.json"
    assert manager.get_file(name) is None
    path = Path(manager.put('{"configs_timings": []}', name))
    assert manager.get_file(name) == str(path)
    for content in ("{}", "", '{"configs_tim'):
        path.write_text(content)
        assert manager.get_file(name) is None
    manager.put("[1]", name)
    assert manager.get_file(name) == str(path)


def test_damaged_results_of_tuning_are_made_again(tmp_path: Path) -> None:
    program = """
from pathlib import Path

@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], key=["count"],
                 cache_results=True)
@triton.jit
def tuned(source, target, count, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < count) * factor, mask=i < count)

def ask():
    tuned.cache.clear()
    vars(tuned).pop("bench_time", None)
    x = torch.ones(100, device="anvil"); y = torch.zeros(100, device="anvil")
    tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100, 2.0)
    return y.sum().item(), hasattr(tuned, "bench_time")

print(ask(), ask())
(file,) = Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.autotune.json")
file.write_text("{}")
print(ask(), ask())
"""
    assert output(tmp_path, program) == ["(200.0, True) (200.0, False)"] * 2


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    done = run(tmp_path, REPORT)
    assert done.stdout.splitlines() == [COMPILED], done.stderr
    assert "cannot be written" in done.stderr and "TRITON_CACHE_DIR" in done.stderr
    assert (tmp_path / "cache").read_text() == "in the way"


READ_ONLY = """
import ctypes, os
libc = ctypes.CDLL(None)
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
if os.environ["READ_ONLY"] == "1":
    cache = os.environ["TRITON_CACHE_DIR"].encode()
    if (libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
            or libc.mount(cache, cache, None, MS_BIND, None)
            or libc.mount(cache, cache, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)):
        raise SystemExit(print("not permitted"))
"""


def test_a_read_only_cache(tmp_path: Path) -> None:
    """Found where it is there, compiled for this process where it is not."""
    (tmp_path / "cache").mkdir()
    head = READ_ONLY + HEAD
    done = run(tmp_path, REPORT, head, READ_ONLY="1")
    if done.stdout.splitlines() == ["not permitted"]:
        pytest.skip("only root may mount")
    assert done.stdout.splitlines() == [COMPILED], done.stderr
    assert "Read-only file system" in done.stderr
    assert output(tmp_path, REPORT, head, READ_ONLY="0") == [COMPILED]
    assert output(tmp_path, REPORT, head, READ_ONLY="1") == [FOUND]


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files, as if the disk filled up within the first one."""
    program = (
        """
import resource, triton.knobs
from vllm_anvil.triton_backend import cache
write = cache.CheckedCacheManager._write
def limited(self, filename, content):
    inside = self.cache_dir.startswith(os.environ["TRITON_CACHE_DIR"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if inside:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        return write(self, filename, content)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
cache.CheckedCacheManager._write = limited
"""
        + REPORT
    )
    done = run(tmp_path, program)
    assert done.stdout.splitlines() == [COMPILED], done.stderr
    assert "File too large" in done.stderr
    assert all(
        file.stat().st_size == 0 for file in (tmp_path / "cache").glob("*/*") if file.is_file()
    )
    assert output(tmp_path, REPORT) == [COMPILED]


def test_the_temporary_cache_goes_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    (tmp_path / "tmp").mkdir()
    program = (
        REPORT
        + """
sys.stdout.flush()  # or the child prints it once more
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(len(os.listdir(os.environ["TMPDIR"])))
"""
    )
    lines = output(tmp_path, program, TMPDIR=str(tmp_path / "tmp"))
    assert lines == [COMPILED, "1"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_no_place_at_all(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    program = """
import tempfile
def refuse(*_, **__):
    raise OSError(28, "No space left on device")
tempfile.mkdtemp = refuse
try:
    scaled()
except OSError as error:
    print(error)
"""
    assert output(tmp_path, program) == ["[Errno 28] No space left on device"]


def test_processes_that_compile_one_kernel_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: run(tmp_path, REPORT), range(4)))
    for one in done:
        assert one.stdout.startswith("True ["), one.stderr
    assert output(tmp_path, REPORT) == [FOUND]
    assert list((tmp_path / "cache").rglob(".*")) == []


def test_the_users_own_cache_manager_stays(tmp_path: Path) -> None:
    program = """
print(triton.knobs.cache.manager_class.__name__, scaled())
"""
    manager = "triton.runtime.cache:FileCacheManager"
    assert output(tmp_path, program, TRITON_CACHE_MANAGER=manager) == ["FileCacheManager True"]
    assert output(tmp_path, program) == ["CheckedCacheManager True"]


def test_dumps_and_overrides_are_tritons_own(tmp_path: Path) -> None:
    where = {
        "TRITON_DUMP_DIR": str(tmp_path / "dump"),
        "TRITON_OVERRIDE_DIR": str(tmp_path / "own"),
    }
    assert output(tmp_path, REPORT, TRITON_KERNEL_DUMP="1", **where) == [COMPILED]
    dumped = {file.suffix for file in (tmp_path / "dump").rglob("scale.*")}
    assert dumped >= {".ttir", ".llir", ".obj"}
    shutil.copytree(tmp_path / "dump", tmp_path / "own")
    shutil.rmtree(tmp_path / "cache")
    for file in (tmp_path / "own").rglob("*"):
        if file.suffix in (".obj", ".llir"):
            file.unlink()
    done = run(tmp_path, REPORT, TRITON_KERNEL_OVERRIDE="1", **where)
    assert "Overriding kernel with file" in done.stdout and COMPILED in done.stdout, done.stderr


def test_a_changed_compiler_never_meets_an_old_object(tmp_path: Path) -> None:
    program = """
from vllm_anvil.triton_backend import compiler
from pathlib import Path
import tempfile
before = compiler._compiler_key.__wrapped__()
folder = Path(compiler.__file__).parent
with tempfile.TemporaryDirectory() as copy:
    import shutil
    shutil.copytree(folder, Path(copy) / "c", dirs_exist_ok=True)
    compiler.__file__ = str(Path(copy) / "c" / "compiler.py")
    print(compiler._compiler_key.__wrapped__() == before)
    with open(Path(copy) / "c" / "lower" / "kernel.py", "a") as file:
        file.write("# changed")
    print(compiler._compiler_key.__wrapped__() == before)
"""
    assert output(tmp_path, program) == ["True", "False"]
