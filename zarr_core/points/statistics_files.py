"""The files of statistics of a store: which one a generation normalizes with, and how it is read."""

from __future__ import annotations

from typing import Any

from zarr_core._util.commands import shell
from zarr_core._util.documents import parse_yaml
from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.format.object_names import STATISTICS, STATISTICS_YAML, statistics_name
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage


def training_split(manifest: StoreManifest) -> str | None:
    """The split that training normalizes with: "train" if the store lists samples for it, else None for all samples.

    The samples need not be stored: a partial copy normalizes with the statistics of its source.
    """
    listed = "train" in manifest.splits and manifest.split_ids("train", present_only=False)
    return "train" if listed else None


def find_statistics(storage: Storage, manifest: StoreManifest) -> str:
    """Name, without the suffix, of the statistics that datasets of a generation normalize with.

    It is ``statistics/<generation>/<training split>``. In stores of other programs, which have no generations, it is
    ``stats``. Where others may have committed since, nothing tells which generation ``stats`` is of.

    Raises:
        ZarrCoreError: there are none; names the command that writes them.
    """
    published = STATISTICS_YAML.removesuffix(".yaml")
    name = statistics_name(manifest.generation, training_split(manifest)) if manifest.generation else published
    if storage.exists(f"{name}.yaml"):
        return name
    lacks = f"{storage.url} has no {name}.yaml, which normalizers need; {statistics_hint(storage, manifest)}"
    latest = 0
    for recorded in storage.list(STATISTICS):
        place = recorded.split("/")
        if place[2:] == [f"{name.rpartition('/')[2]}.yaml"] and place[1].isdecimal():
            latest = max(latest, int(place[1]))
    if latest:
        raise ZarrCoreError(f"{lacks}, or open a generation that has it: the latest is generation={latest}")
    raise ZarrCoreError(lacks)


def load_statistics(storage: Storage, manifest: StoreManifest) -> tuple[dict[str, Any], str]:
    """The statistics that :func:`find_statistics` finds, and the URL of their file; raises ZarrCoreError as it does."""
    return _parsed(storage, f"{find_statistics(storage, manifest)}.yaml", statistics_hint(storage, manifest))


def read_statistics(place: str) -> tuple[dict[str, Any], str]:
    """The statistics of a YAML file, and its URL without credentials; raises ZarrCoreError, with the way to get one."""
    folder, slash, name = place.rpartition("/")
    storage = Storage(folder or slash or ".")
    try:
        return _parsed(storage, name, statistics_file_hint(place))
    except FileNotFoundError:
        raise ZarrCoreError(f"there is no file {redact(place)}; {statistics_file_hint(place)}") from None


def statistics_file_hint(place: str) -> str:
    """The way to get a file of statistics, as part of an error message."""
    return f"create it with `{shell('statistics', 'STORE', '--split', 'train', '--output-yaml', redact(place))}`"


def _parsed(storage: Storage, name: str, hint: str) -> tuple[dict[str, Any], str]:
    try:
        statistics = parse_yaml(storage.read(name))
    except ValueError as error:
        raise ZarrCoreError(f"{storage.url}/{name} is not valid YAML: {error}; {hint}") from error
    if not isinstance(statistics, dict):
        raise ZarrCoreError(f"{storage.url}/{name} is not a mapping; {hint}")
    return statistics, f"{storage.url}/{name}"


def statistics_hint(storage: Storage, manifest: StoreManifest) -> str:
    """The way to get the statistics that :func:`find_statistics` looks for, as part of an error message."""
    split = training_split(manifest)
    url, generation, then = storage.url, manifest.generation, ""
    if manifest.origin:  # a copy may lack samples
        # A command takes the endpoint from the environment.
        url = redact(str(manifest.origin.get("store"))).partition(" at http")[0]
        generation = manifest.origin.get("generation") or 0
        then = ", then stage the copy again"
    options: list[object] = []
    if split:
        options += ["--split", split]
    if generation:
        options += ["--generation", generation]
    return f"create it with `{shell('statistics', url, *options)}`{then}"
