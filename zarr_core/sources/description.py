"""Description of a dataset's layout: which folders are samples, which file holds which field, and the splits.

The descriptions of the published datasets are ``kinds/*.yaml``; a user's own is a YAML file of the same form. Files of
solvers contain several arrays, and their names often contain the sample's id: ``meshes`` describes those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Literal

import pydantic

from zarr_core.errors import SourceError
from zarr_core.format.names import (
    PARAMETER_ATTRIBUTES,
    POSITION,
    FieldName,
    check_relative_path,
    field_name,
    listed_id,
)
from zarr_core.sources.arrays import CASE, ONE_OR_SEVERAL, ROOTS, ArrayChoice, Names, suffix_of

ReadText = Callable[[str], str | None]

# Upper limit on the length of a permutation, which takes eight bytes per sample.
_MAX_SAMPLES = 10_000_000
# Power of the unit of length in a computed field, and its unit.
_COMPUTED = {POSITION: (1, "m"), "normals": (0, ""), "area": (2, "m2")}


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


def _short_for(key: str) -> pydantic.BeforeValidator:
    """Validator: a name, or a list of names, stands for an entry with this key only."""

    def entry(value: Any) -> Any:
        return {key: value} if isinstance(value, str | list | tuple) else value

    return pydantic.BeforeValidator(entry)


class FieldFile(_Model):
    """One point field of a dataset and the file that holds it in each sample's folder.

    Attributes:
        domain, name: of the field.
        filename: name of the file, or the pattern that it matches.
        choice: which arrays of the file make the field; None for a file with one tensor.
    """

    domain: str
    name: str
    filename: str
    choice: ArrayChoice | None = None

    @property
    def field(self) -> FieldName:
        """The field's name in all its forms."""
        return FieldName(self.domain, self.name)


class FieldArray(_Model):
    """An array, or arrays with one component each, of a file with several.

    Attributes:
        array: name, or names of the components; of a CSV file those of its columns.
        file: name or pattern of the file. In ``meshes``: another file with the points of the domain, in any order.
        scale: factor of the values.
        units: of the values after scaling.
    """

    array: Names = pydantic.Field(min_length=1)
    file: str = ""
    scale: float = 1.0
    units: str = ""


class MeshFile(_Model):
    """The fields of one domain that lie in a mesh.

    Attributes:
        file: pattern of its name in the sample's folder, as in "boundary_*.vtp"; one that ends in "/" is the folder of
            an OpenFOAM case, "./" the sample's folder itself. ``{id}`` instead of the sample's folder: the file's
            path below the root contains the id, as in "PressureVTK/*/{id}.vtk".
        at: whether the points of the domain are the centres of the cells, or the points of the mesh.
        patches: only these parts of the boundary.
        length_scale: metres per unit of length of the file; scales positions and areas.
        fields: array of the file by name of the field ("pressure").
        compute: unit normals and areas of the cells, computed from the mesh.
        connectivity: whether the store keeps the mesh, for :meth:`zarr_core.ZarrChunkReader.read_mesh`.
    """

    file: str
    at: Literal["cells", "points"] = "cells"
    patches: Names = ()
    length_scale: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = 1.0
    fields: dict[str, Annotated[FieldArray, _short_for("array")]] = {}
    compute: tuple[Literal["normals", "area"], ...] = ()
    connectivity: bool = False

    def field_files(self, domain: str) -> list[FieldFile]:
        """The fields, position first."""
        found = []
        here = ArrayChoice(at=self.at, patches=self.patches)
        for name in (POSITION, *self.compute):
            power, units = _COMPUTED[name]
            own = {"compute": name, "scale": self.length_scale**power, "units": units}
            own["keep_mesh"] = self.connectivity and name == POSITION
            choice = here.model_copy(update=own)
            found.append(FieldFile(domain=domain, name=name, filename=self.file, choice=choice))
        for name, entry in self.fields.items():
            match = f"{domain}_{POSITION}" if entry.file not in ("", self.file) else ""
            own = {"arrays": entry.array, "scale": entry.scale, "units": entry.units, "match": match}
            choice = here.model_copy(update=own)
            found.append(FieldFile(domain=domain, name=name, filename=entry.file or self.file, choice=choice))
        return found


