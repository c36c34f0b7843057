# SPDX-License-Identifier: Apache-2.0
"""Inputs beside token ids: multi-dimensional positions, and embeddings given with a prompt."""

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, offsets
from vllm.triton_utils import triton
from vllm.v1.worker.gpu.mm.rope import _prepare_rope_positions_kernel
from vllm.v1.worker.gpu.model_states.prompt_embeds import (
    TOKEN_BLOCK,
    _apply_prompt_embeds_kernel,
)


@pytest.mark.checks("vllm.v1.worker.gpu.mm.rope:_prepare_rope_positions_kernel")
@pytest.mark.parametrize("dims", [3, 4])
def test_rope_positions(device: torch.device, dims: int) -> None:
    states, lengths, max_len = [2, 0, 3], [1030, 1, 5], 2000
    prefill, computed = int32([10, 7, 1500, 4]), int32([10, 0, 400, 900])
    deltas = int32([-3, 0, 0, 12])
    prompt = int32(np.random.default_rng(0).integers(0, 9999, (4 * dims, max_len)))
    positions = Rows(torch.full((dims, sum(lengths) + 9), -6, dtype=torch.int64), device, 0, 1)
    starts = offsets(lengths)
    _prepare_rope_positions_kernel[(len(states),)](
        positions.view,
        positions.view.stride(0),
        prompt.to(device),
        dims * max_len,
        max_len,
        deltas.to(device),
        int32(states, device),
        starts.to(device),
        prefill.to(device),
        computed.to(device),
        BLOCK_SIZE=1024,
        NUM_DIMS=dims,
    )
    expected = torch.full((dims, sum(lengths) + 9), -6)
    for row, state in enumerate(states):
        begin, end = int(computed[state]), int(computed[state]) + lengths[row]
        if begin < prefill[state]:
            values = prompt.view(4, dims, max_len)[state, :, begin:end].long()
        else:
            # Generated tokens follow the prompt's highest position, the same in every dimension.
            values = (torch.arange(begin, end) + deltas[state]).expand(dims, -1)
        expected[:, starts[row] : starts[row + 1]] = values
    assert_equal(positions.cpu(), expected)


@pytest.mark.checks("vllm.v1.worker.gpu.model_states.prompt_embeds:_apply_prompt_embeds_kernel")
@pytest.mark.parametrize(
    ("dtype", "hidden"), [(torch.bfloat16, 1027), (torch.float16, 64), (torch.float32, 2048)]
)
def test_prompt_embeddings(device: torch.device, dtype: torch.dtype, hidden: int) -> None:
    torch.manual_seed(0)
    states, lengths = [1, 3, 0, 2], [40, 5, 3, 2]
    # Request 1 is scheduled beyond its embeddings; 3 mixes them with token ids; 0 has none; 2 has
    # consumed its own.
    counts, computed = [0, 33, 6, 90], int32([0, 3, 6, 17])
    embeds = {s: torch.randn(n, hidden).to(dtype) for s, n in enumerate(counts) if n}
    is_token = (torch.arange(90) % 3 == 1).to(torch.uint8)
    held = {state: values.to(device) for state, values in embeds.items()}
    held_mask = is_token.to(device)
    pointers = [held[s].data_ptr() if s in held else 0 for s in range(4)]
    masks = [0, 0, 0, held_mask.data_ptr()]
    inputs = torch.randn(sum(lengths), hidden).to(dtype)
    target = Rows(inputs, device)
    _apply_prompt_embeds_kernel[(len(states), triton.cdiv(max(lengths), TOKEN_BLOCK))](
        target.view,
        target.view.stride(0),
        torch.tensor(pointers, dtype=torch.uint64).to(device),
        torch.tensor(masks, dtype=torch.uint64).to(device),
        int32(counts, device),
        int32(states, device),
        offsets(lengths).to(device),
        computed.to(device),
        hidden,
        TOKEN_BLOCK=TOKEN_BLOCK,
        BLOCK_SIZE=1024,
    )
    starts = offsets(lengths)
    for row, state in enumerate(states):
        for token in range(lengths[row]):
            source = int(computed[state]) + token
            if source < counts[state] and not (state == 3 and is_token[source]):
                inputs[starts[row] + token] = embeds[state][source]
    assert_equal(target.cpu(), inputs)
