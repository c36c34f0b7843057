# SPDX-License-Identifier: Apache-2.0
"""Kills processes of engines of two ranks: `python death_run.py SCENARIOS.json FOLDER MODEL`.

SCENARIOS: {name: {"victim": "rank" or "front", "moment": "idle", "collective", or words of the
log}}. For each FOLDER/name.json: {"seconds" from the kill to the end of the last process, "status"
of the front as `os.waitstatus_to_exitcode` has it, "victim": its process, "left": processes,
"segments": how many files in /dev/shm they shared, "segments_left": which are still there, "log"}.
Fronts are forked one after the other, so that the engine is imported once for all, and each proves
that what was killed before is in nobody's way.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PATIENCE_S = 300  # for a start or an end on a busy machine


class Stuck:
    """Methods that the workers get."""

    rank: int

    def enter_collective(self) -> None:
        """The first rank waits in an all-reduce for the second, which does not come."""
        import torch
        from vllm.distributed import tensor_model_parallel_all_reduce

        if self.rank == 0:
            print("IN COLLECTIVE", flush=True)
            tensor_model_parallel_all_reduce(torch.ones(8, device="anvil"))
            torch.accelerator.synchronize()
        else:
            time.sleep(PATIENCE_S)


def front(model: str, moment: str, told: Path) -> None:
    """What a user's program does: asks for tokens, and is told where that fails."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        max_model_len=256,
        max_num_seqs=256,
        tensor_parallel_size=2,
        worker_extension_cls="death_run.Stuck",
        # Takes a while.
        compilation_config={"cudagraph_capture_sizes": list(range(1, 257))},
    )
    prompt: Any = {"prompt_token_ids": [5, 6, 7]}
    short = SamplingParams(temperature=0, max_tokens=4)
    llm.generate(prompt, short, use_tqdm=False)
    print("READY", flush=True)
    if moment == "collective":
        llm.collective_rpc("enter_collective")
    while not told.exists():
        time.sleep(0.01)
    llm.generate(prompt, short, use_tqdm=False)


def processes_of(session: int) -> list[int]:
    """Processes that still belong to a session, zombies excepted."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def segments_of(processes: list[int]) -> set[str]:
    """Files in /dev/shm that these processes have mapped."""
    found: set[str] = set()
    for process in processes:
        try:
            maps = Path(f"/proc/{process}/maps").read_text()
        except OSError:
            continue
        found |= set(re.findall(r"/dev/shm/\S+", maps))
    return {name for name in found if Path(name).exists()}


def title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def await_(condition: Any) -> Any:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            return result
        time.sleep(0.01)
    return result


def run(scenario: dict[str, str], model: str, log: Path) -> dict[str, Any]:
    told = log.with_suffix(".told")
    child = os.fork()
    if child == 0:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1), os.dup2(file, 2)
        try:
            front(model, scenario["moment"], told)
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        sys.exit(0)
    words = {"idle": "READY", "collective": "IN COLLECTIVE"}.get(
        scenario["moment"], scenario["moment"]
    )
    status: int | None = None

    def ended() -> bool:
        nonlocal status
        if status is None:
            pid, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
        return status is not None

    await_(lambda: (log.exists() and words in log.read_text()) or ended())
    everybody = processes_of(child)
    segments = segments_of(everybody)
    if scenario["victim"] == "front":
        victim = child
    else:
        (victim,) = [one for one in everybody if title(one) == "VLLM::Worker_TP1"]
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    told.touch()
    await_(lambda: ended() and not processes_of(child))
    seconds = time.monotonic() - begin
    left = {one: title(one) for one in processes_of(child)}
    for one in left:
        os.kill(one, signal.SIGKILL)
    return {
        "seconds": seconds,
        "status": status,
        "victim": victim,
        "left": left,
        "segments": len(segments),
        "segments_left": sorted(name for name in segments if Path(name).exists()),
        "log": log.read_text(),
    }


def main(scenarios: str, folder: str, model: str) -> None:
    import vllm.v1.worker.gpu_worker  # noqa: F401  for all of them
    from vllm import LLM  # noqa: F401

    for name, scenario in json.loads(Path(scenarios).read_text()).items():
        result = run(scenario, model, Path(folder, f"{name}.log"))
        Path(folder, f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
