"""What a dataset looks like on disk, as data: which folder is a sample, which file which field, who is in which split.

The published datasets lie beside this module in ``kinds/*.yaml``; a user's own is a YAML file of the same form.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

from zarr_core._util.documents import PlainLoader, parse_yaml
from zarr_core.errors import SourceError
from zarr_core.format.names import (
    PARAMETER_ATTRIBUTES,
    POSITION,
    FieldName,
    check_relative_path,
    check_sample_id,
    field_name,
)

ReadText = Callable[[str], str | None]

# What a permutation is made of at most: one eats eight bytes a sample.
_MAX_SAMPLES = 10_000_000


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class FieldFile(_Model):
    """One point field of a dataset and the file that holds it in each sample's folder."""

    domain: str
    name: str
    filename: str

    @property
    def field(self) -> FieldName:
        """The field's name in all its forms."""
        return FieldName(self.domain, self.name)


def _with_one(place: str) -> Callable[[str], str]:
    """A check that a text has one place to fill in, and nothing else that ``str.format`` would act on."""

    def check(text: str) -> str:
        if text.count(place) != 1 or set("{}") & set(text.replace(place, "")):
            raise ValueError(f"must hold {place} once, and no other braces")
        return text

    return check


class SplitFiles(_Model):
    """Splits listed in files beside the samples, one sample id a line."""

    rule: Literal["files"]
    filename: Annotated[str, pydantic.AfterValidator(_with_one("{split}"))] = "{split}_design_ids.txt"
    names: tuple[str, ...] = ("train", "val", "test")

    @pydantic.model_validator(mode="after")
    def _check(self) -> SplitFiles:
        for split in self.names:
            check_relative_path(self.filename.format(split=split))
        return self

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, for the split files that exist."""
        found = {split: read_text(self.filename.format(split=split)) for split in self.names}
        return {split: _lines(text) for split, text in found.items() if text is not None}


class SplitPermutation(_Model):
    """Splits cut from a seeded permutation of the ids 1..count: ``torch.randperm`` with that seed, plus one."""

    rule: Literal["permutation"]
    count: Annotated[int, pydantic.Field(ge=1, le=_MAX_SAMPLES)]
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**63)]
    sizes: dict[str, Annotated[int, pydantic.Field(ge=0, le=_MAX_SAMPLES)]]
    exclude: frozenset[int] = frozenset()
    sample_id: Annotated[str, pydantic.AfterValidator(_with_one("{}"))] = "run_{}"

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, those included that the source does not hold."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        numbers = [n for n in (torch.randperm(self.count, generator=generator) + 1).tolist() if n not in self.exclude]
        splits, start = {}, 0
        for split, size in self.sizes.items():
            splits[split] = [self.sample_id.format(n) for n in numbers[start : start + size]]
            start += size
        return splits


class SplitFolders(_Model):
    """Splits by the first folder of the sample id."""

    rule: Literal["folders"]
    folders: dict[str, tuple[str, ...]]

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, among those that the source holds."""
        return {
            split: [sample_id for sample_id in sorted(sample_ids) if sample_id.partition("/")[0] in folders]
            for split, folders in self.folders.items()
        }


SplitRule = Annotated[SplitFiles | SplitPermutation | SplitFolders, pydantic.Field(discriminator="rule")]


