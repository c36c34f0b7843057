# SPDX-License-Identifier: Apache-2.0
"""The engine's interface for a fused update: each of its methods is the layers one by one."""

import torch
from vllm.v1.attention.backend import AttentionType

from anvil_attention.impl import AnvilAttentionImpl
from vllm_anvil.ops.norm import rms_norm
from vllm_anvil.ops.rotary import rotary_embedding

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS = 6, 2, 16, 4, 40


def layer(**changes: object) -> AnvilAttentionImpl:
    return AnvilAttentionImpl(HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, **changes)


class FusedUpdate:
    """A step's arguments for the engine's fused updates, and what its layers give one by one."""

    def __init__(self, device: torch.device, *, normed: bool, axes: int = 1) -> None:
        generator = torch.Generator().manual_seed(3)
        tokens, size = 5, (HEADS + 2 * KV_HEADS) * HEAD_SIZE
        self.qkv = torch.randn(tokens, size, generator=generator).to(device)
        shape = (tokens,) if axes == 1 else (axes, tokens)
        self.positions = torch.randint(9, shape, generator=generator).to(device)
        self.slots = torch.tensor([6, -1, 0, 17, 3], device=device)
        self.angles = torch.randn(9, HEAD_SIZE, generator=generator).to(device)
        self.weights = [
            torch.randn(HEAD_SIZE, generator=generator).to(device) if normed else None
            for _ in range(2)
        ]
        self.section = [] if axes == 1 else [3, 3, 2]
        cache = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
        self.cache = torch.zeros(cache, dtype=torch.bfloat16, device=device)
        self.impl = layer()

        self.query, self.key, self.value = self.parts()
        if normed:
            self.query, self.key = (
                rms_norm(states, weight, 1e-6)
                for states, weight in zip((self.query, self.key), self.weights, strict=True)
            )
        rotary_embedding(
            self.positions, self.query, self.key, HEAD_SIZE, self.angles, True, self.section
        )
        self.written = self.cache.clone()
        self.impl.do_kv_cache_update(
            torch.nn.Identity(), self.key, self.value, self.written, self.slots
        )

    def parts(self) -> list[torch.Tensor]:
        """Copies of queries, keys and values, [tokens, heads, HEAD_SIZE]."""
        sizes = [n * HEAD_SIZE for n in (HEADS, KV_HEADS, KV_HEADS)]
        return [p.reshape(-1, p.shape[1] // HEAD_SIZE, HEAD_SIZE).clone()
                for p in self.qkv.split(sizes, -1)]  # fmt: skip

    def check(self, query: torch.Tensor, key: torch.Tensor | None) -> None:
        assert torch.equal(query.cpu(), self.query.cpu())
        assert key is None or torch.equal(key.cpu(), self.key.cpu())
        assert torch.equal(self.cache.cpu(), self.written.cpu())
        assert self.written.count_nonzero() > 0


def test_fused_rope_and_cache_update(device: torch.device) -> None:
    step = FusedUpdate(device, normed=False)
    assert step.impl.fused_rope_kvcache_supported()
    query, key, value = step.parts()
    step.impl.do_rope_and_kv_cache_update(
        torch.nn.Identity(), query, key, value, step.positions, step.angles, True, step.cache,
        step.slots,
    )  # fmt: skip
    step.check(query, key)


def test_fused_norm_rope_and_cache_update(device: torch.device) -> None:
    step = FusedUpdate(device, normed=True)
    assert step.impl.fused_qk_norm_rope_kvcache_supported()
    qkv = step.qkv.clone()
    query, key, _ = (torch.empty_like(part) for part in step.parts())
    step.impl.do_qk_norm_rope_kvcache_update(
        torch.nn.Identity(), step.qkv, query, key, step.positions, *step.weights, 1e-6,
        step.angles, True, step.cache, step.slots,
    )  # fmt: skip
    step.check(query, key)
    assert torch.equal(step.qkv.cpu(), qkv.cpu())


def test_fused_norm_mrope_and_cache_update(device: torch.device) -> None:
    step = FusedUpdate(device, normed=True, axes=3)
    assert step.impl.fused_qk_norm_mrope_kvcache_supported()
    query = torch.empty_like(step.query)
    step.impl.do_qk_norm_mrope_kvcache_update(
        torch.nn.Identity(), step.qkv, query, step.positions, *step.weights, 1e-6, step.angles,
        True, (3, 3, 2), False, HEAD_SIZE, step.cache, step.slots,
    )  # fmt: skip
    step.check(query, None)


def test_encoders_have_no_fused_update() -> None:
    impl = layer(attn_type=AttentionType.ENCODER_ONLY)
    assert not impl.fused_rope_kvcache_supported()
    assert not impl.fused_qk_norm_rope_kvcache_supported()
    assert not impl.fused_qk_norm_mrope_kvcache_supported()
