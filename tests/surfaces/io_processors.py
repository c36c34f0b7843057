# SPDX-License-Identifier: Apache-2.0
"""IO processors of these tests."""

from __future__ import annotations

from typing import Any

from plugins_example.document_search import DocumentSearch


def worst_first() -> str:
    return "io_processors.WorstFirst"


def breaks() -> str:
    return "io_processors.Breaks"


def cannot_be_named() -> str:
    raise RuntimeError("a mistake in the plugin's entry point")


class Breaks(DocumentSearch):
    """Raises after the model was asked, where the query says so."""

    def parse_data(self, data: object) -> Any:
        self.breaking = isinstance(data, dict) and data.get("query") == "break"
        return super().parse_data(data)

    def post_process(self, *args: Any, **kwargs: Any) -> Any:
        if self.breaking:
            raise RuntimeError("a mistake in the plugin's post_process")
        return super().post_process(*args, **kwargs)


class WorstFirst(Breaks):
    """The same documents, the other way round."""

    def post_process(self, *args: Any, **kwargs: Any) -> Any:
        return super().post_process(*args, **kwargs)[::-1]
