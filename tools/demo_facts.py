# SPDX-License-Identifier: Apache-2.0
"""A vLLM worker extension that tells what really runs: asked of the running worker, not assumed."""

from typing import Any


class DemoFacts:
    """Mixed into the worker class by vLLM's `worker_extension_cls`."""

    vllm_config: Any
    model_runner: Any
    device: Any

    def demo_facts(self) -> dict[str, str]:
        """Names of the platform, worker, model runner and attention backends, and the device."""
        from vllm.platforms import current_platform

        layers = self.vllm_config.compilation_config.static_forward_context.values()
        backends = {
            layer.get_attn_backend().get_name()
            for layer in layers
            if hasattr(layer, "get_attn_backend")
        }
        parameter = next(self.model_runner.get_model().parameters())
        return {
            "platform": f"{qualified_name(current_platform)} ({current_platform.device_name})",
            "device": str(self.device),
            "weights": f"{parameter.dtype} on {parameter.device}",
            "worker": qualified_name(self),
            "model runner": qualified_name(self.model_runner),
            "attention": ", ".join(sorted(backends)),
        }


def qualified_name(instance: object) -> str:
    return f"{type(instance).__module__}.{type(instance).__qualname__}"
