# SPDX-License-Identifier: Apache-2.0
"""What the platform decides in an engine's configuration, and what it refuses by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.engine.arg_utils import EngineArgs

import vllm_anvil.device as anvil
from vllm_anvil.plugin import engine_config, weight_reading
from vllm_anvil.plugin.platform import AnvilPlatform

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture(scope="session")
def configure(tiny_model: Path) -> Any:
    def configure(**options: Any) -> VllmConfig:
        return EngineArgs(model=str(tiny_model), **options).create_engine_config()

    return configure


def test_defaults(configure: Any) -> None:
    config = configure()
    assert config.parallel_config.worker_cls == "vllm_anvil.plugin.worker.AnvilWorker"
    assert config.compilation_config.mode == CompilationMode.NONE
    assert config.compilation_config.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is False
    assert config.use_v2_model_runner is True
    assert config.device_config.device == torch.device("anvil")
    assert config.model_config.dtype == torch.bfloat16
    assert not config.kernel_config.enable_jit_warmup
    assert config.scheduler_config.max_num_batched_tokens == 2048
    assert config.scheduler_config.max_num_seqs == 128
    # Left to the engine, which has them on by default.
    assert config.cache_config.enable_prefix_caching
    assert config.scheduler_config.enable_chunked_prefill
    assert config.scheduler_config.async_scheduling


def test_checkpoints_are_read_ahead(
    configure: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is memory for that, and the user did not say otherwise."""
    assert configure().load_config.safetensors_load_strategy == "prefetch"
    assert (
        configure(safetensors_load_strategy="lazy").load_config.safetensors_load_strategy == "lazy"
    )
    size = sum(file.stat().st_size for file in tiny_model.glob("*.safetensors"))
    for available, chosen in ((3 * size, "prefetch"), (3 * size - 1, None)):
        memory = SimpleNamespace(available=available, total=1 << 40)
        monkeypatch.setattr(weight_reading.psutil, "virtual_memory", lambda memory=memory: memory)
        config = SimpleNamespace(
            load_config=SimpleNamespace(safetensors_load_strategy=None),
            model_config=SimpleNamespace(model=str(tiny_model)),
        )
        weight_reading.prefer(config)  # type: ignore[arg-type]
        assert config.load_config.safetensors_load_strategy == chosen


def test_weights_from_a_trainer(configure: Any) -> None:
    config = configure(weight_transfer_config={"backend": "anvil"})
    assert config.weight_transfer_config.backend == "anvil"


def test_block_size_is_the_backends_or_the_users(configure: Any) -> None:
    backend = _backend()
    assert configure().cache_config.block_size == backend.get_preferred_block_size(16)
    for size in (16, 32, 64):
        if backend.supports_block_size(size):
            assert configure(block_size=size).cache_config.block_size == size


