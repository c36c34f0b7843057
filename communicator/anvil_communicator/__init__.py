# SPDX-License-Identifier: Apache-2.0
"""Communication between the ranks of an engine on anvil devices."""
