# SPDX-License-Identifier: Apache-2.0
"""Sampling shared out over tensor parallel ranks: the plan, and the outputs brought together.

All ranks run here, one after the other. What they would gather is recorded in a first pass, in
which they receive something meaningless, and given to them in a second.
"""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample import batch_shard
from vllm.v1.worker.gpu.sample.batch_shard import BatchSharder, gather_sampler_output
from vllm.v1.worker.gpu.sample.output import SamplerOutput

MODULE = "vllm.v1.worker.gpu.sample.batch_shard"
RANKS = 3
STATES = [4, 9, 1, 0, 3, 6, 2, 12]
NUM_LOGITS = [1, 4, 2, 1, 3, 1, 4, 2]
QUERIES = [5, 4, 2, 1, 7, 1, 4, 3]


def make_batch(device: torch.device) -> InputBatch:
    count = len(STATES)
    fields = dict.fromkeys(InputBatch.__dataclass_fields__)
    fields |= {
        "req_ids": [str(i) for i in range(count)],
        "num_reqs": count,
        "idx_mapping": int32(STATES, device),
        "idx_mapping_np": np.array(STATES, dtype=np.int32),
        "expanded_idx_mapping": int32(np.repeat(STATES, NUM_LOGITS), device),
        "expanded_local_pos": int32(np.concatenate([np.arange(n) for n in NUM_LOGITS]), device),
        "query_start_loc": offsets(QUERIES).to(device),
        "seq_lens": int32(np.arange(count) * 10 + 100, device),
        "seq_lens_cpu_upper_bound": int32(np.arange(count) * 10 + 100),
        "cu_num_logits": offsets(NUM_LOGITS).to(device),
        "cu_num_logits_np": offsets(NUM_LOGITS).numpy(),
        "num_draft_tokens": sum(NUM_LOGITS) - count,
        "num_draft_tokens_per_req": np.array(NUM_LOGITS) - 1,
    }
    return InputBatch(**fields)


def shard(monkeypatch: pytest.MonkeyPatch, device: torch.device, rank: int) -> tuple:
    group = SimpleNamespace(rank_in_group=rank, world_size=RANKS)
    monkeypatch.setattr(batch_shard, "get_tp_group", lambda: group)
    batch = make_batch(device)
    return batch, *BatchSharder(10, 5, device).shard_sampler_inputs(batch, None)


def owned(rank: int) -> list[int]:
    return [i for i, state in enumerate(STATES) if state % RANKS == rank]


