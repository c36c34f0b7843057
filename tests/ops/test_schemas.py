# SPDX-License-Identifier: Apache-2.0
"""Every op is complete: one schema on both sides, a reference, a fake, a wrapper, an op case."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import vllm_anvil.ops
from anvil_attention import paged_attention_op
from vllm_anvil import references
from vllm_anvil.references import registration
from vllm_anvil.testing import registry

ROOT = Path(__file__).resolve().parents[2]
REGISTER = ROOT / "csrc/torch_glue/ops/register.cpp"
OPS = sorted(registration.SCHEMAS)
TABLES = registry.load()

WRAPPERS = {
    name: function
    for module in pkgutil.iter_modules(vllm_anvil.ops.__path__)
    for name, function in vars(importlib.import_module(f"vllm_anvil.ops.{module.name}")).items()
    if inspect.isfunction(function)
}


def defined_in_cpp() -> dict[str, str]:
    """Name -> arguments and results of every `m.def` with a literal, however it is broken."""
    schemas = {}
    for literals in re.findall(r'm\.def\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', REGISTER.read_text()):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', literals)
        text = "".join(parts).replace('\\"', '"')
        name, rest = re.fullmatch(r"(\w+)(\(.*)", text).groups()  # type: ignore[union-attr]
        schemas[name] = rest
    return schemas


def test_cpp_and_python_define_the_same_ops() -> None:
    # Attention has a package of its own, and registers itself.
    in_python = registration.SCHEMAS | {paged_attention_op.NAME: paged_attention_op.SCHEMA}
    assert {name: _canonical(name, text) for name, text in defined_in_cpp().items()} == {
        name: _canonical(name, text) for name, text in in_python.items()
    }


def test_the_library_was_built_from_this_source() -> None:
    for name in OPS:
        loaded = str(getattr(torch.ops.anvil, name).default._schema)
        assert loaded.removeprefix("anvil::") == _canonical(name, registration.SCHEMAS[name])


def _canonical(name: str, text: str) -> str:
    return str(torch._C.parse_schema(name + text))


@pytest.mark.parametrize("name", OPS)
def test_reference_has_the_schemas_arguments(name: str) -> None:
    schema = torch._C.parse_schema(name + registration.SCHEMAS[name])
    expected = [argument.name for argument in schema.arguments]
    reference = registration.REFERENCES[name]
    assert list(inspect.signature(reference).parameters) == expected
    assert inspect.getmodule(reference).__name__.startswith(references.__name__)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", OPS)
def test_wrapper_has_the_schemas_arguments_and_says_what_they_mean(name: str) -> None:
    schema = torch._C.parse_schema(name + registration.SCHEMAS[name])
    expected = [argument.name for argument in schema.arguments]
    wrapper = WRAPPERS[name]
    assert list(inspect.signature(wrapper).parameters) == expected
    assert wrapper.__doc__


@pytest.mark.parametrize("name", OPS)
def test_has_a_fake(name: str) -> None:
    qualified = f"anvil::{name}"
    entry = torch._library.simple_registry.singleton.find(qualified)
    assert entry.fake_impl.kernel is not None or torch._C._dispatch_has_kernel_for_dispatch_key(
        qualified, "Meta"
    )


@pytest.mark.parametrize("name", sorted(set(OPS) - registration.MEASURES))
def test_has_a_table(name: str) -> None:
    op = TABLES.ops[f"anvil::{name}"]
    assert op.reference is registration.REFERENCES[name]
    assert op.call is None
