# SPDX-License-Identifier: Apache-2.0
"""Finds an attention by its name: one of Anvil's, a function of a module or file, an entry point.

It needs torch alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .contract import AttentionImplementation, as_implementation
from .reference_implementation import reference_attention

ENTRY_POINT_GROUP = "vllm_anvil.attention_impls"


def _native() -> Any:
    return importlib.import_module("anvil_attention.native").native_attention


def _triton() -> Any:
    return importlib.import_module("anvil_attention.triton_kernels").triton_attention


# What comes with Anvil: names that need no module.
OWN: dict[str, Callable[[], Any]] = {
    "native": _native,
    "reference": lambda: reference_attention,
    "triton": _triton,
}


def resolve(name: str) -> AttentionImplementation:
    """The implementation that `name` names.

    Args:
        name: `native`, `reference` or `triton`; `module:function`, of a module that Python can
            import; `path/to/file.py:function`; or the name of an entry point in the group
            `vllm_anvil.attention_impls`. A function may be an attribute of an object
            (`module:object.function`).

    Raises:
        ImportError: the module or file is missing, or importing it failed.
        ValueError: no such function or name, or it was written for another contract version.
        TypeError: what was named cannot be called.
    """
    text = name.strip()
    if text in OWN:
        return as_implementation(OWN[text](), text)
    if ":" not in text:
        return as_implementation(_entry_point(text), text)
    place, _, path = text.rpartition(":")
    if not place or not path:
        raise ValueError(
            f"{text!r} names no attention: write module:function or path/to/file.py:function"
        )
    module = _file(place) if _is_file(place) else _module(place)
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(
                f"{place} has no {path!r}. It has {_functions(module) or 'no functions'}"
            ) from None
    return as_implementation(found, text)


def _entry_point(name: str) -> Any:
    registered: dict[str, EntryPoint] = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in registered:
        known = ", ".join([*OWN, *sorted(registered)])
        raise ValueError(
            f"there is no attention {name!r}. Known names are {known}; any other is given as "
            "module:function or path/to/file.py:function"
        )
    entry = registered[name]
    try:
        return entry.load()
    except Exception as error:
        raise ImportError(
            f"entry point {name} = {entry.value} could not be loaded: {_words(error)}"
        ) from error


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # Only what was asked for: a module that it imports in turn is another matter.
        if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
            raise ImportError(
                f"there is no module {error.name!r}. Put its folder into PYTHONPATH, or name the "
                "file: path/to/file.py:function"
            ) from None
        raise ImportError(f"importing {place} failed: {_words(error)}") from error
    except Exception as error:
        raise ImportError(f"importing {place} failed: {_words(error)}") from error


def _file(place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    # One module per file, however often and by whichever spelling it is named.
    name = "anvil_attention_of_" + re.sub(r"\W", "_", str(path.with_suffix("")).lstrip("/"))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportError(f"importing {path} failed: {_words(error)}") from error
    return module


def _functions(module: ModuleType) -> str:
    """What of a module's own could have been meant."""
    return ", ".join(
        name
        for name, value in vars(module).items()
        if isinstance(value, AttentionImplementation)
        or (callable(value) and getattr(value, "__module__", None) == module.__name__)
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
