# SPDX-License-Identifier: Apache-2.0
"""Where a module's rotary embedding and attention may become one step, and what it then computes:
modules as models write them, with simple arithmetic in the place of their layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vllm_anvil.plugin import layer_graph

SIZES = [12, 6, 6]  # queries, keys and values; heads of 3


class Project(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0 * size).view(4, size) % 7 - 3)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x @ self.weight, None


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3 + x.sum(-1, keepdim=True)


class Rotary(nn.Module):
    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        turn = positions.view(-1, *(1,) * (query.dim() - 1))
        return query + turn, key - turn


class Attend(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (t.reshape(len(t), -1) for t in (query, key, value))
        return query * 2 + torch.cat((key, value), -1)


class Layer(nn.Module):
    """The layers that all of the modules below have."""

    scaled = False

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.out = Project(24), Norm()
        self.q_norm, self.k_norm = Norm(), Norm()
        self.rotary, self.attn = Rotary(), Attend()

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.proj(x)[0].split(SIZES, dim=-1)


class Plain(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        qkv, _ = self.proj(hidden)
        q, k, v = qkv.split(SIZES, dim=-1)
        q, k = self.rotary(positions, q, k)
        return self.out(self.attn(q, k, v))


class Branches(Layer):
    """What an attribute decides is decided when the graph is made."""

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        if self.scaled:
            q = q * positions[:, None]
        return self.attn(q, k, v)


class HeadsApart(Layer):
    """Queries and keys in three dimensions; a value and a result that are worked on."""

    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        tokens, _ = hidden.shape
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q.view(tokens, 4, 3), k.view(tokens, 2, 3))
        result = self.attn(q.view(tokens, 12), k.flatten(1), v * 5)
        return result * torch.sigmoid(hidden.sum(-1, keepdim=True))


class Normed(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        by_head = q.view(*q.shape[:-1], q.shape[-1] // 3, 3)
        q = self.q_norm(by_head).view(q.shape)
        k = self.k_norm(k.unflatten(-1, (2, 3))).flatten(-2, -1)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


class NormedInPlaceOf(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q = self.q_norm(q.reshape(-1, 3)).view_as(q)
        k = self.k_norm(k.reshape(-1, 3)).view_as(k)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


class ReadsProjectionAgain(Layer):
    """The step would have written to it by then, if it made the norms."""

    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        qkv, _ = self.proj(hidden)
        q, k, v = qkv.split(SIZES, dim=-1)
        q = self.q_norm(q.view(-1, 4, 3)).view(-1, 12)
        k = self.k_norm(k.view(-1, 2, 3)).view(-1, 6)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v) + qkv[:, :12]


class NormsItsInput(Layer):
    """What is normed is an argument, and not the layer's to write to."""

    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = hidden.repeat(1, 6).split(SIZES, dim=-1)
        q = self.q_norm(q.view(-1, 4, 3)).view(-1, 12)
        k = self.k_norm(k.view(-1, 2, 3)).view(-1, 6)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


class ProjectsTwice(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        qkv = self.proj(hidden)[0]
        q, k, _ = qkv.split(SIZES, dim=-1)
        again = qkv.split(SIZES, dim=-1)
        q = self.q_norm(q.view(-1, 4, 3)).view(-1, 12)
        k = self.k_norm(k.view(-1, 2, 3)).view(-1, 6)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, again[2])


