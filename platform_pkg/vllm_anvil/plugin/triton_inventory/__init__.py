# SPDX-License-Identifier: Apache-2.0
"""Which Triton kernels the installed engine has, and what the compiler makes of each."""
