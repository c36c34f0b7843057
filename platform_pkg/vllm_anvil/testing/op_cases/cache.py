# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.cache. These ops move elements, or none; only a write may round them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vllm_anvil.references import cache
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance, refused

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bits(inputs: Inputs, *shape: int, dtype: torch.dtype) -> Tensor:
    """Any bit patterns, NaNs among them; also where there are none."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return inputs.bits(*shape, dtype=dtype)


def _slots(inputs: Inputs, tokens: int, slots: int, skipped: int) -> Tensor:
    """Different slots in random order, the first and the last among them; some are negative."""
    chosen = inputs.distinct(tokens, slots)
    if tokens > 2:
        others = chosen[(chosen != 0) & (chosen != slots - 1)]
        chosen = torch.cat((others, torch.tensor([slots - 1, 0])))[-tokens:]
        chosen[inputs.distinct(skipped, tokens - 2)] = -1
    return chosen


def _write_case(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    head_size: int,
    *,
    blocks: int = 7,
    block_size: int = 4,
    skipped: int = 0,
    padding: int = 0,
    value_size: int | None = None,
    kind: str = "ordinary",
    name: str = "",
) -> Case:
    """`padding`: tokens without a slot."""

    def make(inputs: Inputs) -> Arguments:
        sizes = {"key": head_size, "value": value_size or head_size}
        sources = {
            side: _bits(inputs, tokens + padding, heads, size, dtype=dtype)
            for side, size in sizes.items()
        }
        caches = {
            f"{side}_cache": _bits(inputs, blocks, block_size, heads, size, dtype=dtype)
            for side, size in sizes.items()
        }
        slots = _slots(inputs, tokens, blocks * block_size, skipped)
        return sources | caches | {"slot_mapping": slots}

    return Case(
        f"{_short(dtype)}-tokens{tokens}-heads{heads}-head{head_size}{name}", make, kind=kind
    )


def _write_cases() -> list[Case]:
    cases = []
    for dtype in _DTYPES:
        cases += [
            _write_case(dtype, 11, 3, 40, kind="special"),
            _write_case(dtype, 1, 1, 128),
            _write_case(dtype, 9, 2, 31, skipped=4, name="-skipped"),
            _write_case(dtype, 0, 2, 64, kind="empty"),
        ]
    of = torch.bfloat16
    cases += [_write_case(of, 9, heads, size) for heads in (1, 5) for size in (1, 3, 80, 129, 256)]
    return [
        *cases,
        _write_case(of, 6, 2, 24, padding=3, name="-padding"),
        _write_case(of, 6, 2, 24, value_size=7, name="-values7"),
        _write_case(of, 6, 2, 24, blocks=24, block_size=1, name="-block1"),
        _write_case(of, 28, 2, 24, skipped=5, name="-every-slot"),
        _write_case(of, 300, 2, 64, blocks=40, block_size=16, skipped=20),
    ]


# Numbers that are converted: the types they have, and the caches have.
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _converting_case(
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    k_scale: float,
    v_scale: float,
    *,
    tokens: int = 9,
    heads: int = 3,
    head_size: int = 40,
    blocks: int = 7,
    block_size: int = 4,
    spread: float = 1.0,
    kind: str = "ordinary",
) -> Case:
    """Numbers of the cache's range and beyond: `spread` is their deviation, once divided."""

    def make(inputs: Inputs) -> Arguments:
        arguments: Arguments = {"k_scale": k_scale, "v_scale": v_scale}
        for side, scale in (("key", k_scale), ("value", v_scale)):
            normal = inputs.normal(tokens, heads, head_size, dtype=dtype, scale=spread * scale)
            arguments[side] = normal
            rows = (blocks, block_size, heads, head_size)
            arguments[f"{side}_cache"] = _bits(inputs, *rows, dtype=cache_dtype)
        slots = _slots(inputs, tokens, blocks * block_size, min(tokens, 2))
        return arguments | {"slot_mapping": slots}

    return Case(
        f"{_short(dtype)}-into-{_short(cache_dtype)}-tokens{tokens}-head{head_size}"
        f"-scales{k_scale:g}-{v_scale:g}-spread{spread:g}",
        make,
        kind,
    )


def _converting_cases() -> list[Case]:
    # float64's quotients and float32's, both rounded to whole numbers, agree for powers of two.
    cases = [
        _converting_case(dtype, cache_dtype, 0.25, 2.0, spread=40.0)
        for dtype in _FLOATS
        for cache_dtype in (*_FLOATS, *_QUANTISED)
    ]
    for of in _QUANTISED:
        cases += [
            _converting_case(torch.bfloat16, of, 1.0, 1.0, head_size=7, spread=0.01),
            _converting_case(torch.bfloat16, of, 1.0, 1.0, spread=1e6, kind="extreme"),
            _converting_case(torch.bfloat16, of, 0.5, 1.0, tokens=0, kind="empty"),
        ]
    return [
        *cases,
        _converting_case(torch.bfloat16, torch.float8_e4m3fn, 0.037, 1.9, head_size=129),
        _converting_case(torch.bfloat16, torch.bfloat16, 0.037, 1.9),
        _converting_case(torch.float32, torch.bfloat16, 1.0, 1.0),
    ]