class SourceDescription(_Model):
    """A kind of dataset.

    Attributes:
        name: short name, also the default ``dataset_name`` of its stores.
        samples: glob of the sample folders below the root; what it matches is the sample id.
        subfolder: folder below the root that holds the samples; left out where the root itself does.
        files: file-map attribute ("surface_position") to the file's name in a sample's folder. An entry
            ``design_parameters`` names a dict of scalars; a ``params.json`` is always picked up.
        splits: rule that assigns samples to splits.
        blacklists: files beside the samples that list ids excluded from every split.
    """

    name: str
    samples: str
    files: dict[str, str]
    subfolder: str = ""
    splits: SplitRule = SplitFiles(rule="files")
    blacklists: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _check(self) -> SourceDescription:
        for filename in self.files.values():
            if "/" in filename or filename in ("", ".", ".."):
                raise ValueError(f"{filename!r} must be the name of a file in the sample's folder")
        for path in (*self.files.values(), self.samples, *filter(None, (self.subfolder,)), *self.blacklists):
            check_relative_path(path)
        by_field: dict[str, FieldFile] = {}
        for file in self._field_files():
            other = by_field.setdefault(file.field.canonical, file)
            if other is not file:
                raise ValueError(f"two files for {file.field.canonical}: {other.filename} and {file.filename}")
        for domain in {file.domain for file in by_field.values()}:
            if f"{domain}_{POSITION}" not in by_field:
                raise ValueError(f"domain {domain!r} has no {domain}_{POSITION}; its points would have no coordinates")
        if not by_field:
            raise ValueError("files names no point field")
        return self

    def _field_files(self) -> list[FieldFile]:
        named = [(field_name(a), f) for a, f in self.files.items() if a not in PARAMETER_ATTRIBUTES]
        return [FieldFile(domain=name.domain, name=name.name, filename=filename) for name, filename in named]

    @cached_property
    def fields(self) -> dict[str, FieldFile]:
        """Point fields by canonical name, each domain's position first."""
        files = sorted(self._field_files(), key=lambda file: (file.domain, file.name != POSITION))
        return {file.field.canonical: file for file in files}

    @property
    def parameter_files(self) -> tuple[str, ...]:
        """Files with scalars of the sample as a whole."""
        return ("params.json", *(f for a, f in self.files.items() if a in PARAMETER_ATTRIBUTES))

    def assign_splits(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Sample ids by split.

        Args:
            sample_ids: ids that the source holds.
            read_text: content of a file beside the samples, None where there is none.
        """
        splits = self.splits.assign(sample_ids, read_text)
        return {split: [check_sample_id(sample_id) for sample_id in ids] for split, ids in splits.items()}

    def excluded_ids(self, read_text: ReadText) -> set[str]:
        """Ids that the blacklists name, as bare ids or as paths of mesh files."""
        lines = [line for name in self.blacklists for line in _lines(read_text(name) or "")]
        return {line.rsplit("/", 1)[-1].removesuffix(".vtk") for line in lines}


def _lines(text: str) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def shipped_kinds() -> list[str]:
    """Short names of the datasets that come with the library."""
    folder = resources.files("zarr_core.sources").joinpath("kinds")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def resolve_kind(kind: str | SourceDescription | object) -> SourceDescription:
    """The description of a dataset kind.

    Args:
        kind: a short name ("ahmedml"), a dotted path ("zarr_core.datasets.AhmedMLDataset"), the path of a YAML file, a
            description, or any class or object with a ``description`` or a ``filemap``.

    Raises:
        SourceError: there is no such kind, or its description contradicts itself.
    """
    if isinstance(kind, SourceDescription):
        return kind
    if not isinstance(kind, str):
        return _described_by(kind)
    if kind in shipped_kinds():
        text = resources.files("zarr_core.sources").joinpath("kinds", f"{kind}.yaml").read_text()
        return _from_yaml(text, kind)
    if kind.endswith((".yaml", ".yml")):
        try:
            return _from_yaml(Path(kind).read_text(), kind)
        except (OSError, ValueError) as error:
            raise SourceError(f"{kind} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "." in kind:
        return _described_by(import_dotted(kind))
    raise SourceError(
        f"no dataset kind {kind!r}: use one of {', '.join(shipped_kinds())}, a dotted path or the path of a YAML file"
    )


def import_dotted(path: str) -> Any:
    """The object at a dotted path; raises SourceError."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: it begins with a dot
        raise SourceError(f"{path}: {error}") from error


def _described_by(obj: object) -> SourceDescription:
    description = getattr(obj, "description", None)
    if isinstance(description, str | SourceDescription):
        return resolve_kind(description)
    filemap = getattr(obj, "filemap", None)
    if filemap is None:
        raise SourceError(f"{obj!r} has neither a description nor a filemap")
    name = obj.__name__ if isinstance(obj, type) else type(obj).__name__
    return describe_filemap(name, filemap)


def describe_filemap(name: str, filemap: object) -> SourceDescription:
    """A description from somebody else's file map: a mapping, a dataclass or any object with file names as attributes.

    Attributes that are None are fields that the dataset does not have.
    """
    if isinstance(filemap, dict):
        entries: Iterable[tuple[str, object]] = filemap.items()
    else:
        entries = ((a, getattr(filemap, a)) for a in dir(filemap) if not a.startswith("_"))
    files = {attribute: value for attribute, value in entries if isinstance(value, str)}
    return _validated({"name": name, "samples": "*", "files": files}, f"file map of {name}")


class _StrictLoader(PlainLoader):
    """YAML that refuses a key given twice; PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):  # refused below
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _from_yaml(text: str, where: str) -> SourceDescription:
    try:
        data = parse_yaml(text, _StrictLoader)
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{where}: expected a mapping with name, samples and files")
    return _validated(data, where)


def _validated(data: dict[str, Any], where: str) -> SourceDescription:
    try:
        return SourceDescription.model_validate(data)
    except pydantic.ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ") for problem in error.errors()
        )
        raise SourceError(f"{where}: {reasons}") from error
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from error
