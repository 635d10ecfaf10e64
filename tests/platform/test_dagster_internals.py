"""Fails if a new Dagster changes what ``sensors/dagster_internals.py`` uses, or if other files use such parts too."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from dagster._core.definitions import data_version
from dagster._core.definitions.metadata import TableMetadataSet
from dagster._core.storage import tags

from sensors import dagster_internals as internals
from tests.platform.trial import PROJECT

SOURCE = dg.AssetKey(["trial", "source"])


def observe(instance: dg.DagsterInstance, version: str, partition: str | None = None) -> None:
    event = dg.AssetObservation(SOURCE, partition=partition, tags={internals.DATA_VERSION: version})
    instance.report_runless_asset_event(event)


def test_the_installed_version_is_supported() -> None:
    assert dg.__version__.startswith("1.13."), "compare sensors/dagster_internals.py with the new version"


def test_the_tags_are_dagsters() -> None:
    assert internals.DATA_VERSION == data_version.DATA_VERSION_TAG
    assert internals.CODE_VERSION == data_version.CODE_VERSION_TAG
    assert internals.INPUT_DATA_VERSION == data_version.INPUT_DATA_VERSION_TAG_PREFIX
    assert internals.INPUT_EVENT_POINTER == data_version.INPUT_EVENT_POINTER_TAG_PREFIX
    assert internals.KIND == tags.KIND_PREFIX
    assert internals.RANGE_START == tags.ASSET_PARTITION_RANGE_START_TAG
    assert internals.RANGE_END == tags.ASSET_PARTITION_RANGE_END_TAG
    assert dict(TableMetadataSet(row_count=3)) == {internals.ROW_COUNT: 3}


def test_the_latest_version_of_each_partition_is_found(instance: dg.DagsterInstance) -> None:
    for version, partition in (("1", "a"), ("1", "b"), ("2", "b")):
        observe(instance, version, partition)
    assert internals.observed_versions(instance, SOURCE) == {"a": "1", "b": "2"}
    found = internals.latest_observations(instance, SOURCE, ["a", "b", "c"])
    assert {partition: tags[internals.DATA_VERSION] for partition, (tags, _) in found.items()} == {"a": "1", "b": "2"}
    assert found["a"][1] < found["b"][1]


def test_an_asset_that_was_never_observed_has_no_observation(instance: dg.DagsterInstance) -> None:
    assert internals.latest_observation(instance, SOURCE) is None
    observe(instance, "7")
    observation = internals.latest_observation(instance, SOURCE)
    assert observation
    assert observation[0][internals.DATA_VERSION] == "7"


@pytest.mark.parametrize("folder", ["assets", "resources", "sensors"])
def test_no_other_file_uses_internals(folder: str) -> None:
    private = re.compile(r"\"dagster/|dagster\._|event_log_storage|_event_storage|instance\._")
    leaning = {
        f"{path.relative_to(PROJECT)}: {found[0]}"
        for path in (PROJECT / folder).rglob("*.py")
        for found in [private.search(path.read_text())]
        if found and path.name != "dagster_internals.py"
    }
    assert leaning == set()