# A block may be copied to several places, copied on, overwritten, or copied to itself.
_PAIRS = ((0, 1), (4, 2), (0, 3), (3, 0), (2, 2), (1, 4), (4, 1))


def _pairs(pairs: tuple[tuple[int, int], ...]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2)


def _copy_case(
    dtype: torch.dtype,
    block: tuple[int, ...],
    pairs: tuple[tuple[int, int], ...] = _PAIRS,
    kind: str = "ordinary",
) -> Case:
    def make(inputs: Inputs) -> Arguments:
        return {"cache": _bits(inputs, 6, *block, dtype=dtype), "block_pairs": _pairs(pairs)}

    shape = "x".join(map(str, block))
    return Case(f"{_short(dtype)}-block{shape}-pairs{len(pairs)}", make, kind)


def _swap_case(
    dtype: torch.dtype,
    block: tuple[int, ...],
    pairs: tuple[tuple[int, int], ...] = ((5, 0), (0, 3), (4, 2), (0, 1)),
    kind: str = "ordinary",
) -> Case:
    def make(inputs: Inputs) -> Arguments:
        return {
            "src": _bits(inputs, 6, *block, dtype=dtype),
            "dst": _bits(inputs, 4, *block, dtype=dtype),
            "block_pairs": _pairs(pairs),
        }

    shape = "x".join(map(str, block))
    return Case(f"{_short(dtype)}-block{shape}-pairs{len(pairs)}", make, kind)


_BLOCKS = ((1,), (5,), (4, 2, 33), (2, 16, 3, 64))


