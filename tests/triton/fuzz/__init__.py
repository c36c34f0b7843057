# SPDX-License-Identifier: Apache-2.0
"""Random small Triton kernels, compiled for the device and compared with NumPy.

    make fuzz-triton N=10000 SEED=0

`generate` makes the program of a seed, `source` writes it as Triton, `reference` runs it with
NumPy, `compare` holds one against the other and `minimize` makes a failing one small.
"""
