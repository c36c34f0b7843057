# SPDX-License-Identifier: Apache-2.0
"""Seam: the status of an adapter that cannot be loaded.

What vLLM does
    `OpenAIServingModels.load_lora_adapter` (vllm/entrypoints/openai/models/serving.py) answers
    with 404 where the adapter's files are missing, and with 500 whatever else is wrong with what
    the client named: a rank above the server's, a module that the model does not have, files that
    cannot be read.
What is changed
    While the engine lives, these are answered with 400, with the engine's reason as before. An
    engine that is dead stays a 500.
Checked against
    vllm 0.32.
Unnecessary when
    The engine tells a client's mistakes from its own when it loads an adapter.
Test that fails then
    tests/plugin/test_seams.py::test_adapter_errors_is_needed
"""

from __future__ import annotations

import functools
import sys
from http import HTTPStatus
from typing import Any


def apply() -> None:
    # A server has imported it long before it configures its engine; nobody else needs it.
    serving = sys.modules.get("vllm.entrypoints.openai.models.serving")
    if serving is None:
        return
    load = serving.OpenAIServingModels.load_lora_adapter
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    async def load_and_blame(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await load(self, *args, **kwargs)
        error = getattr(answer, "error", None)
        if (
            error is not None
            and error.code == HTTPStatus.INTERNAL_SERVER_ERROR
            and not self.engine_client.errored
        ):
            error.code, error.type = HTTPStatus.BAD_REQUEST.value, "BadRequestError"
        return answer

    serving.OpenAIServingModels.load_lora_adapter = load_and_blame
