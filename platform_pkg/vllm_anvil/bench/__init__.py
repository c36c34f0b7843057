# SPDX-License-Identifier: Apache-2.0
"""Measures the engine: the same prompts through Anvil and through another platform, in turn.

This process starts others and reads what they found; it imports neither torch nor the engine.
"""
