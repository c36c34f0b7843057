# SPDX-License-Identifier: Apache-2.0
"""What an engine can be extended with from outside, one module for each kind of plugin."""
