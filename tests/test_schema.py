"""The JSON schema of a sample's group, ``docs/schema/sample.json``, describes what is written, and all of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from zarr_core import stage_store, write_sample
from zarr_core.convert import convert
from zarr_core.format.object_names import CONVENTION
from zarr_core.points.store.head import load_manifest
from zarr_core.storage.zarr_stores import group_place, make_store

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "schema" / "sample.json").read_text())
ARRAYS = {"surface_position": np.random.rand(50, 3), "surface_pressure": np.random.rand(50)}
PARAMETERS = {"speed": 30.0, "name": "a", "fixed": True, "none": None, "inflow": [30.0, 0.0, 1]}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without room for keys that it does not describe."""
    schema = copy.deepcopy(schema)
    for name in ("sample", "moments", "rounding", "mesh", "source", "convention"):
        schema["$defs"][name]["additionalProperties"] = False
    schema["properties"]["attributes"]["additionalProperties"] = False
    return schema


def groups(store: Path) -> dict[str, dict[str, Any]]:
    """The metadata of every sample's group, as zarr-python reads it."""
    found = {}
    for sample_id, sample in load_manifest(store).samples.items():
        place, path = group_place(str(store), sample.relpath)
        group = zarr.open_group(make_store(place), path=path, mode="r", zarr_format=3)
        found[sample_id] = {"zarr_format": 3, "node_type": "group", "attributes": group.attrs.asdict()}
    return found


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_groups_of_both_layouts_are_as_the_schema_says(tmp_path: Path, layout: str) -> None:
    store, source = tmp_path / "store", tmp_path / "source" / "b"
    settings: Any = {"layout": layout, "chunk_points": 16, "max_errors": {"surface_pressure": 0.01}}
    write_sample(store, "a", ARRAYS, parameters=PARAMETERS, **settings)
    source.mkdir(parents=True)
    torch.save(torch.rand(50, 3), source / "p.pt")
    torch.save(torch.rand(50), source / "v.pt")
    (source / "params.json").write_text(json.dumps(PARAMETERS))
    for fingerprint in ("version", "content"):
        place = tmp_path / fingerprint
        convert(kind(), place, root=source.parent, fingerprint=fingerprint, **settings)
    copies = [store, tmp_path / "version", tmp_path / "content"]
    for number, options in enumerate(({}, {"points": "50%"}, {"fields": ["surface_position"]}, {"layout": "packed"})):
        copies.append(tmp_path / f"copy{number}")
        stage_store(store, copies[-1], **options)
    for place in copies:
        for group in groups(place).values():
            jsonschema.validate(group, closed(SCHEMA), jsonschema.Draft202012Validator)
            assert group["attributes"]["zarr_conventions"] == [CONVENTION]
            assert group["attributes"]["zarr_core"]["parameters"] == PARAMETERS


def kind() -> Any:
    from zarr_core.sources import SourceDescription

    return SourceDescription(name="own", samples="*", files={"surface_position": "p.pt", "surface_pressure": "v.pt"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("fingerprint", "short"),
        ("parameters", {"inflow": [[1]]}),
        ("moments", {"surface_pressure": {"count": 1}}),
        ("stored_bytes", {"surface_pressure": -1}),
        ("source", {"files": {"surface_pressure": {"name": "p.pt", "size": 1}}}),
        ("packed", {}),
    ],
)
def test_the_schema_refuses_other_content(tmp_path: Path, key: str, value: Any) -> None:
    write_sample(tmp_path / "store", "a", ARRAYS, parameters=PARAMETERS)
    (group,) = groups(tmp_path / "store").values()
    group["attributes"]["zarr_core"][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(group, SCHEMA)


def test_the_schema_is_one_and_has_the_name_of_the_convention() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == f"urn:uuid:{CONVENTION['uuid']}"
    assert SCHEMA["title"] == CONVENTION["name"]
