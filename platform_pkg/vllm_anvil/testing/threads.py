# SPDX-License-Identifier: Apache-2.0
"""How many threads torch uses for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Lets torch use that many threads inside.

    Cases are small: for preparing and comparing them one thread is enough, and several spend most
    of their time waiting for each other. An op under test gets those that the caller has set.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
