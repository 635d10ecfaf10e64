"""Which refused samples would be refused again."""

from __future__ import annotations

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
