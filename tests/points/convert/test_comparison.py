"""Groups of versions that declared no conventions: a later version neither changes them nor repairs them otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import objects, replace_unnoticed
from zarr_core import ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.convert import convert
from zarr_core.format.array_metadata import group_zarr_json
from zarr_core.format.moments import FieldMoments
from zarr_core.format.object_names import ATTRIBUTES_KEY, CONVENTION, CONVENTIONS_KEY
from zarr_core.points.convert import writer
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store

SETTINGS: dict[str, Any] = {"chunk_points": 32, "codec": "none"}
# Objects of a group in a folder, and the archive.
DAMAGED = ("zarr.json", "surface/pressure/zarr.json", "surface/pressure/c/0/0", "")
LAYOUTS = pytest.mark.parametrize("layout", ["directory", "packed"])


@contextmanager
def earlier_version() -> Iterator[None]:
    """Groups that are written now declare no conventions."""

    def undeclared(attributes: Any, arrays: Any) -> dict[str, Any]:
        return group_zarr_json({ATTRIBUTES_KEY: attributes[ATTRIBUTES_KEY]}, arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "group_zarr_json", undeclared)
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", ("run_1",))


def written(source: Path, store: Path, layout: str, *, declared: bool) -> dict[str, bytes]:
    """The objects of a store that this version or an earlier one has written."""
    if declared:
        convert(KIND, store, root=source, layout=layout, **SETTINGS)
    else:
        with earlier_version():
            convert(KIND, store, root=source, layout=layout, **SETTINGS)
    made = objects(store)
    assert any(CONVENTIONS_KEY.encode() in data for data in made.values()) == declared
    return made


@LAYOUTS
@pytest.mark.parametrize("declared", [False, True])
def test_groups_stay_as_they_were_written(tmp_path: Path, source: Path, layout: str, declared: bool) -> None:
    store = tmp_path / "store"
    before = written(source, store, layout, declared=declared)
    config = ZarrPointDatasetConfig(root=str(store), split="all")
    fingerprint = ZarrPointDataset(config).fingerprint
    for force in (False, True):
        assert convert(KIND, store, root=source, force=force).manifest.generation == 1
        assert objects(store) == before
    assert ZarrPointDataset(config).fingerprint == fingerprint


@LAYOUTS
def test_moments_of_another_processor_stay_as_they_were_written(
    tmp_path: Path, source: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_processor(moments: FieldMoments) -> dict[str, Any]:
        document = own(moments)
        document["log_mean"] = [mean * (1 + 1e-11) for mean in document["log_mean"]]
        return document

    own = FieldMoments.to_json
    store = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(FieldMoments, "to_json", of_another_processor)
        before = written(source, store, layout, declared=True)
    assert written(source, tmp_path / "here", layout, declared=True) != before
    assert convert(KIND, store, root=source, force=True).manifest.generation == 1
    assert objects(store) == before


@pytest.mark.slow
@LAYOUTS
@pytest.mark.parametrize("declared", [False, True])
def test_groups_are_repaired_as_they_were_written(tmp_path: Path, source: Path, layout: str, declared: bool) -> None:
    """Except that nothing tells which version wrote the metadata of a folder that is lost."""
    made = written(source, tmp_path / "made", layout, declared=declared)
    for name, kept in made.items():
        own_name = name.partition("/")[2].partition("/")[2].partition("/")[2]
        if not name.startswith("samples/") or own_name not in DAMAGED:
            continue
        for damaged in (kept[: len(kept) // 2], b"\0" * 50 + kept[50:], kept[:-1] + b"\7", b"", None):
            store = tmp_path / "store"
            shutil.copytree(tmp_path / "made", store)
            if damaged is None:
                (store / name).unlink()
            else:
                (store / name).write_bytes(damaged)
            manifest = convert(KIND, store, root=source, force=True).manifest
            after = objects(store)
            if not declared and name.count("/") == 3 and name.endswith("zarr.json"):
                restored = json.loads(after[name])
                assert restored["attributes"].pop(CONVENTIONS_KEY) == [CONVENTION]
                assert restored == json.loads(kept)
                after[name] = kept
            assert after == made, (name, damaged)
            assert manifest.generation == 1
            assert verify_store(str(store)).ok
            shutil.rmtree(store)


@LAYOUTS
def test_a_group_that_exists_under_the_name_of_other_content_stays(tmp_path: Path, source: Path, layout: str) -> None:
    import torch

    store, path = tmp_path / "store", source / "run_1" / "surface_pressure.pt"
    first = torch.load(path, weights_only=True)
    written(source, store, layout, declared=False)
    replace_unnoticed(path, first + 1)
    with earlier_version():
        assert convert(KIND, store, root=source, force=True).manifest.generation == 2
    before = objects(store)
    for content, generation in ((first, 3), (first + 1, 4), (first + 2, 5)):
        replace_unnoticed(path, content)
        manifest = convert(KIND, store, root=source, force=True).manifest
        assert manifest.generation == generation
        groups = {name: data for name, data in objects(store).items() if name.startswith("samples/")}
        assert all(groups[name] == data for name, data in before.items() if name.startswith("samples/"))
    new = load_manifest(store).samples["run_1"].relpath
    assert any(CONVENTIONS_KEY.encode() in data for name, data in groups.items() if name.startswith(new))
