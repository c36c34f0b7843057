# SPDX-License-Identifier: Apache-2.0
"""A general plugin that writes down, in the file that WITNESS names, which processes load it and
whether they know the example's model."""

import os


def note() -> None:
    if "WITNESS" in os.environ:
        from vllm import ModelRegistry

        known = "SoftCapLlamaForCausalLM" in ModelRegistry.get_supported_archs()
        with open(os.environ["WITNESS"], "a") as file:
            file.write(f"{os.getpid()} {known}\n")
