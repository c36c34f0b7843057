# SPDX-License-Identifier: Apache-2.0
"""The op tables, one module per family: which calls are made, and how exact each op must be."""