def _block_table_case(
    name: str, lengths: tuple[int, ...], max_blocks: int = 9, kind: str = "ordinary"
) -> Case:
    """Tables whose unused entries, and the rows of requests of length 0, hold anything: they are
    padding, like a last request without query rows, whose length too makes no sense."""

    def make(inputs: Inputs) -> Arguments:
        block_size, num_blocks = 16, 50
        table = inputs.integers(len(lengths) + 1, max_blocks, high=2**31 - 1, dtype=torch.int32)
        for request, length in enumerate(lengths):
            used = -(-length // block_size)
            table[request, :used] = inputs.integers(used, high=num_blocks, dtype=torch.int32)
        if lengths and lengths[0]:
            table[0, 0] = num_blocks - 1
        starts = torch.arange(len(lengths) + 2, dtype=torch.int32).clamp(max=len(lengths))
        return {
            "block_table": table,
            "query_start_loc": starts,
            "seq_lens": torch.tensor((*lengths, -7), dtype=torch.int32),
            "block_size": block_size,
            "num_blocks": num_blocks,
        }

    return Case(name, make, kind)


def _with_element(
    name: str, index: tuple[int, ...], value: int
) -> Callable[[Arguments], Arguments]:
    """Puts a value into one of the arguments."""

    def change(arguments: Arguments) -> Arguments:
        arguments[name][index] = value
        return arguments

    return change


def _with_scale(name: str, scale: float) -> Callable[[Arguments], Arguments]:
    return lambda arguments: arguments | {name: scale}


def _refused_writes() -> Iterator[Case]:
    plain = _write_case(torch.bfloat16, 9, 2, 31)  # 28 slots
    for slot in (28, 2**40):
        change = _with_element("slot_mapping", (4,), slot)
        yield refused(plain, f"slot-{slot}", change, IndexError)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        yield refused(plain, f"scale{scale}", _with_scale("v_scale", scale), ValueError)
    whole = _write_case(torch.uint8, 9, 2, 31)
    yield refused(whole, "scale-of-bytes", _with_scale("k_scale", 0.5), TypeError)


def _refused_pairs(plain: Case) -> Iterator[Case]:
    for row, column, block in ((3, 0, 6), (0, 1, -1), (2, 1, 2**40)):
        change = _with_element("block_pairs", (row, column), block)
        yield refused(plain, f"pair{row}-{'to' if column else 'from'}{block}", change, IndexError)


def _refused_block_tables() -> Iterator[Case]:
    plain = _block_table_case("several", (1, 16, 17, 0, 144, 33))  # 50 blocks, 9 a row
    for index, block in (((4, 8), 50), ((2, 1), -1), ((0, 0), 2**31 - 1)):
        change = _with_element("block_table", index, block)
        yield refused(plain, f"block{block}-of-request{index[0]}", change, IndexError)
    for length in (145, -1):
        yield refused(plain, f"length{length}", _with_element("seq_lens", (1,), length), IndexError)


def _moved_by_write(arguments: Arguments) -> int:
    tokens = int((arguments["slot_mapping"] >= 0).sum())
    rows = [arguments[side][:1].nbytes for side in ("key", "value")]
    rows += [arguments[f"{side}_cache"][:1, :1].nbytes for side in ("key", "value")]
    return arguments["slot_mapping"].nbytes + tokens * sum(rows)


def _half_a_step(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """What rounding may change, and a quotient in float32 before it: less than one step, so that
    a copied number remains the same. Zero for zero and what is not finite."""
    if not dtype.is_floating_point:
        return torch.zeros_like(expected, dtype=torch.float64)
    limits = torch.finfo(dtype)
    size = expected.double().abs()
    # (mantissa, exponent) with 1/2 <= mantissa < 1.
    exponent = torch.frexp(size.clamp_min(limits.smallest_normal)).exponent - 1
    half = torch.ldexp(torch.full_like(size, limits.eps / 2), exponent)
    return torch.where((size > 0) & size.isfinite(), half * (1 + 2.0**-12), 0.0)


def _moved_by_copy(blocks: Tensor, pairs: Tensor) -> int:
    return pairs.nbytes + 2 * len(pairs) * blocks[:1].nbytes


def _read_by_check(arguments: Arguments) -> int:
    starts, lengths = arguments["query_start_loc"].tolist(), arguments["seq_lens"].tolist()
    used = sum(
        -(-length // arguments["block_size"])
        for length, begin, end in zip(lengths, starts, starts[1:], strict=False)
        if begin != end
    )
    return 4 * used + sum(arguments[name].nbytes for name in ("query_start_loc", "seq_lens"))


OPS = (
    Op(
        name="write_kv_cache",
        family="cache",
        reference=cache.write_kv_cache,
        cases=(*_write_cases(), *_converting_cases(), *_refused_writes()),
        batch={"key": 0, "value": 0, "slot_mapping": 0},
        views=("key", "value", "key_cache", "value_cache"),
        allowed=_half_a_step,
        moved_bytes=_moved_by_write,
        benchmarks=(
            _write_case(torch.bfloat16, 32, 8, 128, blocks=256, block_size=16),
            _write_case(torch.bfloat16, 2048, 8, 128, blocks=256, block_size=16),
            _converting_case(
                torch.bfloat16,
                torch.float8_e4m3fn,
                0.5,
                0.5,
                tokens=2048,
                heads=8,
                head_size=128,
                blocks=256,
                block_size=16,
            ),
        ),
    ),
    Op(
        name="copy_blocks",
        family="cache",
        reference=cache.copy_blocks,
        cases=(
            *(_copy_case(dtype, block) for dtype in _DTYPES for block in _BLOCKS),
            _copy_case(torch.bfloat16, (4, 2, 33), (), kind="empty"),
            _copy_case(torch.int64, (4, 3)),
            *_refused_pairs(_copy_case(torch.bfloat16, (4, 2, 33))),
        ),
        allowed=Tolerance(0.0),
        moved_bytes=lambda a: _moved_by_copy(a["cache"], a["block_pairs"]),
        benchmarks=(_copy_case(torch.bfloat16, (16, 2, 8, 128)),),
    ),
    Op(
        name="swap_blocks",
        family="cache",
        reference=cache.swap_blocks,
        cases=(
            *(_swap_case(dtype, block) for dtype in _DTYPES for block in _BLOCKS),
            _swap_case(torch.bfloat16, (4, 2, 33), (), kind="empty"),
            _swap_case(torch.int64, (4, 3)),
            *_refused_pairs(_swap_case(torch.bfloat16, (4, 2, 33))),
        ),
        allowed=Tolerance(0.0),
        moved_bytes=lambda a: _moved_by_copy(a["src"], a["block_pairs"]),
        benchmarks=(_swap_case(torch.bfloat16, (16, 2, 8, 128)),),
    ),
    # Its result is that it does not refuse.
    Op(
        name="check_block_table",
        family="cache",
        reference=cache.check_block_table,
        cases=(
            _block_table_case("several", (1, 16, 17, 0, 144, 33)),
            _block_table_case("one", (144,)),
            _block_table_case("none", (), kind="empty"),
            _block_table_case("long", (16 * 1100, 16 * 1099 + 1), max_blocks=1100),
            _block_table_case("many", tuple(range(145)) + (144,) * 111),
            *_refused_block_tables(),
        ),
        views=("block_table",),
        moved_bytes=_read_by_check,
        benchmarks=(_block_table_case("256x128", (2048,) * 256, max_blocks=128),),
    ),
)
