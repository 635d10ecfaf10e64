"""The example trains each way on the same samples, points and normalisation, and prints one table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from examples.train_surrogate import main as example

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_surrogate" / "main.py"
DATA = EXAMPLE.parents[1] / "data" / "ahmed_rans"

pytestmark = pytest.mark.filterwarnings("ignore:.*absent and skipped")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: several would wait for each other while other tests run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train_surrogate")
    for way, settings in example.STORES.items():
        example.make_store(DATA, folder / way, **settings)
    return folder / "store"


@pytest.mark.slow
def test_it_prints_a_table_of_each_way(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--data", str(DATA), "--stores", str(store.parent), "--steps", "2", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert "4 samples to train on, 2 held out; 2 steps, 2 seeds" in printed
    header, rule, *rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows] == ["`.pt`", *example.STORES]
    assert header.count("|") == rule.count("|") == 6
    for row in rows:
        cells = row.split("|")[2:-1]
        numbers = [float(number) for cell in cells for number in cell.split(" ± ")]
        assert len(numbers) == 8
        assert all(math.isfinite(number) for number in numbers)
        assert all(error > 0 for error in numbers[:4:2])
    assert len(re.findall(r"^\* .* apart", printed, re.M)) == 4


def test_both_ways_see_the_same_samples_and_normalisation(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = dict.fromkeys(example.POINTS, 10**6)
    monkeypatch.setattr(example, "POINTS", everything)
    from_store = example.StoreSamples(store, "train")
    from_pt = example.PtSamples(DATA, "train", points=None)
    held_out = example.PtSamples(DATA, example.HELD_OUT, points=None)
    assert from_store.sample_ids == from_pt.sample_ids
    assert not set(from_pt.sample_ids) & set(held_out.sample_ids)
    whole: dict[str, list[torch.Tensor]] = {field: [] for field in example.FILES}
    for index in range(len(from_pt)):
        one = from_store.normalize(from_pt[index])
        other = from_store.normalize(from_store.__getitems__([index]).tensors)
        assert torch.equal(one["parameters"], other["parameters"][0])
        for field in whole:  # in another order, and rounded to float16
            torch.testing.assert_close(one[field].sort(0)[0], other[field][0].sort(0)[0], rtol=2e-3, atol=2e-3)
            whole[field].append(one[field].double())
    for field, values in whole.items():
        points = torch.cat(values)
        torch.testing.assert_close(points.mean(0), torch.zeros_like(points[0]), rtol=0, atol=1e-3, msg=field)
        torch.testing.assert_close(points.std(0), torch.ones_like(points[0]), rtol=0, atol=1e-3, msg=field)


def test_steps_get_different_points_of_the_requested_samples(store: Path) -> None:
    def rows(item: dict[str, torch.Tensor], domain: str, target: str) -> set[tuple[float, ...]]:
        values = item[target].reshape(len(item[target]), -1)
        return set(map(tuple, torch.cat([item[f"{domain}_position"], values], 1).tolist()))

    whole = example.PtSamples(DATA, "train", points=None)
    some = example.PtSamples(DATA, "train", seed=1)
    for domain, target in example.TARGETS.items():
        some.set_epoch(0)
        first = rows(some[2], domain, target)
        some.set_epoch(1)
        second = rows(some[2], domain, target)
        assert len(first) == len(second) == example.POINTS[domain]
        assert first != second
        assert first | second <= rows(whole[2], domain, target)
    stored = example.StoreSamples(store, "train", seed=1)
    sampler = example.EpochBatchSampler.of(stored, example.BATCH_SIZE, seed=1)
    stream = example.batches(example.ResumableLoader(stored, sampler))
    taken = [next(stream) for _ in range(2)]  # an epoch is one batch
    assert [set(map(tuple, batch["parameters"].tolist())) for batch in taken] == [
        set(map(tuple, stored.parameters.tolist()))
    ] * 2
    for domain, target in example.TARGETS.items():
        assert taken[0][target].shape[:2] == (example.BATCH_SIZE, example.POINTS[domain])
        assert not torch.equal(taken[0][target].sort(0)[0], taken[1][target].sort(0)[0])
