# SPDX-License-Identifier: Apache-2.0
"""What the entry points of this package name.

The engine calls them in every one of its processes, in some more than once, and before the model
or the IO processor is wanted: so they import little, and may be called again.
"""

ARCHITECTURE = "SoftCapLlamaForCausalLM"


def register_models() -> None:
    """For the group `vllm.general_plugins`. The model is named by string: whoever inspects it first
    imports it, in a process without the device."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"plugins_example.soft_cap_llama:{ARCHITECTURE}")


def document_search() -> str:
    """For the group `vllm.io_processor_plugins`."""
    return "plugins_example.document_search.DocumentSearch"
