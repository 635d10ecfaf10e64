"""Fails if a new Dagster changes what ``sensors/dagster_internals/`` uses, or if other files use such parts too."""

from __future__ import annotations

import re
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.definitions import data_version
from dagster._core.definitions.metadata import TableMetadataSet
from dagster._core.storage import tags as dagster_tags
from zarr_core.platform.sensors.dagster_internals import events as event_store
from zarr_core.platform.sensors.dagster_internals import tags as names
from zarr_core.platform.sensors.dagster_internals.events import MaterializationBatch, report_runless_events
from zarr_core.platform.sensors.dagster_internals.queries import (
    latest_observation,
    latest_observations,
    materialized_versions,
    observed_versions,
)

from tests.platform.trial import PROJECT

SOURCE = dg.AssetKey(["trial", "source"])


def observe(instance: dg.DagsterInstance, version: str, partition: str | None = None) -> None:
    event = dg.AssetObservation(SOURCE, partition=partition, tags={names.DATA_VERSION: version})
    instance.report_runless_asset_event(event)


def test_the_installed_version_is_supported() -> None:
    assert dg.__version__.startswith("1.13."), "compare sensors/dagster_internals/ with the new version"


def test_the_tags_are_dagsters() -> None:
    assert names.DATA_VERSION == data_version.DATA_VERSION_TAG
    assert names.CODE_VERSION == data_version.CODE_VERSION_TAG
    assert names.INPUT_DATA_VERSION == data_version.INPUT_DATA_VERSION_TAG_PREFIX
    assert names.INPUT_EVENT_POINTER == data_version.INPUT_EVENT_POINTER_TAG_PREFIX
    assert names.KIND == dagster_tags.KIND_PREFIX
    assert names.RANGE_START == dagster_tags.ASSET_PARTITION_RANGE_START_TAG
    assert names.RANGE_END == dagster_tags.ASSET_PARTITION_RANGE_END_TAG
    assert dict(TableMetadataSet(row_count=3)) == {names.ROW_COUNT: 3}


def test_the_latest_version_of_each_partition_is_found(instance: dg.DagsterInstance) -> None:
    for version, partition in (("1", "a"), ("1", "b"), ("2", "b")):
        observe(instance, version, partition)
    assert observed_versions(instance, SOURCE) == {"a": "1", "b": "2"}
    found = latest_observations(instance, SOURCE, ["a", "b", "c"])
    assert {partition: tags[names.DATA_VERSION] for partition, (tags, _) in found.items()} == {"a": "1", "b": "2"}
    assert found["a"][1] < found["b"][1]


def test_an_asset_that_was_never_observed_has_no_observation(instance: dg.DagsterInstance) -> None:
    assert latest_observation(instance, SOURCE) is None
    observe(instance, "7")
    observation = latest_observation(instance, SOURCE)
    assert observation
    assert observation[0][names.DATA_VERSION] == "7"


def recorded(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[object]:
    """Everything that the instance returns of an asset."""
    latest = instance.get_latest_materialization_event(key)
    records = [
        *instance.fetch_observations(dg.AssetRecordsFilter(key), limit=100).records,
        *instance.fetch_materializations(dg.AssetRecordsFilter(key), limit=100).records,
    ]
    found: list[object] = [
        (r.event_type, r.partition_key, r.asset_observation, r.asset_materialization) for r in records
    ]
    versions = observed_versions(instance, key), materialized_versions(instance, key)
    return [*found, *versions, latest and latest.asset_materialization, key in instance.all_asset_keys()]


def test_events_in_batches_are_those_that_dagster_stores(on_disk: dg.DagsterInstance) -> None:
    made = dg.AssetKey(["trial", "made"])
    tags = names.version_tags("1", "2", SOURCE, ({names.DATA_VERSION: "3"}, None))
    events = [
        *(dg.AssetObservation(SOURCE, partition=name, tags={names.DATA_VERSION: name}) for name in "abc"),
        *(dg.AssetMaterialization(made, partition=name, metadata={"points": 3}, tags=tags) for name in "ab"),
    ]
    report_runless_events(on_disk, events)
    with dg.DagsterInstance.ephemeral() as other:
        for event in events:
            other.report_runless_asset_event(event)
        for key in (SOURCE, made):
            assert recorded(on_disk, key) == recorded(other, key)


def test_materializations_in_batches_are_those_that_dagster_stores(
    on_disk: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(context: dg.AssetExecutionContext) -> list[dg.AssetMaterialization]:
        return [dg.AssetMaterialization(context.asset_key, metadata={"name": name}) for name in "ab"]

    @dg.asset(name="made", output_required=False)
    def yielded(context) -> Iterator[dg.AssetMaterialization]:
        yield from events(context)

    @dg.asset(name="made", output_required=False)
    def batched(context) -> Iterator[dg.AssetMaterialization]:
        with MaterializationBatch(context) as batch:
            for event in events(context):
                batch.add(event)
        yield from ()

    found = []
    for asset in (yielded, batched):
        run_id = dg.materialize([asset], instance=on_disk).run_id
        logged = [entry for entry in on_disk.all_logs(run_id) if entry.dagster_event_type == "ASSET_MATERIALIZATION"]
        dagster_events = [entry.dagster_event for entry in logged if entry.dagster_event]
        found.append(
            [
                (entry.level, entry.step_key, entry.job_name, event._replace(logging_tags={}), entry.error_info)
                for entry, event in zip(logged, dagster_events, strict=True)
            ]
        )
        assert len(logged) == 2
    assert found[0] == found[1]

    monkeypatch.setattr(event_store, "_store", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    assert not dg.materialize([batched], instance=on_disk, raise_on_error=False).success


@pytest.mark.parametrize("folder", ["assets", "resources", "sensors"])
def test_no_other_file_uses_internals(folder: str) -> None:
    private = re.compile(r"\"dagster/|dagster\._|event_log_storage|_event_storage|instance\._")
    leaning = {
        f"{path.relative_to(PROJECT)}: {found[0]}"
        for path in (PROJECT / folder).rglob("*.py")
        for found in [private.search(path.read_text())]
        if found and path.parent.name != "dagster_internals"
    }
    assert leaning == set()
