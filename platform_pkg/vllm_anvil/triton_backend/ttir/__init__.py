# SPDX-License-Identifier: Apache-2.0
"""Triton's intermediate representation (TTIR), read from its textual form."""