class OneNorm(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q = self.q_norm(q.view(-1, 4, 3)).view(-1, 12)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


def rewritten(module: Layer, takes_norms: bool = True) -> tuple[Any, list[bool]]:
    """The module's new forward, and whether its step made the norms, for each call."""
    calls: list[bool] = []
    norms = False

    def takes(*names: str) -> bool:
        nonlocal norms
        assert names == ("q_norm", "k_norm", "proj")
        norms = takes_norms
        return norms

    def step(positions: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(norms)
        if norms:
            query, key = (
                norm(states.view(len(states), -1, 3)).view(states.shape)
                for norm, states in ((module.q_norm, query), (module.k_norm, key))
            )
        return module.attn(*module.rotary(positions, query, key), value)

    return layer_graph.rewrite(module, "attn", "rotary", step, takes), calls


def arguments() -> dict[str, Tensor]:
    return {"positions": torch.tensor([4, 0, 7]), "hidden": torch.arange(12.0).view(3, 4) - 5}


NORMED = (Normed, NormedInPlaceOf)
KEEP_NORMS = (ReadsProjectionAgain, NormsItsInput, ProjectsTwice, OneNorm)
FIT = (Plain, Branches, HeadsApart, *NORMED, *KEEP_NORMS)


@pytest.mark.parametrize("cls", FIT)
@pytest.mark.parametrize("takes_norms", [True, False])
def test_computes_the_same(cls: type[Layer], takes_norms: bool) -> None:
    module = cls()
    names = [name for name, _ in module.named_modules()]
    forward, calls = rewritten(module, takes_norms)
    expected = module(**arguments())
    assert calls == []  # the module itself is as it was
    assert torch.equal(forward(**arguments()), expected)
    assert calls == [takes_norms and cls in NORMED]
    module.forward = forward
    assert torch.equal(module(**arguments()), expected)
    assert [name for name, _ in module.named_modules()] == names


def test_submodules_may_be_replaced_later() -> None:
    module = Plain()
    forward, calls = rewritten(module)
    before = forward(**arguments())
    module.proj = Project(24)
    with torch.no_grad():
        module.proj.weight.add_(1)
    assert not torch.equal(forward(**arguments()), before)
    assert torch.equal(forward(**arguments()), module(**arguments()))
    assert len(calls) == 3


def test_an_error_shows_the_source() -> None:
    forward, _ = rewritten(Plain())
    with pytest.raises(RuntimeError) as error:
        forward(positions=torch.zeros(3), hidden=torch.zeros(3, 5))
    assert any("self.proj(hidden)" in str(entry) for entry in error.traceback)


class Scaled(Branches):
    scaled = True


class KeyElsewhere(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v) + k.sum()


class ViewElsewhere(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        q = q.view(-1, 4, 3)
        return self.attn(q, k, v) + q.sum()


class Exchanged(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        return self.attn(k, q, v)


class Twice(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


class WithoutKey(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, _ = self.rotary(positions, q, None)
        return self.attn(q, k, v)


class MoreArguments(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v, output_shape=q.shape)


class Optional(Layer):
    def forward(self, positions: Tensor, hidden: Tensor, scale: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v if scale is None else v * scale)


class LooksAtValues(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        if hidden.sum() > 0:
            q = -q
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


class ReadsAttribute(Layer):
    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v * torch.ones(()))


class Keeps(Layer):
    last: Tensor | None = None

    def forward(self, positions: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden)
        self.last = v
        q, k = self.rotary(positions, q, k)
        return self.attn(q, k, v)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Scaled, "something happens between rotary and attn"),
        (KeyElsewhere, "results of rotary go elsewhere than to attn"),
        (ViewElsewhere, "results of rotary go elsewhere than to attn"),
        (Exchanged, "something happens between rotary and attn"),
        (Twice, "rotary is called 2 times"),
        (WithoutKey, "something happens between rotary and attn"),
        (MoreArguments, "attn is not called with a query, a key and a value alone"),
        (Optional, "what scale is decides what it does"),
        (LooksAtValues, "it has no graph: TraceError"),
        (ReadsAttribute, "it reads a tensor that is no argument and no parameter"),
        (Keeps, "it keeps something of a call in itself"),
    ],
)
def test_stays_as_it_is(cls: type[Layer], reason: str) -> None:
    module = cls()
    before = dict(vars(module))
    with pytest.raises(layer_graph.Unfit, match=reason):
        rewritten(module)
    assert vars(module) == before
