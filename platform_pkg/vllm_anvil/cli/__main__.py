# SPDX-License-Identifier: Apache-2.0
"""`python -m vllm_anvil.cli`, for where the console script is not on the path."""

from vllm_anvil.cli import main

main()
