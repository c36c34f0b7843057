# SPDX-License-Identifier: Apache-2.0
"""Endpoint plugins of these tests, which make mistakes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


class BreaksWhenAsked:
    name = "breaks_when_asked"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        app.add_api_route(f"/{self.name}", self.answer, methods=["GET"])

    async def answer(self) -> None:
        raise RuntimeError("a mistake in the plugin's route")

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None: ...


class BreaksWhenMade(BreaksWhenAsked):
    name = "breaks_when_made"

    def __init__(self) -> None:
        raise RuntimeError("a mistake in the plugin's factory")


class NotNamed(BreaksWhenAsked):
    name = "not_named"


class BreaksWhenAttached(BreaksWhenAsked):
    name = "breaks_when_attached"

    def attach_router(self, app: FastAPI) -> None:
        raise RuntimeError("a mistake in the plugin's attach_router")


class BreaksAtStart(BreaksWhenAsked):
    name = "breaks_at_start"

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        raise RuntimeError("a mistake in the plugin's init_state")
