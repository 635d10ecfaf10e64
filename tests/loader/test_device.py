"""Batches are copied to a device during the computation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader.stateful import Stateful

import zarr_core.loader.device
from tests.helpers.loading import NUMBERS
from zarr_core import Normalizers
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader, to_device


def test_on_the_cpu_batches_are_the_loaders_own() -> None:
    batches = [{"a": torch.zeros(2), "b": [torch.ones(1), "text"]}, torch.zeros(3)]
    assert all(given is batch for given, batch in zip(to_device(batches, "cpu"), batches, strict=True))
    loader = to_device(ResumableLoader(NUMBERS, EpochBatchSampler(26, 4)), "cpu")
    assert isinstance(loader, Stateful)
    assert len(loader) == 7
    assert loader.num_workers == 0
    next(iter(loader))
    assert loader.state_dict()["position"] == 1
    loader.set_epoch(2)
    assert loader.state_dict()["epoch"] == loader.epoch == 2
    loader.load_state_dict(loader.state_dict() | {"position": 3})
    assert len(list(loader)) == 4


def test_on_other_devices_batches_are_moved() -> None:
    (batch,) = to_device([{"a": (torch.zeros(2), [torch.zeros(1)]), "b": "text"}], "meta")
    assert batch["a"][0].device.type == batch["a"][1][0].device.type == "meta"
    assert isinstance(batch["a"], tuple)
    assert batch["b"] == "text"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transform_gets_the_batches_on_the_device(device: str) -> None:
    loader = to_device([torch.zeros(2), torch.ones(2)], device, transform=lambda batch: (batch.device.type, batch + 1))
    transformed = list(loader)
    assert [kind for kind, _ in transformed] == [device, device]
    assert {batch.device.type for _, batch in transformed} == {device}
    with pytest.raises(ZarrCoreError, match="transform must be a function of a batch, not 'scale'"):
        to_device([], device, transform="scale")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", None, 1.5])
def test_a_device_that_torch_does_not_know_is_refused_at_once(device: Any) -> None:
    with pytest.raises(ZarrCoreError, match="device must be a torch device such as 'cuda' or 'cpu'"):
        to_device([], device)


class FakeStream:
    """Records the calls of a CUDA stream."""

    log: list[str]

    def __init__(self, name: Any) -> None:
        self.name = "beside" if isinstance(name, torch.device) else name
        self.events = 0

    def record_event(self) -> str:
        self.events += 1
        self.log.append(f"{self.name}: record {self.events}")
        return f"event {self.events}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name}: wait for {event}")


def test_on_cuda_each_batch_is_copied_while_the_one_before_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fakes of streams and devices: the calls of CUDA and their order."""
    log: list[str] = []
    active = ["compute"]
    monkeypatch.setattr(FakeStream, "log", log, raising=False)
    computing = FakeStream("compute")

    @contextlib.contextmanager
    def use(stream: FakeStream) -> Iterator[None]:
        active.append(stream.name)
        yield
        active.pop()

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        assert device.type == "cuda"
        assert non_blocking
        log.append(f"{active[-1]}: copy {int(tensor[0])}")
        return tensor

    def note(what: str) -> Callable[..., torch.Tensor]:
        def do(tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
            log.append(" ".join([what, str(int(tensor[0])), *(stream.name for stream in rest)]))
            return tensor

        return do

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(zarr_core.loader.device, "_is_ready", lambda tensor: False)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", note("pin"))
    monkeypatch.setattr(torch.Tensor, "record_stream", note("keep for"))

    inner = ResumableLoader(NUMBERS, EpochBatchSampler(12, 4, shuffle=False))
    loader = to_device(inner, "cuda")
    received = []
    assert loader.state_dict()["position"] == 0
    for step, (batch,) in enumerate(loader, 1):
        log.append(f"train {int(batch[0])}")
        received.append(batch.tolist())
        assert loader.state_dict()["position"] == step  # though the loader is one ahead
        assert inner.state_dict()["position"] == min(step + 1, 3)
    assert received == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    def start(first: int, number: int) -> list[str]:
        return [f"pin {first}", f"beside: copy {first}", f"beside: record {number}"]

    def finish(first: int, number: int) -> list[str]:
        return [f"compute: wait for event {number}", f"keep for {first} compute", f"train {first}"]

    assert log == [
        *start(0, 1),
        *start(4, 2),
        *finish(0, 1),
        *start(8, 3),
        *finish(4, 2),
        *finish(8, 3),
    ]
    for _ in loader:  # stopped in the middle, it goes on behind what it gave
        break
    resumed = ResumableLoader(NUMBERS, EpochBatchSampler(12, 4, shuffle=False))
    resumed.load_state_dict(loader.state_dict() | {"dataset_size": 12})
    assert [batch.tolist() for (batch,) in resumed] == received[1:]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_on_a_gpu_batches_arrive_unharmed() -> None:
    data = TensorDataset(torch.arange(4096 * 64, dtype=torch.float32).reshape(64, 4096))
    loader = to_device(ResumableLoader(data, EpochBatchSampler(64, 4, seed=1)), "cuda")
    plain = [batch for (batch,) in DataLoader(data, batch_sampler=EpochBatchSampler(64, 4, seed=1))]
    arrived = []
    for (batch,) in loader:
        assert batch.is_cuda
        arrived.append((batch * 2).cpu() / 2)
    assert all(map(torch.equal, arrived, plain))


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """PyTorch raises an error where a thread would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.usefixtures("no_waiting")
def test_on_a_gpu_batches_are_copied_and_normalized_without_waiting_for_it(pinned: bool) -> None:
    numbers = {
        "velocity": {"kind": "fixed", "shift": [1.0, 2.0, 3.0], "unit": [2.0, 4.0, 8.0]},
        "pressure": {"kind": "fixed", "shift": [5.0], "unit": [0.5], "logscale": True},
    }
    generator = torch.Generator().manual_seed(0)
    items = [
        {
            "velocity": torch.randn(4096, 3, generator=generator).half(),
            "pressure": torch.randn(4096, 1, generator=generator).half(),
            "drag": torch.tensor(0.25),
        }
        for _ in range(64)
    ]
    normalizers = Normalizers(numbers)
    sampler = EpochBatchSampler(64, 4, seed=1)
    loader = ResumableLoader(items, sampler, num_threads=2, pin_memory=pinned)
    arrived = list(to_device(loader, "cuda", transform=normalizers.normalize))
    physical = [normalizers.inverse(batch) for batch in arrived]
    torch.cuda.set_sync_debug_mode("default")
    assert len(arrived) == 16
    loader.set_epoch(1)
    loader.set_epoch(0)
    for found, restored, batch in zip(arrived, physical, loader, strict=True):
        for field, values in normalizers.normalize(batch).items():
            assert found[field].device.type == "cuda"
            assert found[field].dtype == torch.float32
            torch.testing.assert_close(found[field].cpu(), values)
            torch.testing.assert_close(restored[field].cpu(), batch[field].float(), rtol=1e-4, atol=1e-4)
