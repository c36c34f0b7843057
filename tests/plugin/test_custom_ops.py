# SPDX-License-Identifier: Apache-2.0
"""Layers of the engine in the device's form: that the engine builds them, and what they give.
Rotary embeddings have tests of their own (test_rotary_layers.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor import custom_op
from vllm.model_executor.layers import activation, layernorm
from vllm.model_executor.layers import vocab_parallel_embedding as embedding
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

import vllm_anvil.device  # noqa: F401  registers the device
from vllm_anvil.plugin import custom_ops
from vllm_anvil.plugin.op_arguments import fallbacks

pytestmark = pytest.mark.usefixtures("platform", "anvil_layers")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def normal(*shape: int, dtype: torch.dtype = torch.float32, device: str = "anvil") -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


class Called(TorchDispatchMode):
    """Names of the ops that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def one_op(name: str, layer: Callable[..., Any], *arguments: Any) -> Any:
    """What the layer gives, having called this op of the device and nothing else."""
    with torch.inference_mode(), Called() as called:
        result = layer(*arguments)
    assert called.names == [f"anvil.{name}.default"]
    return result


def assert_close(result: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    assert result.device.type == "anvil"
    assert result.shape == exact.shape
    error = (result.cpu().double() - exact).abs()
    assert (error <= exact.abs() * UNIT[dtype] + 2e-6).all()


def on_device(layer: torch.nn.Module) -> Any:
    """The layer, on the device, with weights that are no ones."""
    layer.to("anvil")
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(normal(parameter.numel() + number)[: parameter.numel()])
    return layer


def with_table(layer: Any, table: Tensor) -> Any:
    """The embedding, on the device, with these rows."""
    layer.to("anvil").weight.data.copy_(table)
    return layer


def views(dtype: torch.dtype) -> list[Tensor]:
    """Rows of 12 elements in layouts that models use."""
    return [
        normal(5, 12, dtype=dtype),
        normal(1, 12, dtype=dtype),
        normal(0, 12, dtype=dtype),
        normal(5, 40, dtype=dtype)[:, 8:20],
        normal(5, 40, dtype=dtype)[:, :24].view(5, 2, 12),
    ]


def experts_method() -> Any:
    return UnquantizedFusedMoEMethod(
        FusedMoEConfig(
            num_experts=4,
            experts_per_token=2,
            hidden_dim=8,
            intermediate_size=6,
            num_local_experts=4,
            num_logical_experts=4,
            activation=MoEActivation.SILU,
            device="anvil",
            routing_method=RoutingMethodType.Renormalize,
            moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
            in_dtype=torch.float32,
        )
    )


BUILD: dict[str, Callable[[], Any]] = {
    "RMSNorm": lambda: layernorm.RMSNorm(12),
    "GemmaRMSNorm": lambda: layernorm.GemmaRMSNorm(12),
    "LayerNorm": lambda: layernorm.LayerNorm(12),
    "SiluAndMul": lambda: activation.SiluAndMul(),
    "GeluAndMul": lambda: activation.GeluAndMul(),
    "UnquantizedFusedMoEMethod": lambda: experts_method(),
    "VocabParallelEmbedding": lambda: embedding.VocabParallelEmbedding(8, 4, disable_tp=True),
}


def test_every_registered_layer_replaces_the_engines_of_that_name() -> None:
    assert custom_op.op_registry_oot == custom_ops.layers()
    for name, ours in custom_op.op_registry_oot.items():
        engines = [cls for cls in ours.__mro__[1:] if cls.__name__ == name]
        assert len(engines) == 1
        assert engines[0].__module__.startswith("vllm.")
        # The engine has no other layer of this name that would become ours: __init__ is not
        # called on an object of an unrelated class.
        assert ours.__name__ == f"Anvil{name}"
        if name not in custom_ops.rotary.LAYERS:
            layer = BUILD[name]()
            assert type(layer) is ours
            if isinstance(layer, custom_op.CustomOp):
                assert layer._forward_method == layer.forward_oot


def test_registering_again_changes_nothing() -> None:
    before = dict(custom_op.op_registry_oot)
    custom_ops.register()
    assert before == custom_op.op_registry_oot


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    norm = on_device(layernorm.RMSNorm(12, eps=1e-5))
    assert norm.weight.dtype == torch.float32
    scale = norm.weight.cpu().double()
    for x in views(dtype):
        exact = F.rms_norm(x.cpu().double(), (12,), scale, 1e-5)
        assert_close(one_op("rms_norm", norm, x), exact, dtype)
        residual = torch.rand(x.shape).to("anvil", dtype)
        total = x.cpu().double() + residual.cpu().double()
        normed, kept = one_op("fused_add_rms_norm_", norm, x.clone(), residual)
        assert kept is residual
        assert_close(normed, F.rms_norm(total, (12,), scale, 1e-5), dtype)
        assert_close(kept, total, dtype)


def test_rms_norm_of_a_part_and_without_weight() -> None:
    x = normal(5, 12)
    part = layernorm.RMSNorm(12, eps=1e-5, var_hidden_size=8)
    mean = x.cpu().double()[:, :8].square().mean(-1, keepdim=True)
    assert_close(part.to("anvil")(x), x.cpu().double() * torch.rsqrt(mean + 1e-5), torch.float32)
    bare = layernorm.RMSNorm(12, eps=1e-5, has_weight=False)
    assert_close(bare(x), F.rms_norm(x.cpu().double(), (12,), None, 1e-5), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemma_rms_norm(dtype: torch.dtype) -> None:
    norm = on_device(layernorm.GemmaRMSNorm(12, eps=1e-5))
    scale = 1 + norm.weight.cpu().double()
    for x in views(dtype):
        exact = F.rms_norm(x.cpu().double(), (12,), scale, 1e-5)
        assert_close(one_op("rms_norm", norm, x), exact, dtype)
        residual = torch.rand(x.shape).to("anvil", dtype)
        before = x.clone(), residual.clone()
        total = x.cpu().double() + residual.cpu().double()
        normed, kept = one_op("fused_add_rms_norm", norm, x, residual)
        assert_close(normed, F.rms_norm(total, (12,), scale, 1e-5), dtype)
        assert_close(kept, total, dtype)
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


@pytest.mark.parametrize("affine", ["weight and bias", "weight", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: torch.dtype, affine: str) -> None:
    norm = on_device(
        layernorm.LayerNorm(
            12, elementwise_affine=affine != "none", bias=affine == "weight and bias"
        )
    )
    weight, bias = (None if t is None else t.cpu().double() for t in (norm.weight, norm.bias))
    for x in views(dtype):
        exact = F.layer_norm(x.cpu().double(), (12,), weight, bias, norm.eps)
        assert_close(one_op("layer_norm", norm, x), exact, dtype)


@pytest.mark.parametrize("name", ["silu", "gelu none", "gelu tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activations(dtype: torch.dtype, name: str) -> None:
    op, _, approximate = name.partition(" ")
    layer: Any = activation.SiluAndMul() if op == "silu" else activation.GeluAndMul(approximate)
    for x in views(dtype):
        gate, up = x.cpu().double().chunk(2, -1)
        gate = F.silu(gate) if op == "silu" else F.gelu(gate, approximate=approximate)
        assert_close(one_op(f"{op}_and_mul", layer, x), gate * up, dtype)


@pytest.mark.parametrize("name", ["GemmaRMSNorm", "LayerNorm", "SiluAndMul", "GeluAndMul"])
def test_what_an_op_does_not_take_runs_by_the_engine(name: str) -> None:
    layer = on_device(BUILD[name]())
    inputs = [normal(5, 24)[:, ::2], normal(12, 5).T]
    if name != "LayerNorm":  # torch's refuses a float64 input with weights of another dtype
        inputs.append(normal(5, 12).double())
    for x in inputs:
        before = fallbacks.copy()
        expected = layer.forward_native(x)
        assert torch.equal(layer(x).cpu(), expected.cpu())
        assert [counted for counted, _ in fallbacks - before if counted != "rms_norm"] == [name]


def test_turned_off_by_the_engines_own_switch() -> None:
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config

    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=["-SiluAndMul"]))
    with set_current_vllm_config(config):
        layer = activation.SiluAndMul()
        assert layer._forward_method == layer.forward_native
        assert activation.GeluAndMul()._forward_method != layer.forward_native


# ------------------------------------------------------------------------------------ embedding


class Rank:
    """A rank of a group of tensor-parallel ranks; its sum over them is what it holds itself."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_in_group, self.world_size = rank, size
        self.reduced = 0

    def all_reduce(self, part: Tensor) -> Tensor:
        self.reduced += 1
        return part


@pytest.mark.parametrize("hidden", [None, torch.float32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype: torch.dtype, hidden: torch.dtype | None) -> None:
    layer = embedding.VocabParallelEmbedding(70, 6, params_dtype=dtype, disable_tp=True)
    with_table(layer, normal(128, 6, dtype=dtype))
    layer.hidden_dtype = hidden
    for ids in (torch.tensor([3, 69, 0, 3]), torch.tensor([[1, 2], [68, 5]]), torch.tensor([])):
        ids = ids.long().to("anvil")
        rows = one_op("embedding", layer, ids)
        assert rows.dtype == (hidden or dtype)
        expected = F.embedding(ids.cpu(), layer.weight.cpu()).to(rows.dtype)
        assert torch.equal(rows.cpu(), expected)
        assert torch.equal(one_op("embedding", layer, ids.int()), rows)
        assert torch.equal(layer(ids.short()), rows)


@pytest.mark.parametrize("ids", [[-1], [128], [3, 2**40]])
def test_an_id_outside_the_table_is_refused(ids: list[int]) -> None:
    layer = embedding.VocabParallelEmbedding(70, 6, disable_tp=True)
    with_table(layer, normal(128, 6))
    with pytest.raises((IndexError, RuntimeError)):
        layer(torch.tensor(ids, device="anvil"))
        torch.accelerator.synchronize()


@pytest.mark.parametrize("hidden", [None, torch.float32])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("added", [0, 10])
def test_embedding_of_a_rank(added: int, size: int, hidden: torch.dtype | None) -> None:
    vocabulary = 100
    ids = torch.arange(vocabulary + added).view(2, -1).to("anvil")
    outside = torch.tensor([-5, vocabulary + added, 2**40], device="anvil")
    total = None
    for rank in range(size):
        group = Rank(rank, size)
        layer = embedding.VocabParallelEmbedding(
            vocabulary + added,
            6,
            params_dtype=torch.bfloat16,
            org_num_embeddings=vocabulary,
            padding_size=8,
            parallel_group=group,
        )
        assert type(layer).__name__ == "AnvilVocabParallelEmbedding"
        everything = normal(layer.num_embeddings_padded, 6, dtype=torch.bfloat16)
        rows = layer.num_embeddings_per_partition
        with_table(layer, everything[rank * rows : (rank + 1) * rows])
        layer.hidden_dtype = hidden
        part = layer(ids)
        assert group.reduced == 1
        assert part.dtype == (hidden or torch.bfloat16)
        total = part if total is None else total + part
        assert not layer(outside).any()
        layer.reduce_results = False
        assert torch.equal(layer(ids), part)
        assert group.reduced == 2
    # The engine says where each id's row lies when the shards are put together.
    place = torch.tensor(layer.get_sharded_to_full_mapping())[: vocabulary + added]
    assert torch.equal(total.cpu(), everything.cpu()[place].view(*ids.shape, 6).to(total.dtype))


def test_another_method_of_embedding_is_left_to_itself() -> None:
    class Doubling(embedding.UnquantizedEmbeddingMethod):
        def embedding(self, layer: torch.nn.Module, input_: Tensor) -> Tensor:
            return 2 * super().embedding(layer, input_)

    layer = embedding.VocabParallelEmbedding(
        70, 6, params_dtype=torch.bfloat16, disable_tp=True, quant_method=Doubling()
    )
    with_table(layer, normal(128, 6, dtype=torch.bfloat16))
    layer.hidden_dtype = torch.float32
    ids = torch.tensor([3, 69], device="anvil")
    assert torch.equal(layer(ids), 2 * layer.weight[ids].float())


def test_the_language_model_head_stays_the_engines() -> None:
    head = embedding.ParallelLMHead(70, 6, disable_tp=True)
    assert type(head) is embedding.ParallelLMHead
    table = embedding.VocabParallelEmbedding(70, 6, disable_tp=True)
    assert head.tie_weights(table).weight is table.weight
    with pytest.raises(RuntimeError, match="sampler"):
        head(torch.tensor([1]))