def _with_one(place: str) -> Callable[[str], str]:
    """Validator: the text contains ``place`` once, and no other braces for ``str.format`` to act on."""

    def check(text: str) -> str:
        if text.count(place) != 1 or set("{}") & set(text.replace(place, "")):
            raise ValueError(f"must contain {place} once, and no other braces, such as those of a format")
        return text

    return check


class TableFile(_Model):
    """Scalars of many samples in one file beside the samples, one row per sample.

    Attributes:
        file: its path below the root: CSV with a header, or JSON (objects in a list, or objects by key).
        key: name of the column that says which sample a row belongs to; "" for the keys of a JSON object.
        sample_id: id of the sample; contains "{}" in the place of the key as written, as in "run_{}" (no "{:03d}").
    """

    file: str
    key: str = ""
    sample_id: Annotated[str, pydantic.AfterValidator(_with_one("{}"))] = "{}"


class ParameterFile(_Model):
    """A file with scalars of one sample: JSON, CSV with one row, ``.npz``, or a ``.dat`` file of OpenFOAM.

    Attributes:
        file: pattern of its name in the sample's folder.
        prefix: put before the name of each scalar, because another file has the same names: "constref_" makes
            "constref_Cd" of "Cd".
    """

    file: str
    prefix: str = ""


class SplitFiles(_Model):
    """Splits listed in files beside the samples, one sample id per line.

    Attributes:
        filename: name of the file of a split; contains "{split}" in the place of the split's name.
        names: of the splits.
    """

    rule: Literal["files"] = "files"
    filename: Annotated[str, pydantic.AfterValidator(_with_one("{split}"))] = "{split}_design_ids.txt"
    names: tuple[str, ...] = ("train", "val", "test")

    @property
    def filenames(self) -> dict[str, str]:
        """Name of each split's file."""
        return {split: self.filename.format(split=split) for split in self.names}

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, for the split files that exist."""
        found = {}
        for split, name in self.filenames.items():
            text = read_text(name)
            if text is not None:
                found[split] = _lines(text)
        return found


class SplitPermutation(_Model):
    """Splits cut from a seeded permutation of the ids 1..count: ``torch.randperm`` with that seed, plus one."""

    rule: Literal["permutation"]
    count: Annotated[int, pydantic.Field(ge=1, le=_MAX_SAMPLES)]
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**63)]
    sizes: dict[str, Annotated[int, pydantic.Field(ge=0, le=_MAX_SAMPLES)]]
    exclude: frozenset[int] = frozenset()
    sample_id: Annotated[str, pydantic.AfterValidator(_with_one("{}"))] = "run_{}"

    @pydantic.model_validator(mode="after")
    def _check_sizes(self) -> SplitPermutation:
        wanted = sum(self.sizes.values())
        there = self.count - len(self.exclude.intersection(range(1, self.count + 1)))
        if wanted > there:
            raise ValueError(f"sizes add up to {wanted}, but only {there} of {self.count} numbers are not excluded")
        return self

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, including ids that the source does not have; raises SourceError if it has none of this form."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        numbers = (torch.randperm(self.count, generator=generator) + 1).tolist()
        start, end = map(re.escape, self.sample_id.split("{}"))
        of_this_form = re.compile(f"{start}(?!0).*{end}", re.DOTALL)
        if sample_ids and not any(map(of_this_form.fullmatch, sample_ids)):
            first, last = self.sample_id.format(1), self.sample_id.format(self.count)
            raise SourceError(
                f"the splits of rule permutation are of samples {first} to {last}, without zero padding, but this one "
                f"is {min(sample_ids)!r}; set the form of the ids, as "
                'in `splits: {rule: permutation, sample_id: "case_{}", ...}`, or use split files (rule: files)'
            )
        ids = iter([self.sample_id.format(number) for number in numbers if number not in self.exclude])
        return {split: list(islice(ids, size)) for split, size in self.sizes.items()}


class SplitFolders(_Model):
    """Splits by the first folder of the sample id."""

    rule: Literal["folders"]
    folders: dict[str, tuple[str, ...]]

    def assign(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Ids by split, of the samples that the source has."""
        splits = {}
        for split, folders in self.folders.items():
            splits[split] = [sample_id for sample_id in sorted(sample_ids) if sample_id.partition("/")[0] in folders]
        return splits


