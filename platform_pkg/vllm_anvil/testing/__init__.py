# SPDX-License-Identifier: Apache-2.0
"""What native code is compared with. Imports torch alone: it runs on any machine and device."""
