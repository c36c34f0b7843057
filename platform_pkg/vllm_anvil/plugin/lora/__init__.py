# SPDX-License-Identifier: Apache-2.0
"""LoRA: what vLLM's adapter layers call on the device.

The engine's layers, its adapter manager and its routes stay as they are. `wrapper` is the class
that they call (`Platform.get_punica_wrapper`), `token_groups` says in device memory which token has
which adapter, and `matrices` keeps the layers' matrices as the ops want them.
"""
