# SPDX-License-Identifier: Apache-2.0
"""Anvil's attention: the vLLM backend, its metadata and the plain-torch reference.

`reference` and `batch_plan` import torch alone; `backend`, `metadata` and `impl` import vLLM.
Nothing is imported here, so that each can be used without the other.
"""
