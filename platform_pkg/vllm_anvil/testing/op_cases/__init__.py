# SPDX-License-Identifier: Apache-2.0
"""Tables of op cases, one module per family, each with `OPS`."""
