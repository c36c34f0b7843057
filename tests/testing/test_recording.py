# SPDX-License-Identifier: Apache-2.0
"""Recorded steps: what is written is read, and calls that were cut down compute the same."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_anvil.references.registration import REFERENCES
from vllm_anvil.testing.compaction import compact, portable
from vllm_anvil.testing.recording import RecordedCall, Recording, RecordingError, load

STEPS = Path(__file__).parent.parent / "data" / "recorded_steps"


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------- the file


@pytest.fixture
def recording() -> Recording:
    whole = torch.randn(6, 4, 10, generator=seeded(0)).to(torch.bfloat16)
    arguments = {
        "x": portable(whole[:, 1:3, :7]),
        "weight": None,
        "epsilon": 1e-5,
        "dtype": torch.bfloat16,
        "mrope_section": [16, 24],
        "is_neox": True,
        "approximate": "tanh",
    }
    results = {"result": torch.randn(3).to(torch.float8_e4m3fn), "x": torch.tensor([1, 2])}
    call = RecordedCall("some_op", arguments, results, "model.layers.0")
    return Recording({"model": "tiny", "torch": torch.__version__, "step": 3}, (call,))


def test_what_is_written_is_read(recording: Recording, tmp_path: Path) -> None:
    recording.save(tmp_path / "step.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["step.pt"]
    found = load(tmp_path / "step.pt")
    assert found.meta == recording.meta
    [call], [written] = found.calls, recording.calls
    assert (call.op, call.where) == (written.op, written.where)
    for name, value in (written.arguments | written.results).items():
        read = (call.arguments | call.results)[name]
        if isinstance(value, Tensor):
            assert (read.dtype, read.shape, read.stride()) == (
                value.dtype,
                value.shape,
                value.stride(),
            )
            assert torch.equal(read.float(), value.float())
        else:
            assert read == value
            assert type(read) is type(value)


def test_reading_needs_torch_alone() -> None:
    code = (
        "import sys; from vllm_anvil.testing import recording\n"
        f"recording.load({str(STEPS / 'decode.pt')!r})\n"
        "assert not {'vllm', 'vllm_anvil._C', 'vllm_anvil.device'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_file() -> None:
    with pytest.raises(RecordingError, match="there is no recording /no/such/step.pt"):
        load("/no/such/step.pt")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_file(recording: Recording, tmp_path: Path, share: float) -> None:
    content = recording.to_bytes()
    path = tmp_path / "step.pt"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(RecordingError, match="step.pt is damaged or no recorded step"):
        load(path)


def test_changed_data(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    recording.save(path)
    with zipfile.ZipFile(path) as archive:
        entry = next(e for e in archive.infolist() if e.filename.endswith("data/0"))
    content = bytearray(path.read_bytes())
    stored = recording.calls[0].arguments["x"].untyped_storage()
    start = content.index(bytes(stored), entry.header_offset)
    content[start] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="damaged .*data/0 has changed"):
        load(path)


def test_file_of_something_else(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / "model.pt")
    with pytest.raises(RecordingError, match="written by something else"):
        load(tmp_path / "model.pt")


class Trap:
    def __reduce__(self) -> Any:
        return (print, ("code from a file ran",))


def test_code_in_a_file_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"format": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(RecordingError):
        load(tmp_path / "trap.pt")
    assert "ran" not in capsys.readouterr().out


def test_another_version(tmp_path: Path) -> None:
    content = torch.load(STEPS / "decode.pt", weights_only=True)
    torch.save(content | {"version": 99}, tmp_path / "step.pt")
    with pytest.raises(RecordingError, match="version 99 .* reads version 1"):
        load(tmp_path / "step.pt")
    del content["calls"][0]["results"]
    torch.save(content, tmp_path / "step.pt")
    with pytest.raises(RecordingError, match="damaged: KeyError at 'results'"):
        load(tmp_path / "step.pt")


def test_failed_write_leaves_nothing(recording: Recording, tmp_path: Path) -> None:
    (tmp_path / "step.pt").mkdir()
    with pytest.raises(OSError, match="step.pt"):
        recording.save(tmp_path / "step.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["step.pt"]


# ---------------------------------------------------------------------- cutting down


def storage_bytes(values: Any) -> int:
    tensors = [v for v in values if isinstance(v, Tensor)]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t[2:5, 1:, :3],
        lambda t: t.transpose(0, 2),
        lambda t: t[::2],
        lambda t: t[:1, 0],
        lambda t: t[3, 2, 1],
        lambda t: t[:0],
        lambda t: t[0, 0, 0].expand(5, 3),
        lambda t: t.flatten().unfold(0, 4, 2),
        lambda t: t[::7],
    ],
)
def test_portable_copies(view: Any) -> None:
    tensor = torch.randn(8, 5, 6, generator=seeded(0))
    part = view(tensor)
    copy = portable(part)
    assert torch.equal(copy, part)
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    assert copy.untyped_storage().nbytes() <= 4 * max(part.numel(), 1) * 4
    # Nothing but the view's own values.
    rest = torch.empty(0).set_(copy.untyped_storage())
    assert set(rest.tolist()) <= {0.0, *part.flatten().tolist()}
    if part.is_contiguous() or part.transpose(0, -1).is_contiguous():
        assert copy.stride() == part.stride()


def agrees(op: str, arguments: dict[str, Any], written: tuple[str, ...]) -> dict[str, Any]:
    """Runs an op on its arguments and on what is left of them; returns the latter."""
    before = compact(op, arguments)
    left = dict(before.arguments)
    copies = {n: portable(v) if isinstance(v, Tensor) else v for n, v in left.items()}
    returned = REFERENCES[op](**arguments)
    expected = before.results(
        {n: arguments[n] for n in written} | ({} if returned is None else {"result": returned})
    )
    returned = REFERENCES[op](**copies)
    actual = {n: copies[n] for n in written} | ({} if returned is None else {"result": returned})
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    return left


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.one_of(st.just(-1), st.integers(0, 79)), max_size=12, unique_by=lambda s: (s, s < 0)
    ),
    st.booleans(),
)
def test_write_kv_cache(slots: list[int], together: bool) -> None:
    cache = torch.randn(20, 2, 4, 6 + 5, generator=seeded(0)).transpose(1, 2)
    keys, values = cache[..., :6], cache[..., 6:]
    if not together:
        values = values.clone()
    arguments = {
        "key": torch.randn(len(slots) + 1, 2, 6, generator=seeded(1)),
        "value": torch.randn(len(slots) + 1, 2, 5, generator=seeded(2)),
        "key_cache": keys,
        "value_cache": values,
        "slot_mapping": torch.tensor(slots, dtype=torch.int64),
    }
    left = agrees("write_kv_cache", arguments, ("key_cache", "value_cache"))
    blocks = len({slot // 4 for slot in slots if slot >= 0})
    assert left["key_cache"].shape == (blocks, 4, 2, 6)
    caches = storage_bytes([left["key_cache"], left["value_cache"]])
    assert caches == blocks * 4 * 2 * 11 * 4
    if blocks and together:
        assert left["key_cache"].stride() == (88, 11, 44, 1) == keys.stride()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=9))
def test_lookups(numbers: list[int]) -> None:
    weight = torch.randn(100, 8, generator=seeded(0))
    ids = torch.tensor(numbers, dtype=torch.int32)
    left = agrees("embedding", {"ids": ids, "weight": weight, "dtype": torch.float64}, ())
    assert left["weight"].shape == (len(set(numbers)), 8)

    arguments = {
        "positions": torch.tensor(numbers),
        "query": torch.randn(len(numbers), 16, generator=seeded(1)),
        "key": None,
        "head_size": 8,
        "cos_sin_cache": weight,
        "is_neox": True,
        "mrope_section": [],
        "mrope_interleaved": False,
    }
    agrees("rotary_embedding", arguments, ("query",))


def test_block_copies() -> None:
    pairs = torch.tensor([[7, 3], [3, 9], [7, 0]])
    cache = torch.randn(30, 4, generator=seeded(0))
    left = agrees("copy_blocks", {"cache": cache, "block_pairs": pairs}, ("cache",))
    assert left["cache"].shape == (4, 4)
    arguments = {"src": cache.clone(), "dst": torch.zeros(40, 4), "block_pairs": pairs}
    assert agrees("swap_blocks", arguments, ("dst",))["dst"].shape == (3, 4)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), min_size=1, max_size=5),
    st.integers(0, 2),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]),
)
def test_paged_attention(lens: list[tuple[int, int]], padding: int, kv_dtype: torch.dtype) -> None:
    """Requests of (query tokens, tokens before them)."""
    from anvil_attention.reference import paged_attention

    block, blocks = 4, 64
    starts = [0]
    for tokens, _ in lens:
        starts.append(starts[-1] + tokens)
    rows = starts[-1] + padding
    fused = torch.randn(rows, 4 * 8 + 5, generator=seeded(0))
    numbers = torch.randn(blocks, 2, block, 16, generator=seeded(1)) * 3
    cache = numbers.to(kv_dtype).transpose(1, 2)
    table = torch.randperm(blocks, generator=seeded(2))[: 7 * len(lens)].view(len(lens), -1).int()
    table = torch.nn.functional.pad(table, (0, 1), value=2**31 - 1)
    seq_lens = torch.tensor([a + b if a else 99 for a, b in lens], dtype=torch.int32)
    arguments = {
        "spec": {"scale": 0.3, "sliding_window": None, "logits_soft_cap": None},
        "query": fused[:, : 4 * 8].view(rows, 4, 8),
        "key_cache": cache[..., :8],
        "value_cache": cache[..., 8:],
        "block_table": table,
        "query_start_loc": torch.tensor(starts, dtype=torch.int32),
        "seq_lens": seq_lens,
        "output": torch.full((rows, 4, 8), float("nan")),
        "max_query_len": 4,
        "max_seq_len": 30,
        "causal": torch.arange(len(lens)) % 2 == 0,
        "sinks": None,
        "workspace": torch.zeros(3, dtype=torch.uint8),
    }

    def compute(given: dict[str, Any]) -> Tensor:
        names = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
        paged_attention(*(given[n] for n in names), 0.3, given["output"], causal=given["causal"])
        return given["output"]

    before = compact("paged_attention", arguments)
    left = dict(before.arguments)
    assert "workspace" not in left
    assert bool((left["output"] == 0).all())
    used = sum(-(-(a + b) // block) for a, b in lens if a)
    assert left["key_cache"].shape[0] == left["value_cache"].shape[0] == used
    assert storage_bytes([left["key_cache"], left["value_cache"]]) == (
        used * 2 * block * 16 * kv_dtype.itemsize
    )
    assert left["query"].stride() == arguments["query"].stride() or rows < 2
    expected = before.results({"output": compute(arguments)})["output"]
    actual = compute(left)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert bool((expected[starts[-1] :] == 0).all())


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("embedding", {"ids": torch.tensor([5]), "weight": torch.zeros(5, 2)}),
        ("copy_blocks", {"cache": torch.zeros(3, 2), "block_pairs": torch.tensor([[0, 3]])}),
    ],
)
def test_numbers_out_of_range(op: str, arguments: dict[str, Any]) -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        compact(op, arguments)


def test_arguments_of_the_attentions_op() -> None:
    [call] = [c for c in load(STEPS / "mixed.pt").calls if c.op == "paged_attention"]
    options = call.op_arguments()
    assert options["scale"] == call.arguments["spec"]["scale"]
    assert "spec" not in options
    assert options["causal"] is True
    per_request = torch.tensor([True, False])
    other = RecordedCall(call.op, call.arguments | {"causal": per_request}, {}).op_arguments()
    assert (other["causal"], other["causal_per_request"]) == (True, per_request)


# ---------------------------------------------------------------------- the steps that are there


@pytest.mark.parametrize("device", ["cpu", "anvil"])
@pytest.mark.parametrize("step", ["prefill", "decode", "mixed"])
def test_recorded_steps_replay_to_what_was_recorded(step: str, device: str) -> None:
    import vllm_anvil.device
    import vllm_anvil.ops  # noqa: F401  both register
    from anvil_attention.reference import paged_attention

    found = load(STEPS / f"{step}.pt")
    assert {"paged_attention", "write_kv_cache"} <= {call.op for call in found.calls}
    for call in found.calls:
        moved = {
            n: v.to(device, copy=True) if isinstance(v, Tensor) else v
            for n, v in call.op_arguments().items()
        }
        if call.op == "paged_attention":
            for name in ("max_query_len", "max_seq_len", "k_scale", "v_scale"):
                del moved[name]
            returned = paged_attention(**moved)
        else:
            returned = getattr(torch.ops.anvil, call.op)(**moved)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        for name, expected in call.results.items():
            index = name.removeprefix("result")
            actual = moved[name] if name in moved else outputs[int(index or 0)]
            wide = {"rtol": 2**-7, "atol": 1e-2} if expected.dtype != torch.float32 else {}
            torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **wide)


def test_recorded_steps_are_of_different_kinds_and_small() -> None:
    queries = {}
    for path in STEPS.glob("*.pt"):
        [call] = [c for c in load(path).calls if c.op == "paged_attention"]
        queries[path.stem] = call.arguments["query_start_loc"].diff().tolist()
    assert min(queries["prefill"]) > 1
    assert set(queries["decode"]) == {1}
    assert min(queries["mixed"]) == 1 < max(queries["mixed"])
    assert sum(path.stat().st_size for path in STEPS.iterdir()) < 400_000
