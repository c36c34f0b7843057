# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs where there is torch and nothing else of what Anvil is used with."""

import subprocess
import sys

SCRIPT = """
import sys
for absent in ("vllm", "triton", "llvmlite", "matplotlib", "yaml", "vllm_anvil._C"):
    sys.modules[absent] = None
import torch
from anvil_attention.bench import runner
from anvil_attention.bench.devices import open_device
from anvil_attention.bench.implementations import candidates
from anvil_attention.bench.model_shapes import ModelShape
from anvil_attention.bench.suite import LayerOptions

device = open_device("cpu")
torch.set_num_threads(1)
problem = LayerOptions().problem(ModelShape("small", 4, 2, 32), "2q1s9_q5", "cpu")
settings = runner.Settings(repeats=1, min_time_s=0, pause_s=0, memory=1 << 20)
results = runner.run([problem], candidates([]), device, settings)
for measured in results.problems[0].measured:
    print(measured.name, measured.outcome.status, measured.sample is not None, sep=":")
try:
    open_device("anvil")
except ValueError as error:
    print(error)
"""


def test_without_anything_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "native:refused:False",
        "reference:passed:True",
        "triton:not available:False",
        "sdpa:passed:True",
        "engine:not available:False",
    ]
    assert lines[-1].startswith("there is no anvil device here: ")
