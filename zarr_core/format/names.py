"""Names of fields and samples, and their rules.

A canonical field name is ``<domain>_<name>`` ("surface_pressure"); its array is ``<domain>/<name>`` in the
sample's group. Source: ``field_dims``, ``overrides`` and ``not_a_point_field`` of the published file maps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zarr_core.errors import SourceError

FIELD_DIMS = {
    "position": 3,
    "pressure": 1,
    "friction": 3,
    "normals": 3,
    "area": 1,
    "velocity": 3,
    "vorticity": 3,
    "sdf": 1,
}
POSITION = "position"

# File-map attributes that do not split at the first underscore.
_ATTRIBUTE_OVERRIDES = {
    "surface_position_stl": ("surface_stl", "position"),  # own point count, hence a domain of its own
    "surface_position_stl_resampled": ("surface_stl_resampled", "position"),
    "volume_distance_to_surface": ("volume", "sdf"),
}
PARAMETER_ATTRIBUTES = frozenset({"design_parameters"})

#: Most characters of the name of a field or a parameter, and of each part of a sample's id.
MAX_NAME = 200
# Most characters of a sample's id. Keys of object stores have at most 1,024 bytes.
_MAX_ID = 800
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_NAME - 1}}}")


def _joined(name: str) -> re.Pattern[str]:
    """Names joined by "/", none of them "." or "..": one expression, because a manifest has thousands of them."""
    part = rf"(?!\.\.?(?:/|\Z)){name}"
    return re.compile(f"{part}(?:/{part})*")


# Blanks are between other characters only. object_names.BLANK, which stands for them in the store, is not in an id.
_SAMPLE_ID = _joined(r"[\w.+=@~-](?:[\w.+=@~ -]{0,198}[\w.+=@~-])?")
# The folder of such a sample would have the name of a packed sample's archive, see storage/archives.py.
_LIKE_AN_ARCHIVE = re.compile(r".+/[0-9a-f]{16}\.zip(?:/.*)?")
# Without characters that filesystems reject or that cannot be printed.
_RELATIVE_PATH = _joined(r"[^/\x00-\x1f\x7f\ud800-\udfff\\]+")


@dataclass(frozen=True)
class FieldName:
    """A point field: its domain ("surface"), its name within it ("pressure")."""

    domain: str
    name: str

    @property
    def canonical(self) -> str:
        """``<domain>_<name>``, the key in manifests, configs and batches."""
        return f"{self.domain}_{self.name}"

    @property
    def array_name(self) -> str:
        """Path of the array below the sample's group."""
        return f"{self.domain}/{self.name}"

    @property
    def is_position(self) -> bool:
        """Whether this field is its domain's coordinates."""
        return self.name == POSITION

    @property
    def dim(self) -> int | None:
        """Components per point required by the name, or None."""
        return FIELD_DIMS.get(self.name)


def field_name(attribute: str) -> FieldName:
    """The field of a file-map attribute; raises SourceError unless it has the form ``<domain>_<name>``."""
    if not _NAME.fullmatch(attribute):
        raise SourceError(
            f"field name {attribute!r:.80}: use at most {MAX_NAME} lower-case letters, digits and underscores"
        )
    domain, name = _ATTRIBUTE_OVERRIDES.get(attribute) or attribute.partition("_")[::2]
    if not name:
        raise SourceError(f"field name {attribute!r}: expected <domain>_<name>, as in surface_pressure")
    return FieldName(domain, name)


def check_sample_id(sample_id: str) -> str:
    """Return the id if it can name a folder below the store root, see :func:`sample_folder`; else raise SourceError.

    It must have no characters that are unsafe in object stores or shells, and no part that is named as an archive.
    """
    if len(sample_id) > _MAX_ID or not _SAMPLE_ID.fullmatch(sample_id):
        raise SourceError(
            f"sample id {sample_id!r:.80} cannot be used: ids are one or more names of letters, digits, blanks "
            "inside and _.+=@~- joined by '/', none of them '.' or '..'"
        )
    if ".zip" in sample_id and _LIKE_AN_ARCHIVE.fullmatch(sample_id):
        reason = "after a '/', 16 hexadecimal digits and '.zip' are the name of a packed sample"
        raise SourceError(f"sample id {sample_id!r:.80} cannot be used: {reason}; rename the sample in its source")
    return sample_id


def listed_id(line: str, depth: int) -> str:
    """The sample id in a line of a blacklist, which is an id or the path of a mesh file: its last ``depth`` parts."""
    return "/".join(line.removesuffix(".vtk").split("/")[-depth:])


def check_relative_path(path: str) -> str:
    """Return the path if it is normalised and stays below the root that it is joined to; else raise SourceError."""
    if not _RELATIVE_PATH.fullmatch(path):
        raise SourceError(f"path {path!r} leaves the folder it must stay in")
    return path
