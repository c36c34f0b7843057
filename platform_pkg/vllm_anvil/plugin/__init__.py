# SPDX-License-Identifier: Apache-2.0
"""What vLLM is given: the platform, the worker, the model runner, and the seams between the two.

Nothing here is imported until vLLM has chosen Anvil: the plugin's entry point names the platform
by string, the platform names the worker by string, and so on.
"""
