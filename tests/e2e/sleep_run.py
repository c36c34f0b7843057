# SPDX-License-Identifier: Apache-2.0
"""An engine that sleeps and wakes.

`python sleep_run.py JOB.json RESULT.json`. JOB: {"engine": arguments of vllm.LLM, "prompts": token
ids, "acts": names of functions below, in their order}. RESULT: {"tokens": those made before
anything else, act: what it found}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams

NEW_TOKENS = 12


class Sleeper:
    def __init__(self, job: dict[str, Any]) -> None:
        self.llm = LLM(**job["engine"])
        self.prompts: list[Any] = [{"prompt_token_ids": ids} for ids in job["prompts"]]

    def tokens(self) -> list[list[int]]:
        greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = self.llm.generate(self.prompts, greedy, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def level_1(self) -> dict[str, Any]:
        """Asleep and awake again, with the cache written all over before."""
        for cache in self._caches():
            cache.fill_(1)
        torch.anvil.synchronize()
        held, before = self._held(), _resident()
        self.llm.sleep(level=1)
        found = {
            "held": held,
            "returned": before - _resident(),
            "asleep": self._sleeping(),
            "files": _files(),
        }
        self.llm.wake_up()
        return found | {"awake": not self._sleeping(), "tokens": self.tokens()}

    def by_tag(self) -> dict[str, Any]:
        """Weights first, then the cache; what needs memory that is away says so."""
        self.llm.sleep(level=1)
        found: dict[str, Any] = {"asleep": self._refused("execute_dummy_batch")}
        found["checksums_asleep"] = self._refused("compute_weight_checksums")
        self.llm.wake_up(tags=["weights"])
        found["checksums"] = self._refused("compute_weight_checksums")
        found["cache_asleep"] = self._refused("execute_dummy_batch")
        found["between"] = self._sleeping()
        self.llm.wake_up(tags=["kv_cache"])
        return found | {"awake": not self._sleeping(), "tokens": self.tokens()}

    def level_2(self) -> dict[str, Any]:
        """Weights are discarded, and read from the checkpoint again."""
        sums = self.llm.collective_rpc("compute_weight_checksums")
        self.llm.sleep(level=2)
        self.llm.wake_up(tags=["weights"])
        discarded = self.llm.collective_rpc("compute_weight_checksums")
        self.llm.collective_rpc("reload_weights")
        again = self.llm.collective_rpc("compute_weight_checksums")
        self.llm.wake_up(tags=["kv_cache"])
        return {"discarded": discarded != sums, "same": again == sums, "tokens": self.tokens()}

    def two_devices(self) -> dict[str, Any]:
        """Both levels, from outside of the processes that sleep."""
        self.llm.sleep(level=1)
        self.llm.wake_up()
        found = {"1": self.tokens()}
        self.llm.sleep(level=2)
        self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights")
        self.llm.wake_up(tags=["kv_cache"])
        return found | {"2": self.tokens()}

    def nowhere_to_write(self) -> dict[str, Any]:
        """ANVIL_SLEEP_FOLDER is no folder: the engine stays awake."""
        os.environ["ANVIL_SLEEP_FOLDER"], folder = "/no/such/folder", _folder()
        try:
            self.llm.sleep(level=1)
            said = ""
        except Exception as error:
            said = str(error)
        os.environ["ANVIL_SLEEP_FOLDER"] = folder
        self.llm.wake_up()  # the engine had paused before it slept
        return {"said": said, "tokens": self.tokens()}

    def _refused(self, call: str) -> str:
        try:
            self.llm.collective_rpc(call)
        except Exception as error:
            return str(error)
        return ""

    def _sleeping(self) -> bool:
        return self.llm.llm_engine.is_sleeping()

    def _held(self) -> int:
        """Bytes of weights and cache."""
        tags = torch.anvil.memory_by_tag()
        return sum(tags[tag]["allocated_bytes"] for tag in ("weights", "kv_cache"))

    def _caches(self) -> list[Any]:
        core = self.llm.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner.kv_caches


def _resident() -> int:
    """Bytes of this process in memory that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10


def _folder() -> str:
    return os.environ["ANVIL_SLEEP_FOLDER"]


def _files() -> list[int]:
    """How many names are in the folder, and how many files there this process has open."""
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _open(fd)]
    return [len(os.listdir(_folder())), sum(link.startswith(_folder()) for link in links)]


def _open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    sleeper = Sleeper(job)
    result = {"tokens": sleeper.tokens()}
    for act in job["acts"]:
        result[act] = getattr(sleeper, act)()
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