@pytest.mark.checks(f"{MODULE}:_build_shard_plan_kernel")
def test_plan(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = np.concatenate([[0], np.cumsum(QUERIES)])
    logit_indices = [
        list(range(starts[i + 1] - n, starts[i + 1])) for i, n in enumerate(NUM_LOGITS)
    ]
    order = [i for rank in range(RANKS) for i in owned(rank)]
    longest = max(len(owned(rank)) for rank in range(RANKS))
    sources = [
        STATES[i] % RANKS * longest + owned(STATES[i] % RANKS).index(i) for i in range(len(STATES))
    ]
    for rank in range(RANKS):
        _, local, sorted_indices, _, plan = shard(monkeypatch, device, rank)
        mine = owned(rank)
        assert_equal(sorted_indices, int64(list(chain(*(logit_indices[i] for i in order)))))
        assert_equal(plan.gathered_src_indices, int64(sources))
        assert_equal(local.idx_mapping, int32([STATES[i] for i in mine]))
        assert_equal(local.cu_num_logits, offsets([NUM_LOGITS[i] for i in mine]))
        assert_equal(local.logits_indices, int64(list(chain(*(logit_indices[i] for i in mine)))))
        counts = [NUM_LOGITS[i] for i in mine]
        assert_equal(
            local.expanded_idx_mapping, int32(np.repeat([STATES[i] for i in mine], counts))
        )
        assert_equal(
            local.expanded_local_pos, int32(np.concatenate([np.arange(n) for n in counts]))
        )
        assert_equal(local.seq_lens, int32([100 + 10 * i for i in mine]))


def whole_output(with_nans: bool) -> SamplerOutput:
    """What one rank would have sampled for the whole batch."""
    random = np.random.default_rng(8)
    count, logits, widest = len(STATES), sum(NUM_LOGITS), max(NUM_LOGITS)
    return SamplerOutput(
        sampled_token_ids=int64(random.integers(0, 2**17, (count, widest))),
        logprobs_tensors=LogprobsTensors(
            logprob_token_ids=int64(random.integers(0, 2**17, (logits, 6))),
            logprobs=torch.from_numpy(random.normal(size=(logits, 6)).astype(np.float32)),
            selected_token_ranks=int64(random.integers(1, 999, logits)),
        ),
        num_nans=int32(random.integers(0, 3, logits)) if with_nans else None,
        num_sampled=int32(random.integers(1, 4, count)),
        num_rejected=int32(random.integers(0, 4, count)),
    )


def local_output(whole: SamplerOutput, rank: int, device: torch.device) -> SamplerOutput:
    mine = owned(rank)
    starts = offsets(NUM_LOGITS)
    rows = torch.cat([torch.arange(int(starts[i]), int(starts[i + 1])) for i in mine])
    scores = whole.logprobs_tensors
    return SamplerOutput(
        sampled_token_ids=Rows(whole.sampled_token_ids[mine], device).view,
        logprobs_tensors=LogprobsTensors(
            logprob_token_ids=Rows(scores.logprob_token_ids[rows], device).view,
            logprobs=Rows(scores.logprobs[rows], device).view,
            selected_token_ranks=scores.selected_token_ranks[rows].to(device),
        ),
        num_nans=None if whole.num_nans is None else whole.num_nans[rows].to(device),
        num_sampled=whole.num_sampled[mine].to(device),
        num_rejected=whole.num_rejected[mine].to(device),
    )


@pytest.mark.checks(
    f"{MODULE}:_pack_sampler_output_kernel",
    f"{MODULE}:_unpack_gathered_output_kernel",
    f"{MODULE}:_pack_logprobs_kernel",
    f"{MODULE}:_unpack_logprobs_kernel",
)
@pytest.mark.parametrize("with_nans", [False, True])
@pytest.mark.parametrize("columns", [4, 6, 9], ids="{} columns".format)
def test_gather(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, with_nans: bool, columns: int
) -> None:
    whole = whole_output(with_nans)
    sent: list[list[Tensor]] = [[] for _ in range(RANKS)]
    results: list[SamplerOutput] = []
    for gathering in (False, True):
        for rank in range(RANKS):
            calls = iter(range(3))

            def all_gather(
                tensor: Tensor,
                dim: int,
                rank: int = rank,
                calls: object = calls,
                gathering: bool = gathering,
            ) -> Tensor:
                call = next(calls)
                if not gathering:
                    sent[rank].append(tensor)
                return torch.cat([s[call] if gathering else tensor for s in sent])

            monkeypatch.setattr(batch_shard, "tensor_model_parallel_all_gather", all_gather)
            batch, local, _, _, plan = shard(monkeypatch, device, rank)
            output = gather_sampler_output(
                local_output(whole, rank, device),
                plan,
                device,
                batch,
                local,
                with_nans,
                (columns - 1, 0),
            )
            if gathering:
                results.append(output)
    scores = whole.logprobs_tensors
    width = min(columns, 6)
    for output in results:
        assert_equal(output.sampled_token_ids, whole.sampled_token_ids)
        assert_equal(output.num_sampled, whole.num_sampled)
        assert_equal(output.num_rejected, whole.num_rejected)
        if with_nans:
            per_request = torch.split(whole.num_nans, NUM_LOGITS)
            assert_equal(output.num_nans, int32([int(n.sum()) for n in per_request]))
        found = output.logprobs_tensors
        assert_equal(found.selected_token_ranks, scores.selected_token_ranks)
        assert_equal(found.logprob_token_ids[:, :width], scores.logprob_token_ids[:, :width])
        assert_equal(found.logprobs[:, :width], scores.logprobs[:, :width])
        # A wider agreed width is filled up.
        assert (found.logprob_token_ids[:, width:] == 0).all()
        assert (found.logprobs[:, width:] == -torch.inf).all()
