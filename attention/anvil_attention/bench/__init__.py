# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark: implementations of the contract checked and timed side by side.

It needs torch alone, and matplotlib for plots; `vllm-anvil bench attention` is its command.
"""
