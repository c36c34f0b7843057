# SPDX-License-Identifier: Apache-2.0
"""An engine that is told to serve with an attention that cannot be: it says so, and ends."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
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


def serve(python: Any, folder: Path, model: Path, name: str) -> str:
    """What a program says that serves a short prompt and a longer one with this attention. It must
    end by itself, with status 1, and leave no process behind."""
    program, log = folder / "serve.py", folder / "log"
    program.write_text(SERVE)
    options = {"model": str(model), "max_model_len": 128, "max_num_seqs": 2}
    environ = python.BESIDE_OTHERS | {"ANVIL_ATTENTION_IMPL": name}
    process = python.start(str(program), json.dumps(options), log=log, **environ)
    try:
        process.wait(timeout=180)
    finally:
        process.kill()
    said = log.read_text()
    assert process.returncode == 1, said
    assert python.left_behind(process.pid) == []
    return said


BREAKS = f"{USERS}:breaks_on_long_sequences"


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest,
    python: Any,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    at_once: Callable[..., Any],
) -> Mapping[str, Future[str]]:
    """What programs say that serve with the attention of each test that is run, by its name."""

    def run(name: str) -> str:
        return serve(python, tmp_path_factory.mktemp("serve"), tiny_model, name)

    tests = [item for item in request.session.items if item.path == Path(__file__)]
    names = [getattr(test, "callspec", None) for test in tests]
    wanted = {BREAKS if spec is None else spec.params["name"] for spec in names}
    return at_once({name: functools.partial(run, name) for name in sorted(wanted)})


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
    served: Mapping[str, Future[str]], name: str, message: str
) -> None:
    said = served[name].result()
    [line] = [line for line in said.splitlines() if "ANVIL_ATTENTION_IMPL=" in line]
    assert f"ANVIL_ATTENTION_IMPL={name}: " in line
    assert message in line
    assert said.count("Traceback") == 1, said
    assert "STARTED" not in said
    assert "EngineCore pid=" not in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{USERS}:one_in_a_hundred", "wrong values: output["),
        pytest.param(f"{USERS}:wrong_shape", "output became [1, ", marks=pytest.mark.slow),
        pytest.param(
            f"{USERS}:wrong_dtype",
            "on a small problem it failed with RuntimeError",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_wrong_before_it_serves(served: Mapping[str, Future[str]], name: str, message: str) -> None:
    said = served[name].result()
    lines = [line for line in said.splitlines() if f"ANVIL_ATTENTION_IMPL={name}: " in line]
    assert lines, said
    assert all(message in line for line in lines), lines
    assert "STARTED" not in said


def test_failure_while_serving(served: Mapping[str, Future[str]]) -> None:
    said = served[BREAKS].result()
    # What does not bring it out was served, what does was not.
    assert said.count("SERVED") == 1, said
    assert (
        f"ANVIL_ATTENTION_IMPL={BREAKS}: it failed in layer "
        "'model.layers.0.self_attn.attn' with KeyError: 'something inside'"
    ) in said
    # Where it happened, in the user's own file, and what became of the request.
    assert f'File "{USERS}"' in said
    assert "EngineDeadError" in said
