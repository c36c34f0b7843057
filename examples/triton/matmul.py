# SPDX-License-Identifier: Apache-2.0
"""A matrix product in tiles, whose sizes are tuned."""

import torch
import triton
import triton.language as tl
from comparison import compare

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)

TILES = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k})
    for m, n, k in [(32, 64, 64), (64, 64, 128), (64, 128, 256)]
]


@triton.autotune(configs=TILES, key=["M", "N", "K"])
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_stride, b_stride, c_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inner = tl.arange(0, BLOCK_K)
    a_place = a_ptr + row * a_stride + inner[None, :]
    b_place = b_ptr + inner[:, None] * b_stride + column
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        left = inner < K - start
        a = tl.load(a_place, mask=(row < M) & left[None, :], other=0.0)
        b = tl.load(b_place, mask=left[:, None] & (column < N), other=0.0)
        total = tl.dot(a, b, total)
        a_place += BLOCK_K
        b_place += BLOCK_K * b_stride
    tl.store(c_ptr + row * c_stride + column, total, mask=(row < M) & (column < N))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N], both with contiguous rows and of one dtype; float32."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device)

    def grid(tile: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(m, tile["BLOCK_M"]), triton.cdiv(n, tile["BLOCK_N"])

    matmul_kernel[grid](a, b, c, m, n, k, a.stride(0), b.stride(0), c.stride(0))
    return c


def main() -> None:
    a, b = torch.randn(500, 700, device="anvil"), torch.randn(700, 600, device="anvil")
    compare("matmul", lambda: matmul(a, b), lambda: a @ b, tolerance=1e-4)


if __name__ == "__main__":
    main()
