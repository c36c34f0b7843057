# SPDX-License-Identifier: Apache-2.0
"""Causal attention without a matrix of scores in memory: softmax is kept up while keys come in."""

import math

import torch
import triton
import triton.language as tl
from comparison import compare

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale,
    HEAD_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64) * length * HEAD_SIZE
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, HEAD_SIZE)
    q_place = head + row[:, None] * HEAD_SIZE + feature[None, :]
    q = tl.load(q_ptr + q_place, mask=row[:, None] < length, other=0.0)
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    out = tl.zeros((BLOCK_M, HEAD_SIZE), tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * BLOCK_M, length), BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        place = head + column[:, None] * HEAD_SIZE + feature[None, :]
        k = tl.load(k_ptr + place, mask=column[:, None] < length, other=0.0)
        v = tl.load(v_ptr + place, mask=column[:, None] < length, other=0.0)
        score = tl.dot(q, tl.trans(k)) * scale
        seen = (column[None, :] <= row[:, None]) & (column[None, :] < length)
        score = tl.where(seen, score, float("-inf"))
        new_most = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp(score - new_most[:, None])
        shrink = tl.exp(most - new_most)
        total = total * shrink + tl.sum(weight, 1)
        out = tl.dot(weight.to(v.dtype), v, out * shrink[:, None])
        most = new_most
    tl.store(out_ptr + q_place, out / total[:, None], mask=row[:, None] < length)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention; q, k, v: [heads, length, head size], contiguous, of one float dtype."""
    heads, length, head_size = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 64), heads)
    attention_kernel[grid](
        q, k, v, out, length, 1 / math.sqrt(head_size),
        HEAD_SIZE=head_size, BLOCK_M=64, BLOCK_N=64,
    )  # fmt: skip
    return out


def main() -> None:
    q, k, v = (torch.randn(4, 333, 64, device="anvil") for _ in range(3))

    def pytorch() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    compare("fused attention", lambda: attention(q, k, v), pytorch, tolerance=1e-5)


if __name__ == "__main__":
    main()
