# SPDX-License-Identifier: Apache-2.0
"""Attention whose keys are spread over ranks, and queries laid out by sequence."""

import math

import pytest
import torch
from comparison import assert_equal, int32, place
from vllm.v1.attention.ops import dcp
from vllm.v1.attention.ops.common import pack_seq_triton, unpack_seq_triton

CORRECT = "vllm.v1.attention.ops.dcp:CorrectAttnCPOutKernel.kernel"
PACK = "vllm.v1.attention.ops.common:PackSeqTritonKernel.kernel"
SEND = "vllm.v1.attention.ops.dcp:_dcp_a2a_pack_send_kernel"
COMBINE = "vllm.v1.attention.ops.dcp:_dcp_a2a_unpack_combine_kernel"
UNPACK = "vllm.v1.attention.ops.common:UnpackSeqTritonKernel.kernel"


@pytest.mark.checks(CORRECT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("natural", [False, True])
def test_share_of_a_rank(device: torch.device, dtype: torch.dtype, natural: bool) -> None:
    torch.manual_seed(1)
    ranks, rank, tokens, heads, width = 4, 2, 5, 3, 64
    output = torch.randn(tokens, heads, width).to(dtype)
    lses = torch.randn(ranks, tokens, heads) * 4
    # Ranks without keys, told in each way that they are.
    lses[0, 0, 0], lses[1, 1, 0], lses[3, 2, 0] = torch.nan, torch.inf, -torch.inf

    corrected, lse = dcp.correct_attn_out(
        *place(device, output, lses), rank, dcp.CPTritonContext(), is_lse_base_on_e=natural
    )

    base = 1.0 if natural else math.log(2)
    known = lses.double().nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    known = known.masked_fill(known < -1e300, -torch.inf) * base
    total = known.logsumexp(0)
    torch.testing.assert_close(lse.cpu().double(), total / base, rtol=1e-6, atol=1e-6)
    expected = output.double() * torch.exp(known[rank] - total)[..., None]
    rounding = max(torch.finfo(dtype).eps / 2 * 1.001, 4e-6)
    torch.testing.assert_close(corrected.cpu().double(), expected, rtol=rounding, atol=1e-30)


@pytest.mark.checks(PACK, UNPACK)
@pytest.mark.parametrize(("dtype", "pad"), [(torch.bfloat16, -math.inf), (torch.uint8, 9)])
def test_rows_of_sequences(device: torch.device, dtype: torch.dtype, pad: float) -> None:
    torch.manual_seed(2)
    lengths = [3, 0, 70, 1]
    values = (torch.rand(sum(lengths), 3, 30) * 200).to(dtype)

    packed = pack_seq_triton(values.to(device), int32(lengths, device), pad)
    again = unpack_seq_triton(packed, int32(lengths, device))

    expected = torch.full((len(lengths), max(lengths), 3, 30), pad).to(dtype)
    for row, part in enumerate(values.split(lengths)):
        expected[row, : len(part)] = part
    assert_equal(packed, expected)
    assert_equal(again, values)


@pytest.mark.checks(SEND, COMBINE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("natural", [False, True])
def test_exchange_of_ranks(device: torch.device, dtype: torch.dtype, natural: bool) -> None:
    """Every rank attends to its keys with all heads, and puts a share of the heads together."""
    torch.manual_seed(3)
    ranks, tokens, heads, width = 3, 5, 2, 64
    outputs = torch.randn(ranks, tokens, ranks * heads, width).to(dtype)
    lses = torch.randn(ranks, tokens, ranks * heads) * 3
    lses[1, 0, 0] = -torch.inf
    extra = dcp._dcp_a2a_lse_pack_dim(dtype)
    sent = torch.zeros(ranks, ranks, tokens, heads, width + extra, dtype=dtype, device=device)

    for rank in range(ranks):
        dcp._dcp_a2a_pack_send(
            *place(device, outputs[rank], lses[rank]), sent[rank], ranks, heads, width, extra
        )
    received = sent.transpose(0, 1).contiguous()
    base = 1.0 if natural else math.log(2)
    for rank in range(ranks):
        combined, lse = dcp._dcp_a2a_unpack_combine(received[rank], width, extra, True, natural)

        mine = slice(rank * heads, (rank + 1) * heads)
        known = lses[:, :, mine].double() * base
        total = known.logsumexp(0)
        weights = torch.exp(known - total)[..., None]
        expected = (weights * outputs[:, :, mine].double()).sum(0)
        size = (weights * outputs[:, :, mine].double().abs()).sum(0)
        error = (combined.cpu().double() - expected).abs()
        assert (error <= torch.finfo(dtype).eps * 4 * size).all()
        torch.testing.assert_close(lse.cpu().double(), total / base, rtol=1e-6, atol=1e-6)
