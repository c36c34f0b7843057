# SPDX-License-Identifier: Apache-2.0
"""An engine that is told to serve with an attention that cannot be: it says so, and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

USERS = Path(__file__).parent.parent / "attention" / "user_attention.py"
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(**json.loads(sys.argv[1]))
    print("STARTED", flush=True)
    prompts = [{"prompt_token_ids": list(range(5, 25))}, {"prompt_token_ids": list(range(5, 70))}]
    params = SamplingParams(max_tokens=4)
    for prompt in prompts:
        llm.generate(prompt, params, use_tqdm=False)
        print("SERVED", flush=True)
"""


def serve(python: Any, tmp_path: Path, model: Path, name: str) -> str:
    """What a program says that serves a short prompt and a longer one with this attention. It must
    end by itself, with status 1, and leave no process behind."""
    program, log = tmp_path / "serve.py", tmp_path / "log"
    program.write_text(SERVE)
    options = {"model": str(model), "max_model_len": 128, "max_num_seqs": 2}
    process = python.start(str(program), json.dumps(options), log=log, ANVIL_ATTENTION_IMPL=name)
    try:
        process.wait(timeout=180)
    finally:
        process.kill()
    said = log.read_text()
    assert process.returncode == 1, said
    assert python.left_behind(process.pid) == []
    return said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "there is no module 'no_such_module'. Put its folder into PYTHONPATH"),
        pytest.param(f"{USERS}:f", "has no 'f'. It has ", marks=pytest.mark.slow),
        pytest.param(
            f"{USERS}:refusing",
            "it refuses a layer of this model: heads of 16 are not its business.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refused_before_any_process_is_started(
    python: Any, tmp_path: Path, tiny_model: Path, name: str, message: str
) -> None:
    said = serve(python, tmp_path, tiny_model, name)
    [line] = [line for line in said.splitlines() if "ANVIL_ATTENTION_IMPL=" in line]
    assert f"ANVIL_ATTENTION_IMPL={name}: " in line
    assert message in line
    assert said.count("Traceback") == 1, said
    assert "STARTED" not in said
    assert "EngineCore pid=" not in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_in_a_hundred", "wrong values: output["),
        pytest.param("wrong_shape", "output became [1, ", marks=pytest.mark.slow),
        pytest.param(
            "wrong_dtype", "on a small problem it failed with RuntimeError", marks=pytest.mark.slow
        ),
    ],
)
def test_wrong_before_it_serves(
    python: Any, tmp_path: Path, tiny_model: Path, name: str, message: str
) -> None:
    said = serve(python, tmp_path, tiny_model, f"{USERS}:{name}")
    lines = [line for line in said.splitlines() if f"ANVIL_ATTENTION_IMPL={USERS}:{name}: " in line]
    assert lines, said
    assert all(message in line for line in lines), lines
    assert "STARTED" not in said


def test_failure_while_serving(python: Any, tmp_path: Path, tiny_model: Path) -> None:
    said = serve(python, tmp_path, tiny_model, f"{USERS}:breaks_on_long_sequences")
    # What does not bring it out was served, what does was not.
    assert said.count("SERVED") == 1, said
    assert (
        f"ANVIL_ATTENTION_IMPL={USERS}:breaks_on_long_sequences: it failed in layer "
        "'model.layers.0.self_attn.attn' with KeyError: 'something inside'"
    ) in said
    # Where it happened, in the user's own file, and what became of the request.
    assert f'File "{USERS}"' in said
    assert "EngineDeadError" in said