def test_block_size_that_the_backend_refuses(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _backend()
    monkeypatch.setattr(backend, "supports_block_size", classmethod(lambda cls, size: size != 7))
    with pytest.raises(ValueError, match="--block-size 7 is not supported by ANVIL_ATTN"):
        configure(block_size=7)


def _backend() -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return AttentionBackendEnum["ANVIL_ATTN"].get_class()


def test_a_worker_that_the_user_named_is_kept(configure: Any) -> None:
    assert configure(worker_cls="my.Worker").parallel_config.worker_cls == "my.Worker"


def test_compilation_that_was_asked_for_is_set_to_none(configure: Any) -> None:
    config = configure(compilation_config={"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"})
    assert config.compilation_config.mode == CompilationMode.NONE
    assert config.compilation_config.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY


def test_attention_backend_may_be_named(configure: Any) -> None:
    config = configure(attention_backend="ANVIL_ATTN")
    assert config.attention_config.backend.name == "ANVIL_ATTN"


def test_checking_again_changes_nothing(configure: Any) -> None:
    # The engine runs the checks again when it derives one configuration from another.
    config = configure()
    before = repr(config)
    AnvilPlatform.check_and_update_config(config)
    assert repr(config) == before


RAY = {"distributed_executor_backend": "ray"}
TORCH_PROFILER = {"profiler": "torch", "torch_profiler_dir": "/tmp"}
CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_transfer_config": CONNECTOR}, "--kv-transfer-config"),
        ({"kv_offloading_size": 1.0}, "--kv-offloading-size"),
        ({"cpu_offload_gb": 1.0}, "--cpu-offload-gb"),
        (
            {"profiler_config": {"profiler": "proton", "proton_profiler_dir": "/tmp"}},
            "--profiler-config.profiler",
        ),
        (
            {"profiler_config": TORCH_PROFILER | {"torch_profiler_activities": ["CUDA"]}},
            "--profiler-config.torch_profiler_activities",
        ),
        ({"weight_transfer_config": {"backend": "ipc"}}, "--weight-transfer-config"),
        ({"offload_group_size": 2, "offload_num_in_group": 1}, "--offload-group-size"),
        ({"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "--kv-cache-dtype"),
        (
            {"attention_config": {"mla_prefill_backend": "FLASH_ATTN"}},
            "--attention-config.mla_prefill_backend",
        ),
        ({"enable_dbo": True}, "--enable-dbo"),
        ({"tensor_parallel_size": 2}, "ANVIL_DEVICES=2"),
        ({"pipeline_parallel_size": 2}, "ANVIL_DEVICES=2"),
        (RAY | {"data_parallel_size": 2}, "--data-parallel-size with --distributed-executor"),
        ({"data_parallel_backend": "ray", "data_parallel_size": 2}, "--data-parallel-backend ray"),
        ({"dtype": torch.float64}, "--dtype float64"),
        ({"quantization": "fp8"}, "--quantization fp8"),
        ({"quantization": "awq"}, "--quantization awq"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refused_by_name(configure: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        configure(**options)


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.mark.surface(
    "speculative decoding",
    "refused",
    "methods and options that Model Runner V2 does not have or that are not proven, each by name",
)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "suffix"}, "method suffix .*no such speculator"),
        ({"method": "medusa"}, "method medusa .*no such speculator"),
        ({"method": "mlp_speculator"}, "method mlp_speculator .*no such speculator"),
        ({"method": "custom_class"}, "method custom_class .*no such speculator"),
        ({"method": "mtp"}, "method mtp .*not proven"),
        ({"method": "dflash"}, "method dflash .*not proven"),
        ({"method": "dspark"}, "method dspark .*not proven"),
        ({"method": "extract_hidden_states"}, "method extract_hidden_states .*connector"),
        ({"method": "one of tomorrow's"}, "this method .*not proven"),
        ({"method": "eagle", "parallel_drafting": True}, "parallel_drafting"),
        ({"method": "draft_model", "use_heterogeneous_vocab": True}, "use_heterogeneous_vocab"),
    ],
    ids=str,
)
def test_speculation_is_refused_by_name(
    configure: Any, changes: dict[str, Any], named: str
) -> None:
    """The engine looks for a method's model, or for a package, before it asks the platform; so the
    method is changed afterwards."""
    config = configure(speculative_config=NGRAM)
    for name, value in changes.items():
        setattr(config.speculative_config, name, value)
    with pytest.raises(ValueError, match=named) as error:
        AnvilPlatform.check_and_update_config(config)
    assert len(str(error.value).splitlines()) == 1


def test_speculation_needs_model_runner_v2(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configure(speculative_config=NGRAM).scheduler_config.async_scheduling
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="Unset the variable"):
        configure(speculative_config=NGRAM)


def test_drafts_of_a_model_over_several_stages(
    configure: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anvil, "device_count", lambda: 2)
    drafts = {"method": "draft_model", "model": str(tiny_model), "num_speculative_tokens": 2}
    named = "--speculative-config with a model that drafts, and --pipeline-parallel-size"
    with pytest.raises(ValueError, match=named):
        configure(speculative_config=drafts, pipeline_parallel_size=2)
    assert configure(speculative_config=NGRAM, pipeline_parallel_size=2).speculative_config


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Mixtral's configuration."""
    from transformers import MixtralConfig

    folder = tmp_path_factory.mktemp("models") / "mixtral"
    MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        architectures=["MixtralForCausalLM"],
    ).save_pretrained(folder)
    return str(folder)


