"""Names of temporary files."""

from __future__ import annotations

import pytest

from zarr_core.storage.temporary import add_temp_suffix, strip_temp_suffix


@pytest.mark.parametrize(
    "name", ["manifest.json", "generations/00000001.json", "samples/a/0123/c/0/0", ".hidden", "a.tmp"]
)
def test_a_temporary_name_gives_the_final_name(name: str) -> None:
    temporary = add_temp_suffix(name)
    assert temporary.rpartition("/")[0] == name.rpartition("/")[0]
    assert temporary != add_temp_suffix(name)
    assert strip_temp_suffix(temporary) == (name, True)


@pytest.mark.parametrize("name", ["manifest.json", "a/b.tmp", ".manifest.json.tmp", f"manifest.json.{'0' * 32}.tmp"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert strip_temp_suffix(name) == (name, False)
