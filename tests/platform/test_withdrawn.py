"""The check of what was withdrawn from the warehouse, over several evaluations."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent, DagsterEventType

from tests.platform.matrix_trial import MatrixTrial, declare, long_rows
from tests.platform.test_wide_matrix import checked, reported_by_the_sensor
from zarr_core.errors import WarehouseError
from zarr_core.matrix.ingest.audit import BatchAudit


def unanswered(*_: object) -> list[BatchAudit]:
    raise WarehouseError("the warehouse does not answer")


@pytest.mark.slow
def test_a_withdrawn_sample_is_named_also_when_its_batch_is_not_audited(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = MatrixTrial(declare(tmp_path), instance)
    monkeypatch.setattr("zarr_core.matrix.quality.page.render_page", lambda report: "")
    monkeypatch.setattr("zarr_core.platform.assets.wide_matrix.checks.choose", lambda *_: ["b1"])
    for batch_id in ("b0", "b1"):
        trial.write(batch_id)
    trial.load_directly()
    rows = long_rows("b1")
    trial.write("b1", rows[rows["sample_id"] != "b1s4"])
    command = f"zarr-core matrix retire {trial.dataset.matrix} --samples b1s4"
    assert command in checked(trial.run("refresh"))["nothing_withdrawn"].description
    assert reported_by_the_sensor(trial) == {}

    job = trial.definitions.resolve_job_def("trial_refresh")
    run = trial.instance.create_run_for_job(job)
    planned = AssetCheckEvaluationPlanned(asset_key=trial.dataset.published, check_name="nothing_withdrawn")
    event = DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, job.name, event_specific_data=planned)
    trial.instance.report_dagster_event(event, run.run_id)
    trial.instance.report_run_failed(run)
    assert command in reported_by_the_sensor(trial)["nothing_withdrawn"].description, "the run did not come to it"

    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.platform.assets.wide_matrix.checks.audit_batches", unanswered)
        trial.run("refresh")
    assert command in reported_by_the_sensor(trial)["nothing_withdrawn"].description, "the warehouse did not answer"

    monkeypatch.setattr("zarr_core.platform.assets.wide_matrix.checks.choose", lambda *_: ["b0"])
    assert command in checked(trial.run("refresh"))["nothing_withdrawn"].description, "another batch is audited"
    trial.write("b1", rows)
    assert checked(trial.run("refresh"))["nothing_withdrawn"].passed, "the sample is back"
