# SPDX-License-Identifier: Apache-2.0
"""Two ops of one's own: one in C++, one in Triton."""
