# SPDX-License-Identifier: Apache-2.0
"""The parity kit: what every op must compute, on which inputs, and how results are compared.

It needs torch alone, neither `_C` nor vLLM, and runs against any device of torch.
"""
