"""Which refused samples would be refused again."""

from __future__ import annotations

import shutil

from zarr_core.platform.sensors.refusals import refused_samples

from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.convert import convert


def test_a_sample_is_refused_until_its_source_or_the_settings_change_or_the_store_holds_it(trial: Trial) -> None:
    good, other = write_run(trial.source, 1), trial.dataset.model_copy(update={"chunk_points": 128})
    content = {path: path.read_bytes() for path in good.iterdir()}
    corrupt(good)
    assert trial.run("look").success
    assert refused_samples(trial.instance, trial.dataset) == set()
    assert not trial.run("convert", "run_1").success
    assert refused_samples(trial.instance, trial.dataset) == {"run_1"}
    assert refused_samples(trial.instance, other) == set()

    for path, data in content.items():
        path.write_bytes(data)
    convert(trial.dataset.kind, trial.dataset.store, root=trial.source, dataset_name=trial.dataset.name)
    assert refused_samples(trial.instance, trial.dataset) == set()


def test_a_new_version_of_the_source_is_not_refused(trial: Trial) -> None:
    corrupt(write_run(trial.source, 1))
    assert trial.run("look").success
    assert not trial.run("convert", "run_1").success
    corrupt(write_run(trial.source, 1, shift=1.0))
    assert trial.run("look").success
    assert refused_samples(trial.instance, trial.dataset) == set()


def test_a_sample_that_lacked_a_file_when_it_was_read_is_tried_again(trial: Trial) -> None:
    path = write_run(trial.source, 1) / "surface_pressure.pt"
    assert trial.run("look").success
    moved = path.rename(trial.source / "moved.pt")
    assert not trial.run("convert", "run_1").success
    moved.rename(path)
    assert trial.run("look").success, "the version that was observed before"
    assert refused_samples(trial.instance, trial.dataset) == set()


def test_a_sample_that_vanished_before_its_conversion_says_so(trial: Trial) -> None:
    folder = write_run(trial.source, 1)
    write_run(trial.source, 2)
    assert trial.run("look").success
    shutil.rmtree(folder)
    (failed,) = trial.run("convert", "run_1").get_step_failure_events()
    reason = failed.step_failure_data.user_failure_data.description
    assert reason == "1 of 1 samples could not be converted: run_1: no longer at the source"
    (record,) = trial.instance.fetch_observations(trial.dataset.converted, limit=1).records
    assert record.asset_observation.metadata["reason"].value == "no longer at the source"
