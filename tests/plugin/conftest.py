# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the plugin's tests: the platform as vLLM resolves it, a tiny model, subprocesses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from vllm_anvil.plugin.platform import AnvilPlatform


@pytest.fixture(scope="session")
def platform() -> AnvilPlatform:
    from vllm.platforms import current_platform

    assert isinstance(current_platform, AnvilPlatform)
    return current_platform


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers with random weights and a tokenizer of bytes: a real checkpoint that
    loads in no time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=512
    ).save_pretrained(path)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).to(torch.bfloat16).save_pretrained(path)
    return path


class FreshPython:
    """Runs programs in fresh interpreters.

    The environment is this process's without the variables that decide about Anvil and vLLM, so
    that a test says all of them: `BESIDE_OTHERS` is for engines that run `at_once`.
    """

    BESIDE_OTHERS: ClassVar = {"ANVIL_DEVICE_MEMORY": "2GiB"}

    def environment(self, environ: dict[str, str]) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANVIL_", "VLLM_"))}
        clean |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "anvil"}
        return clean | environ

    def __call__(
        self, code: str, *arguments: str, timeout: float = 180, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `code` to its end."""
        return self.run("-c", code, *arguments, timeout=timeout, **environ)

    def run(
        self, *arguments: str, timeout: float = 180, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the interpreter with these arguments to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(environ),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str, log: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Starts the interpreter, in a process group of its own, with its output in a file."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environment(environ),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def left_behind(self, session: int, seconds: int = 10) -> list[int]:
        """Processes of a session that do not end within so many seconds; zombies are none."""
        for _ in range(10 * seconds):
            if not self.processes_of(session):
                return []
            time.sleep(0.1)
        return self.processes_of(session)

    def processes_of(self, session: int) -> list[int]:
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


@pytest.fixture(scope="session")
def python() -> FreshPython:
    return FreshPython()


@pytest.fixture(scope="module")
def anvil_layers(platform: AnvilPlatform) -> Iterator[None]:
    """The engine builds our layers and its IR ops prefer our provider, as in a worker, while the
    tests of a module run."""
    from vllm import ir
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import custom_op

    from vllm_anvil.plugin import custom_ops

    config = VllmConfig()
    with (
        pytest.MonkeyPatch.context() as patch,
        set_current_vllm_config(config),
        config.kernel_config.ir_op_priority.set_priority(),
        ir.enable_torch_wrap(config.compilation_config.ir_enable_torch_wrap),
    ):
        patch.setattr(custom_op, "op_registry_oot", {})
        patch.setattr(custom_ops, "_registered", False)
        custom_ops.register()
        yield
