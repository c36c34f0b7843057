# SPDX-License-Identifier: Apache-2.0
"""Record the steps of a tiny model that the tests replay, by ANVIL_RECORD as a user would.

    python tools/record_steps.py [FOLDER]

Writes prefill.pt (three prompts), decode.pt (one token of each) and mixed.pt (the same, and the
first part of a longer prompt) into FOLDER, by default tests/data/recorded_steps. Of the model's two
layers only the first is recorded.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("prefill", "decode", "mixed")
PROMPTS = (range(100, 105), range(200, 204), range(300, 302))
LONG_PROMPT = range(400, 440)


def record(model: Path) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model),
        dtype="bfloat16",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=11,
        block_size=4,
        num_gpu_blocks_override=64,
        enable_prefix_caching=False,
    )
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    for number, tokens in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": list(tokens)}, params)
    engine.step()
    engine.step()
    engine.add_request("long", {"prompt_token_ids": list(LONG_PROMPT)}, params)
    engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "tests" / "data" / "recorded_steps"
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        model, steps = Path(temporary) / "tiny-llama", Path(temporary) / "steps"
        tokenizer = ROOT / "models" / "SmolLM2-135M-Instruct"
        maker = [sys.executable, str(ROOT / "tools" / "tiny_model.py"), str(model), str(tokenizer)]
        subprocess.run(maker, check=True)
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_PLUGINS": "anvil",
            "ANVIL_RECORD": str(steps),
            "ANVIL_RECORD_LAYERS": "0",
            "ANVIL_RECORD_STEPS": str(len(STEPS)),
        }
        record(model)
        for name, step in zip(STEPS, sorted(steps.glob("step-*.pt")), strict=True):
            shutil.copyfile(step, folder / f"{name}.pt")
            print(folder / f"{name}.pt")


if __name__ == "__main__":
    main()
