"""A few rounds of each attack; ``make attack`` runs them in full."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.attacks.sandbox import TARGETS, fuzz
from tests.attacks.suite import ENTRIES, Entry
from tests.attacks.tally import Tally


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.quick], ids=lambda entry: entry.name)
def test_attack_loses_and_corrupts_nothing(entry: Entry, tmp_path: Path) -> None:
    if reason := entry.skipped():
        pytest.skip(reason)
    tally = Tally()
    attack = entry.quick_attack or entry.attack
    attack(entry.quick, tmp_path, tally, random.Random(0))
    assert tally.held, tally.notes
    assert tally.rounds > 0
    assert tally.faults > 0


@pytest.mark.slow
def test_hostile_input_of_every_kind(tmp_path: Path) -> None:
    tally = Tally()
    fuzz(*TARGETS)(6 * len(TARGETS), tmp_path, tally, random.Random(0))
    assert tally.held, tally.notes
    assert tally.rounds == 6 * len(TARGETS)
    assert tally.refused > 0


def test_attacks_count_damage(tmp_path: Path) -> None:
    """A test of the attacks: they count a swapped shard as wrong, and a sample missing from a commit as lost."""
    from tests.attacks.truth import check_samples, compare, named_objects, stored_sample
    from tests.helpers.small_source import write_source
    from zarr_core.points.convert.conversion import convert

    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    store = tmp_path / "store"
    manifest = convert("ahmedml", store, root=source, chunk_points=64).manifest
    expected = named_objects(str(store))
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in ("run_1", "run_2")}
    tally = Tally()
    check_samples(str(store), truth, tally, "whole")
    compare(str(store), expected, tally, "whole")
    assert tally.held
    arrays = store / manifest.samples["run_1"].relpath / "volume"
    (arrays / "velocity/c/0/0").write_bytes((arrays / "vorticity/c/0/0").read_bytes())
    check_samples(str(store), truth, tally, "swapped")
    compare(str(store), expected, tally, "swapped")
    check_samples(str(store), {"run_1": truth["run_2"], "run_9": truth["run_1"]}, tally, "forgotten")
    with tally.ours("foreign"):
        raise KeyError("x")
    # Checksums detect damage, not replacement by other valid bytes: only the comparison with the source finds that.
    assert (tally.lost, tally.wrong, tally.tracebacks) == (1, 3, 1)
