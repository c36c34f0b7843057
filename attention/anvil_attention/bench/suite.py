# SPDX-License-Identifier: Apache-2.0
"""Which problems are measured: options of a command line, or a file that lists them.

A suite is a list of groups, in YAML or JSON. Each group has `shapes` and `batches`, all of which
are combined, and may have any of `dtype`, `kv_dtype`, `block_size`, `layout`, `window`, `soft_cap`,
`sinks` and `alibi`; what it does not have is as on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from anvil_attention.synthetic_batch import LAYOUTS

from .batch_spec import parse
from .model_shapes import ModelShape, model_shape
from .problem import Problem

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
KV_DTYPES = {
    **DTYPES,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class LayerOptions:
    """How layers of a model's shape are run.

    Attributes:
        dtype, kv_dtype: names; "auto" is the dtype of the query.
        window, soft_cap: None: the model's own; 0: none.
        sinks, alibi: None: the model's own.
    """

    dtype: str = "bfloat16"
    kv_dtype: str = "auto"
    block_size: int = 32
    layout: str = "LBHNC"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool | None = None
    alibi: bool | None = None

    def problem(self, shape: ModelShape, batch: str, device: str) -> Problem:
        """Raises ValueError for an option or a batch that cannot be."""
        for name, known in (("dtype", DTYPES), ("layout", LAYOUTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"there is no {name} {getattr(self, name)!r}: {_list(known)}")
        if self.kv_dtype not in ("auto", *KV_DTYPES):
            raise ValueError(
                f"there is no kv-dtype {self.kv_dtype!r}: {_list(('auto', *KV_DTYPES))}"
            )
        for name in ("window", "soft_cap"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be positive, or 0 for none; got {value}")
        if self.window is not None:
            shape = replace(shape, sliding_window=self.window or None)
        if self.soft_cap is not None:
            shape = replace(shape, logits_soft_cap=self.soft_cap or None)
        if self.sinks is not None:
            shape = replace(shape, has_sinks=self.sinks)
        if self.alibi is not None:
            shape = replace(shape, has_alibi=self.alibi)
        dtype = DTYPES[self.dtype]
        kv_dtype = dtype if self.kv_dtype == "auto" else KV_DTYPES[self.kv_dtype]
        spec = shape.spec(dtype, kv_dtype, self.block_size, device)
        return Problem(shape.name, spec, parse(batch), layout=self.layout)


def suite_problems(path: Path, options: LayerOptions, device: str) -> Iterator[Problem]:
    """The problems of a file.

    Raises ValueError, which names the file and the group, and ModuleNotFoundError where YAML is
    needed and PyYAML is not installed.
    """
    groups = _load(path)
    if not isinstance(groups, list) or not groups:
        raise ValueError(f"{path}: a suite is a list of groups, each with shapes and batches")
    known = {field.name for field in fields(LayerOptions)}
    for number, group in enumerate(groups, 1):
        where = f"{path}, group {number}"
        if not isinstance(group, dict) or not {"shapes", "batches"} <= group.keys():
            raise ValueError(f"{where}: a group has shapes and batches")
        unknown = group.keys() - known - {"shapes", "batches"}
        if unknown:
            raise ValueError(
                f"{where} has {', '.join(sorted(unknown))}, which are no options; there are "
                f"{', '.join(sorted(known))}"
            )
        own = replace(options, **{k: v for k, v in group.items() if k in known})
        for shape in _texts(group["shapes"], where, "shapes"):
            for batch in _texts(group["batches"], where, "batches"):
                try:
                    yield own.problem(model_shape(shape), batch, device)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None


def _load(path: Path) -> Any:
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from None
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{path} is YAML, which needs PyYAML: pip install 'vllm-anvil[bench]', or write the "
            "suite as .json"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from None


def _texts(value: Any, where: str, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{where}: {name} must be a list of names, got {value!r}")
    return value


def _list(known: Any) -> str:
    return f"choose {', '.join(known)}"
