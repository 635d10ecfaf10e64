"""Which files of a folder belong to an OpenFOAM case. Reading them is tested in formats/test_openfoam.py."""

from __future__ import annotations

import pytest

from zarr_core.sources.description import SourceDescription
from zarr_core.sources.patterns import by_sample, matches, meshes_of_cases
from zarr_core.sources.sample import FileInfo

KIND = SourceDescription.model_validate(
    {"name": "cases", "samples": "*", "meshes": {"volume": {"file": "./", "fields": {"pressure": "p"}}}}
)
MESH = "constant/polyMesh/points"


@pytest.mark.parametrize("characters", ["?", "[0-9]", "[!a]", "[[]", "[b-a]", "[*]", "x", "]"])
def test_wildcards_mean_the_same_with_and_without_an_id(characters: str) -> None:
    """Files of samples with a folder, or with the id in their names; hidden ones match neither."""
    pattern = f"*/{characters}_v*.npz"
    file = {"file": f"*/{characters}_v{{id}}.npz", "array": "x"}
    kind = SourceDescription.model_validate({"name": "own", "samples": "*", "files": {"surface_position": file}})
    for name in ("f/1_v3.npz", "f/a_v3.npz", "f/[_v3.npz", "f/*_v3.npz", "f/x_v3.npz", "f/]_v3.npz", ".f/1_v3.npz"):
        own_folder, _, last = name.rpartition("/")
        found, problems = by_sample(kind, {own_folder: {last: FileInfo(last, 10, "v")}})
        assert ("3" in found) == matches(name, pattern)
        assert not any(problems.values())


def case(*names: str) -> FileInfo | None:
    listing: dict[str, dict[str, FileInfo]] = {}
    for name in names:
        folder, _, last = f"run/{name}".rpartition("/")
        listing.setdefault(folder, {})[last] = FileInfo(last, 10, "v")
    return by_sample(KIND, listing)[0]["run"].get("./")


def parts(*names: str) -> set[str]:
    found = case(*names)
    return {part.name for part in found.parts} if found else set()


def test_a_case_that_was_converted_earlier_keeps_its_fingerprint() -> None:
    reconstructed = case(MESH, "system/controlDict", "0/p", "5e-05/p", "5e-05/U", "log.simpleFoam")
    beside = case(MESH, "100/p", "50/p", f"processor0/{MESH}", "processor0/50/p", "processor0/100/p")
    decomposed = case("system/controlDict", "0/p", f"processor0/{MESH}", "processor0/0/p", "processor0/100/p")
    versions = [info.version for info in (reconstructed, beside, decomposed) if info]
    assert versions == ["a96eebb4d879bb04", "59edc635fb442605", "1e34ba3345dcccec"]


@pytest.mark.parametrize(
    ("earlier", "latest"),
    [("999000", "1e+06"), ("-180", "-10"), ("-10", "5"), ("9", "10"), ("2e-05", "0.0001"), ("0", "1.5e3")],
)
def test_the_latest_time_is_the_largest_number(earlier: str, latest: str) -> None:
    assert parts(MESH, f"{earlier}/p", f"{latest}/p") == {MESH, f"{latest}/p"}


@pytest.mark.parametrize("folder", ["1.2.3", "..", "0.orig", "1e", "-", "2024-01-01", "1-2"])
def test_a_folder_that_is_no_number_is_no_time(folder: str) -> None:
    assert parts(MESH, "0/p", f"{folder}/notes") == {MESH, "0/p"}


def test_names_of_fields_have_any_characters_but_hidden_files_and_backups_are_no_fields() -> None:
    fields = {"2/alpha.water", "2/total(p)_coeffMean", "2/p_rgh", "2/T.gz"}
    assert parts(MESH, *fields, "2/.p.swp", "2/p~", "2/uniform/time") == {MESH, *fields}


@pytest.mark.parametrize("processor", ["", "processor0/"])
def test_the_mesh_has_the_newest_of_each_file_until_the_time_of_the_fields(processor: str) -> None:
    def moved(time: str, name: str) -> str:
        return f"{processor}{time}/polyMesh/{name}"

    own = {f"{processor}constant/polyMesh/owner", f"{processor}10/p", moved("2", "faces"), moved("10", "points")}
    others = {f"{processor}9/p", moved("1", "faces"), moved("2", "points"), moved("9", "points"), moved("11", "points")}
    assert parts(*own, *others, f"{processor}{MESH}") == own
    assert parts(f"{processor}{MESH}", moved("1", "points")) == {moved("1", "points")}


def test_each_processor_has_its_own_mesh() -> None:
    own = {f"processor{i}/{name}" for i in (0, 1) for name in ("2/polyMesh/points", "2/p")}
    assert parts(*own) == own


@pytest.mark.parametrize(
    "root",
    [(MESH,), (MESH, "0/p"), (MESH, "100/p", "100/polyMesh/points"), ("300/p",)],
)
def test_processors_with_a_later_time_are_the_case(root: tuple[str, ...]) -> None:
    own = {f"processor0/{MESH}", "processor0/200/p", "system/controlDict"}
    assert parts(*own, "processor0/0/p", *root) == own


def test_a_reconstructed_time_as_late_as_that_of_the_processors_is_in_the_case() -> None:
    assert {MESH, "200/p"} < parts(MESH, "200/p", f"processor0/{MESH}", "processor0/200/p")
    assert parts(MESH, "200/p", f"processor0/{MESH}", "processor0/100/p") == {MESH, "200/p", f"processor0/{MESH}"}


def test_without_a_mesh_there_is_no_case() -> None:
    assert case("0/p", "system/controlDict", "processor0/200/p") is None
    assert parts("constant/polyMesh/points.gz", "0/p.gz") == {"constant/polyMesh/points.gz", "0/p.gz"}


def test_folders_of_several_processors_are_the_case_if_they_have_the_latest_time() -> None:
    collated = {f"processors3/{MESH}", "processors3/200/p"}
    assert parts(MESH, "100/p", "system/controlDict", *collated) == collated | {"system/controlDict"}
    assert parts(MESH, "200/p", *collated) == {MESH, "200/p"}
    separate = {f"processor0/{MESH}", "processor0/200/p"}
    assert parts(MESH, "0/p", *separate, *collated) == separate
    assert parts("processors4_0-1/100/p", *separate, f"processors4_0-1/{MESH}") == separate


def test_meshes_of_cases() -> None:
    paths = {
        "42/constant/polyMesh/points": ("42", ""),
        "a/b/processor0/constant/polyMesh/points": ("a/b", ""),
        "a/processors3/7/polyMesh/points": ("a", ""),
        "constant/polyMesh/points.gz": ("", ""),
        "42/7/polyMesh/points": ("42", ""),
        "processor0/constant/polyMesh/points": ("", ""),
        "a/constant/fluid/polyMesh/points": ("a", "fluid"),
        "a/processor1/7/fluid/polyMesh/points": ("a", "fluid"),
    }
    assert meshes_of_cases(["a/constant/polyMesh/sets/x", "a/polyMesh/points"]) == {}
    for path, (case, region) in paths.items():
        assert meshes_of_cases([path]) == {case: {region}}, path
