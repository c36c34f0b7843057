# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

# What the tests of this folder share.
sys.path.append(str(Path(__file__).parent))