#: Sample folders at any depth.
ANY_DEPTH = "**"


class SourceDescription(_Model):
    """A kind of dataset.

    Attributes:
        name: short name, also the default ``dataset_name`` of its stores.
        samples: glob of the sample folders below the root; the matched path is the sample id. "**" stands for every
            folder that contains a field file, at any depth.
        subfolder: folder below the root that holds the samples; empty if the root holds them.
        files: file name in a sample's folder by file-map attribute ("surface_position"); of a .npy file a pattern, as
            in ``meshes``: "points/{id}.npy". The entry ``design_parameters`` names a file with a dict of scalars; a
            ``params.json`` is always read. A file with several arrays is a :class:`FieldArray`.
        optional: fields of ``files`` that a sample may lack ("surface_normals").
        meshes: fields that lie in meshes, by domain ("surface", "volume").
        parameters: CSV, JSON and ``.npz`` files with per-sample scalars; a text is the pattern of a name.
        tables: files beside the samples with the scalars of many samples.
        splits: rule that assigns samples to splits; None: by files of the usual names, if the source has any.
        blacklists: files beside the samples that list ids excluded from every split.
    """

    name: str
    samples: str
    files: dict[str, str | FieldArray] = {}
    # Sorted, because the order of a set differs from run to run.
    optional: Annotated[frozenset[str], pydantic.PlainSerializer(sorted, when_used="json")] = frozenset()
    meshes: dict[str, MeshFile] = {}
    parameters: Annotated[tuple[Annotated[ParameterFile, _short_for("file")], ...], ONE_OR_SEVERAL] = ()
    tables: tuple[TableFile, ...] = ()
    subfolder: str = ""
    splits: Annotated[SplitFiles | SplitPermutation | SplitFolders | None, pydantic.Field(discriminator="rule")] = None
    blacklists: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _check(self) -> SourceDescription:
        names = [file for file in self.files.values() if isinstance(file, str) and suffix_of(file) != ".npy"]
        for filename in names:
            if "/" in filename or filename in ("", ".", ".."):
                raise ValueError(f"{filename!r} must be the name of a file in the sample's folder")
        files = self._all_fields
        paths = [self.samples, self.subfolder, *self.blacklists, *self._parameter_patterns, *self.split_files.values()]
        paths += [table.file for table in self.tables]
        paths += [file.filename.removeprefix("./").removesuffix(CASE) for file in files]
        for path in filter(None, paths):
            check_relative_path(path)
        for pattern in self.patterns if self.names_contain_id else ():
            if pattern.count("{id}") != 1:
                raise ValueError("if a file's path contains {id}, so must those of all others, once")
            if suffix_of(pattern) in ROOTS:
                roots = ", ".join(ROOTS)
                raise ValueError(f"pieces of {roots} lie in the sample's folder, so {{id}} cannot stand for it")
        for file in files:
            name = file.field.canonical
            if self.fields[name] is not file:
                raise ValueError(f"two files for {name}: {file.filename} and {self.fields[name].filename}")
            if f"{file.domain}_{POSITION}" not in self.fields:
                raise ValueError(f"domain {file.domain!r} has no position: add {file.domain}_{POSITION} to files")
        if not files:
            raise ValueError("files must name at least one point field")
        for name in sorted(self.optional):
            if name not in self.fields or self.fields[name].name == POSITION:
                raise ValueError(
                    f"optional: {name!r} is not a field of files, or it is a position, which no sample may lack"
                )
        if "**" in self.samples and (self.samples != ANY_DEPTH or self.blacklists or self.patterns):
            raise ValueError("samples: '**' stands alone, without blacklists and without patterns of files")
        return self

    @cached_property
    def _all_fields(self) -> list[FieldFile]:
        found = []
        for attribute, file in self.files.items():
            if attribute in PARAMETER_ATTRIBUTES:
                continue
            choice = None
            if isinstance(file, FieldArray):
                if not file.file:
                    raise ValueError(f"{attribute} names no file")
                choice = ArrayChoice(arrays=file.array, scale=file.scale, units=file.units)
            elif suffix_of(file) == ".npy":
                choice = ArrayChoice()  # it contains one array, as a .pt file contains one tensor
            name = field_name(attribute)
            filename = self.filemap[attribute]
            found.append(FieldFile(domain=name.domain, name=name.name, filename=filename, choice=choice))
        for domain, mesh in self.meshes.items():
            for entry in mesh.field_files(domain):
                if field_name(entry.field.canonical) != entry.field:
                    raise ValueError(f"{entry.field.canonical} is not a name of a field of the domain {domain!r}")
                found.append(entry)
        return found

    @cached_property
    def fields(self) -> dict[str, FieldFile]:
        """Point fields by canonical name, each domain's position first."""
        files = sorted(self._all_fields, key=lambda file: (file.domain, file.name != POSITION))
        return {file.field.canonical: file for file in files}

    @property
    def required_fields(self) -> dict[str, FieldFile]:
        """The fields that every sample has."""
        return {canonical: file for canonical, file in self.fields.items() if canonical not in self.optional}

    @property
    def filemap(self) -> dict[str, str]:
        """File name by file-map attribute."""
        return {name: file if isinstance(file, str) else file.file for name, file in self.files.items()}

    @property
    def parameter_files(self) -> tuple[str, ...]:
        """Files with per-sample scalars."""
        named = [file for name, file in self.files.items() if name in PARAMETER_ATTRIBUTES and isinstance(file, str)]
        return ("params.json", *named, *self._parameter_patterns)

    @cached_property
    def used_names(self) -> frozenset[str]:
        """Names and patterns of all files of a sample, and names of those beside the samples."""
        beside = [*(table.file for table in self.tables), *self.split_files.values(), *self.blacklists]
        return frozenset([*(file.filename for file in self.fields.values()), *self.parameter_files, *beside])

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of the files that are found by pattern, not by name."""
        files = [file.filename for file in self._all_fields if file.choice is not None]
        return tuple(dict.fromkeys([*files, *self._parameter_patterns]))

    @property
    def _parameter_patterns(self) -> list[str]:
        return [parameter.file for parameter in self.parameters]

    @property
    def names_contain_id(self) -> bool:
        """Whether paths of files contain the sample id, so that a sample has no folder of its own."""
        return any("{id}" in pattern for pattern in self.patterns)

    @property
    def split_files(self) -> dict[str, str]:
        """Name of the file that may list a split's samples, by split; empty if a rule computes the splits."""
        rule = self.splits or SplitFiles()
        return rule.filenames if isinstance(rule, SplitFiles) else {}

    def assign_splits(self, sample_ids: Collection[str], read_text: ReadText) -> dict[str, list[str]]:
        """Sample ids by split.

        Args:
            sample_ids: ids that the source has.
            read_text: returns the content of a file beside the samples, or None if there is no such file.

        Raises:
            SourceError: none of the files that the rule names exists.
        """
        splits = (self.splits or SplitFiles()).assign(sample_ids, read_text)
        if isinstance(self.splits, SplitFiles) and not splits:
            files = ", ".join(self.split_files.values())
            raise SourceError(
                f"{self.name} takes its splits from files, but none of {files} lies beside the samples; name them, as "
                'in `splits: {rule: files, filename: "{split}.txt", names: [train, test]}`, or leave `splits` out'
            )
        return splits

    def excluded_ids(self, read_text: ReadText) -> set[str]:
        """Ids in the blacklists, which list ids or paths of mesh files.

        Raises:
            SourceError: a line has fewer parts than the ids of this dataset, so it names no sample.
        """
        depth = self.samples.count("/") + 1
        excluded = set()
        for name in self.blacklists:
            for line in _lines(read_text(name) or ""):
                if line.count("/") + 1 < depth:
                    raise SourceError(
                        f"{name} lists {line!r:.200}, but ids of {self.name} have the form {self.samples}"
                    )
                excluded.add(listed_id(line, depth))
        return excluded


def _lines(text: str) -> list[str]:
    """The different lines, without white space, a byte order mark and the "/" behind the name of a folder."""
    lines = [line.strip().rstrip("/") for line in text.removeprefix("\ufeff").splitlines()]
    return list(dict.fromkeys(filter(None, lines)))
