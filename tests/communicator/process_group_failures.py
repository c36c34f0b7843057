# SPDX-License-Identifier: Apache-2.0
"""What a rank sees when another cannot go on, as a program of each rank.

    process_group_failures.py RANK WORLD_SIZE RENDEZVOUS_FILE SCENARIO

prints one JSON object on its last line.
"""

import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import vllm_anvil.device as anvil
from vllm_anvil.device.distributed import backend_of


def error_of(tensor: torch.Tensor) -> str:
    """What an all-reduce and waiting for it raise."""
    try:
        dist.all_reduce(tensor)
        torch.anvil.synchronize()
    except RuntimeError as error:
        return str(error)
    return ""


def killed(rank: int) -> dict[str, object]:
    """Rank 1 dies in the middle of its work."""
    tensor = torch.ones(1 << 20, device="anvil")
    dist.all_reduce(tensor)
    torch.anvil.synchronize()
    if rank == 1:
        dist.all_reduce(tensor)
        os.kill(os.getpid(), signal.SIGKILL)
    error = ""
    while not error:
        error = error_of(tensor)
    begin = time.monotonic()
    again = error_of(tensor)
    return {"error": error, "again": again, "seconds": time.monotonic() - begin}


def late(rank: int) -> dict[str, object]:
    """Rank 1 comes too late."""
    tensor = torch.ones(10, device="anvil")
    dist.all_reduce(tensor)
    torch.anvil.synchronize()
    if rank == 1:
        time.sleep(3)
    return {"error": error_of(tensor)}


def carried_by_work(rank: int) -> dict[str, object]:
    """A failure is with the work as well."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10, device="anvil"), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    raised = ""
    try:
        work.wait()
    except RuntimeError as error:
        raised = str(error)
    return {"success": work.is_success(), "raised": raised}


def apart(rank: int) -> dict[str, object]:
    """Ranks that may not share memory; and a smaller group."""
    backend = backend_of(dist.group.WORLD)
    tensor = torch.arange(100_000, device="anvil", dtype=torch.float32) * (rank + 1)
    small = torch.full((10,), rank + 1, device="anvil", dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    dist.all_reduce(small)
    gathered = torch.empty(2 * dist.get_world_size(), device="anvil")
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank), device="anvil"))
    graph.replay()
    dist.barrier(device_ids=[0])
    return {
        "reason": backend.fallback_reason,
        "sums": [tensor[1].item(), tensor[-1].item(), small[0].item()],
        "gathered": gathered.tolist(),
    }


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=1 if sys.argv[4] == "late" else 60)
    dist.init_process_group(
        "anvil",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    assert anvil.is_available()
    scenario = globals()[sys.argv[4]]
    print(json.dumps(scenario(rank)), flush=True)
    # A group that failed has nothing to take leave of.
    os._exit(0)


if __name__ == "__main__":
    main()
