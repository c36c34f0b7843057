# SPDX-License-Identifier: Apache-2.0
"""What the device does while the engine serves: in the log, in `/metrics`, under `/anvil/`.

A worker writes its figures into a page of shared memory (`pages`), which the engine's front end, in
a process of its own, reads whenever it wants to (`stat_logger`). What is asked for over HTTP comes
from the workers themselves (`endpoints`), by a call of theirs (`report`).
"""
