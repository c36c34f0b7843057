# SPDX-License-Identifier: Apache-2.0
"""The communicator against the engine's base class, member by member."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from anvil_communicator.communicator import AnvilCommunicator

# Why the base class's own version is right here.
INHERITED = {
    "checkpoint_prepare": "no-op: nothing is held that a checkpoint could reclaim",
    "checkpoint_restore": "no-op: see checkpoint_prepare",
    "suspend": "no-op: no buffers are kept between calls",
    "resume": "no-op: see suspend",
    "get_symmetric_memory_buffer": "None: ranks share no registered memory",
    "allocate_combine_input": "None: it would come from get_symmetric_memory_buffer",
}


def members(cls: type) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("__") or name == "__init__"
    }


@pytest.mark.parametrize("name", sorted(members(DeviceCommunicatorBase)))
def test_every_member_is_overridden_or_inherited_on_purpose(name: str) -> None:
    overridden = name in vars(AnvilCommunicator)
    assert overridden != (name in INHERITED), (
        f"{name}: the engine's DeviceCommunicatorBase has it; override it or list it in INHERITED"
    )


def test_nothing_is_listed_that_the_engine_has_dropped() -> None:
    assert set(INHERITED) <= set(members(DeviceCommunicatorBase))


@pytest.mark.parametrize(
    "name", sorted(set(members(DeviceCommunicatorBase)) & set(members(AnvilCommunicator)))
)
def test_overrides_accept_what_the_engine_passes(name: str) -> None:
    theirs = inspect.signature(getattr(DeviceCommunicatorBase, name)).parameters
    ours = inspect.signature(getattr(AnvilCommunicator, name)).parameters
    takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in ours.values())
    for parameter, wanted in theirs.items():
        if parameter in ours:
            assert ours[parameter].default == wanted.default, parameter
        else:
            assert takes_any_keyword, f"{name} does not take {parameter}"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    rendezvous: Path = tmp_path_factory.mktemp("group") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(params=["cpu", "anvil"])
def communicator(request: pytest.FixtureRequest, group: dist.ProcessGroup) -> AnvilCommunicator:
    return AnvilCommunicator(cpu_group=group, device=torch.device(request.param))


def test_a_group_of_one(communicator: AnvilCommunicator) -> None:
    tensor = torch.arange(6.0, device=communicator.device).view(2, 3)
    for result in (
        communicator.all_reduce(tensor),
        communicator.all_gather(tensor),
        communicator.all_gatherv(tensor, 0, [2]),
        communicator.reduce_scatter(tensor),
        communicator.reduce_scatterv(tensor, 0, [2]),
        communicator.gather(tensor),
        communicator.broadcast(tensor),
    ):
        assert torch.equal(result.cpu(), tensor.cpu())


class RecordingManager:
    """Stands in for the engine's all-to-all manager."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> object:
        def record(*args: object) -> str:
            self.calls.append((name, args))
            return f"result of {name}"

        return record


def test_expert_parallel_calls_go_to_the_manager(communicator: AnvilCommunicator) -> None:
    communicator.all2all_manager = manager = RecordingManager()
    calls = {
        "dispatch_router_logits": ("hidden", "logits", True, ["extra"]),
        "dispatch": ("hidden", "weights", "ids", True, ["extra"]),
        "combine": ("hidden", True),
        "combine_into_output": ("hidden", "output", True),
    }
    for name, args in calls.items():
        assert getattr(communicator, name)(*args) == f"result of {name}"
    communicator.destroy()
    assert manager.calls == [*calls.items(), ("destroy", ())]
    assert communicator.all2all_manager is None


def test_without_a_manager_they_do_what_the_base_class_does(
    communicator: AnvilCommunicator,
) -> None:
    hidden, weights, ids = (torch.full((2, 3), i, device=communicator.device) for i in range(3))
    assert communicator.dispatch_router_logits(hidden, weights) == (hidden, weights)
    assert communicator.dispatch(hidden, weights, ids, False, [ids]) == (
        hidden,
        weights,
        ids,
        [ids],
    )
    assert communicator.combine(hidden) is hidden
    output = torch.ones_like(hidden)
    assert communicator.combine_into_output(hidden, output) is output
    assert torch.equal(output.cpu(), hidden.cpu())


def test_other_all_to_all_backends_are_refused(
    group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def base(self: DeviceCommunicatorBase, *args: object, **kwargs: object) -> None:
        self.use_all2all = True
        self.all2all_backend = "deepep_low_latency"

    monkeypatch.setattr(DeviceCommunicatorBase, "__init__", base)
    with pytest.raises(NotImplementedError, match="--all2all-backend allgather_reducescatter"):
        AnvilCommunicator(cpu_group=group, unique_name="ep:0", use_all2all=True)


def test_stateless_groups_are_refused(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    group = dist.ProcessGroupGloo(store, 0, 1)
    with pytest.raises(NotImplementedError, match="leave out --enable-elastic-ep"):
        AnvilCommunicator(
            cpu_group=group, unique_name="dp:0", global_ranks=[0], global_world_size=1
        )
