# SPDX-License-Identifier: Apache-2.0
"""Which models get float32 hidden states, and what changes in them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("platform")

PROGRAM = """
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm_anvil.plugin import custom_ops, seams
from vllm_anvil.plugin.seams import hidden_states

if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig()):
        seams.apply(["unquantized_gemm"])
        custom_ops.register()
        custom_ops.register()
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        init_distributed_environment(1, 0, "file://{rendezvous}", 0, "gloo")
        initialize_model_parallel()
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm
        from vllm.model_executor.layers.linear import ReplicatedLinear
        from vllm.model_executor.layers.rotary_embedding import get_rope
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        from vllm.model_executor.layers.attention.mla_attention import MLAAttention
        from anvil_attention.mla_backend import AnvilMLABackend, AnvilMLAPrefillBackend

        torch.set_default_dtype(torch.{dtype})
        made = []

        class Model(torch.nn.Module):
            def __init__(self, extra=None):
                super().__init__()
                self.embed = VocabParallelEmbedding(64, 32)
                self.norm = RMSNorm(32)
                self.other_norms = torch.nn.ModuleList([GemmaRMSNorm(32), LayerNorm(32)])
                self.proj = ReplicatedLinear(32, 48)
                self.attention = MLAAttention(
                    num_heads=2, scale=1.0, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
                    q_lora_rank=None, kv_lora_rank=16, prefix=f"attention{{len(made)}}",
                    kv_b_proj=ReplicatedLinear(16, 28, bias=False),
                    attn_backend=AnvilMLABackend, prefill_backend_cls=AnvilMLAPrefillBackend,
                )
                made.append(self)
                self.rope = get_rope(16, 128, rope_parameters={{"rope_theta": 10000.0}})
                if extra is not None:
                    self.extra = extra

        with torch.device("anvil"):
            model = Model()
            torch.nn.init.normal_(model.embed.weight)
            torch.nn.init.normal_(model.proj.weight)
            torch.nn.init.zeros_(model.proj.bias)
            torch.nn.init.normal_(model.attention.kv_b_proj.weight)
            mixed = Model(torch.nn.LayerNorm(32))
        for one in made:
            one.attention.process_weights_after_loading(torch.{dtype})
        assert type(model.embed).__name__ == "AnvilVocabParallelEmbedding"
        assert model.norm.weight.dtype == torch.float32
        ids = torch.arange(5, device="anvil")
        assert not hidden_states.may_widen(mixed)
        assert mixed.embed(ids).dtype == torch.{dtype}
        widened = hidden_states.may_widen(model)
        assert widened == (torch.{dtype} != torch.float32)
        if widened:
            hidden_states.widen(model)
        hidden = model.norm(model.embed(ids))
        assert hidden.dtype == torch.float32
        for norm in model.other_norms:
            assert norm.weight.dtype == torch.float32
            assert norm(hidden).dtype == torch.float32
            assert norm(hidden.to(torch.{dtype})).dtype == torch.{dtype}
        output = model.proj(hidden)[0]
        assert output.dtype == torch.float32
        exact = hidden.double() @ model.proj.weight.double().T
        assert (output.double() - exact).abs().max() < 1e-4
        # What the engine multiplies float32 queries and outputs with, made of a weight that stays.
        weight = model.attention.kv_b_proj.weight
        assert weight.dtype == torch.{dtype}
        parts = weight.float().view(2, 14, 16)
        assert torch.equal(model.attention.W_UK_T, parts[:, :8])
        assert torch.equal(model.attention.W_UV, parts[:, 8:].transpose(1, 2))
        assert mixed.attention.W_UV.dtype == torch.{dtype}
        assert model.rope.cos_sin_cache.dtype == torch.float32
        # Logits: a product with the embedding's weight is float32 whatever its input is.
        logits = model.embed.quant_method.apply(model.embed, hidden.to(torch.{dtype}))
        assert logits.dtype == torch.float32
        assert model.proj(hidden.to(torch.{dtype}))[0].dtype == torch.{dtype}
        print("checked")
"""


DTYPES = ["bfloat16", "float16", "float32"]
Results = Mapping[str, Future[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def results(
    python: Any, tmp_path_factory: pytest.TempPathFactory, at_once: Callable[..., Any]
) -> Results:
    folder = tmp_path_factory.mktemp("rendezvous")
    programs = {dtype: PROGRAM.format(dtype=dtype, rendezvous=folder / dtype) for dtype in DTYPES}
    return at_once({dtype: functools.partial(python, code) for dtype, code in programs.items()})


@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_states(dtype: str, results: Results) -> None:
    result = results[dtype].result()
    assert "checked" in result.stdout, result.stdout + result.stderr
