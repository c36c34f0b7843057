# SPDX-License-Identifier: Apache-2.0
"""Generate some tokens on the platform that vLLM chooses, and report them with what ran.

    python tools/cuda_generation.py [MODEL]

Without a model a small Llama with random weights is used, which needs neither files nor a
tokenizer. The last line of the output begins with REPORT and holds JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that the worker can be looked at
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

NEW_TOKENS = 16
PROMPT_LENGTHS = (1, 33, 200)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def generate(model: str, **options: Any) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    llm = LLM(model, max_model_len=256, max_num_seqs=8, seed=0, enforce_eager=True, **options)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    vocabulary = worker.model_config.get_vocab_size()
    prompts = [
        {"prompt_token_ids": [(7 * i + length) % (vocabulary - 2) + 2 for i in range(length)]}
        for length in PROMPT_LENGTHS
    ]
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    groups = [group for groups in worker.model_runner.attn_groups for group in groups]
    return {
        "platform": type(current_platform).__name__,
        "device": str(worker.device),
        "worker": type(worker).__name__,
        "attention": sorted({group.backend.get_name() for group in groups}),
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
    }


def main() -> None:
    if len(sys.argv) > 1:
        report = generate(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="vllm-anvil-llama-") as folder:
            Path(folder, "config.json").write_text(json.dumps(LLAMA))
            report = generate(folder, load_format="dummy", skip_tokenizer_init=True)
    print("REPORT " + json.dumps(report))


if __name__ == "__main__":
    main()