def test_mixtures_of_experts(mixture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EngineArgs(model=mixture, skip_tokenizer_init=True).create_engine_config()
    monkeypatch.setattr(anvil, "device_count", lambda: 2)
    for options, named in (
        ({"moe_backend": "triton"}, "--moe-backend"),
        ({"all2all_backend": "deepep_low_latency"}, "--all2all-backend"),
    ):
        shared = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
        arguments = EngineArgs(model=mixture, skip_tokenizer_init=True, **shared, **options)
        with pytest.raises(ValueError, match=f"{named} is not supported on the anvil platform"):
            arguments.create_engine_config()


def test_adapters_of_a_mixture(mixture: str) -> None:
    def configured(*targets: str) -> Any:
        return EngineArgs(
            model=mixture,
            skip_tokenizer_init=True,
            enable_lora=True,
            lora_target_modules=list(targets) or None,
        ).create_engine_config()

    for targets in ((), ("q_proj", "experts"), ("w1",)):
        with pytest.raises(
            ValueError, match="--enable-lora for the experts of a mixture"
        ) as caught:
            configured(*targets)
        assert "--lora-target-modules q_proj k_proj v_proj o_proj" in str(caught.value)
    assert configured("q_proj", "o_proj").lora_config.target_modules == ["q_proj", "o_proj"]


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"])
def test_caches_that_are_accepted(configure: Any, dtype: str) -> None:
    assert configure(kv_cache_dtype=dtype).cache_config.cache_dtype == dtype


def test_what_is_not_batch_invariant_is_refused_by_name(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    configure()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT=1 with VLLM_USE_V2_MODEL_RUNNER=0"):
        configure()


def test_a_pipeline_needs_model_runner_v2(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="--pipeline-parallel-size with VLLM_USE_V2_MODEL_RUNNER"):
        configure(pipeline_parallel_size=2)


@pytest.mark.parametrize("asked", [False, True])
def test_the_user_chooses_the_model_runner(
    configure: Any, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(asked)))
    assert configure().use_v2_model_runner is asked


@pytest.mark.parametrize("refusal", engine_config.REFUSALS, ids=lambda r: r.option)
def test_a_plain_configuration_is_refused_nothing(configure: Any, refusal: Any) -> None:
    assert not refusal.applies(configure())


def test_all_reasons_are_given_at_once(configure: Any) -> None:
    with pytest.raises(ValueError, match="--kv-offloading-size") as caught:
        configure(kv_offloading_size=1.0, cpu_offload_gb=1.0)
    assert "--cpu-offload-gb" in str(caught.value)


def test_ray_counts_its_own_devices(configure: Any) -> None:
    """The cluster's hosts may have devices that this one has not."""
    from vllm_anvil.plugin.ray_executor import AnvilRayExecutor

    config = configure(**RAY, tensor_parallel_size=2)
    assert config.parallel_config.distributed_executor_backend is AnvilRayExecutor
    assert config.parallel_config.use_ray
    assert config.scheduler_config.async_scheduling
    AnvilPlatform.check_and_update_config(config)


def test_the_former_ray_executor_is_refused(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0")
    with pytest.raises(ValueError, match="VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0 is not supported"):
        configure(**RAY)


def test_unknown_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_DEVCES", "2")
    with pytest.raises(ValueError, match="ANVIL_DEVCES"):
        AnvilPlatform.validate_environ(hard_fail=True)
    AnvilPlatform.validate_environ(hard_fail=False)
