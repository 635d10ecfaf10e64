"""What is asked of a conversion: one object, checked where it enters, which every step of the conversion takes."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar, get_args

from zarr_core._util.arguments import whole_number
from zarr_core._util.redaction import refuse_credentials
from zarr_core.errors import SourceError
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import SampleSource
from zarr_core.sources.selection import DatasetKind, open_source

#: How source files can be identified: by name, size and etag or modification time, or by name, size and SHA-256.
Fingerprint = Literal["version", "content"]
# Share of a store's samples that one commit may retire, unless its caller confirms more.
MAX_RETIRED_SHARE = 0.1

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ConversionRequest:
    """Which samples of which source are converted to which store, and how.

    Dataset name, kind and settings are part of a store: a later conversion takes from the store what is not given.

    Attributes:
        dataset_kind: short name ("ahmedml"), dotted path, YAML file, description, class or dataset object.
        store_root: the store, a local path or fsspec URL.
        root: local folder of the dataset, converted by split.
        source_url: fsspec location of the dataset, found by listing and streamed without a local copy.
        splits: splits to convert; None: everything that is there.
        sample_ids: only these.
        part: only the samples of this part, a :class:`Part` or "0/8". Processes that convert one part each, at the same
            time or not, make the store that one process would make; each commits its own samples, and its refusals in
            any case.
        limit: convert at most this many of the samples that are missing or changed.
        dataset_name: name of the store. By default the kind's name if the store is new.
        retry_quarantined: convert refused samples again, even if their source and the settings are unchanged.
        force: convert all selected samples again, even if they are up to date. Damaged and missing objects of their
            groups are repaired, in every generation that names them. A sample whose source has other content under the
            same sizes and times gets a new group, and earlier generations keep the old one.
        retire_vanished: remove samples from the manifest that the source no longer holds, all (True) or those that are
            named. The groups stay as long as a kept generation names them; gc deletes them. Not with ``splits``: the
            whole source has to be listed.
        max_retired_share: maximum share of the store's samples, from 0 to 1, that are retired at once. A single sample
            may be retired in any case, unless the share is 0. If more vanished, none is retired, and the conversion
            fails after everything else is committed.
        reconvert: use the given settings even if the store has others, and convert all samples again: a migration. It
            first commits the new settings, so that every later conversion, which takes them from the store, continues
            what this one did not finish. Readers see each sample's earlier group until its new one is committed.
        fingerprint: how to notice changed samples. "version" compares names, sizes, and etags or modification times of
            the files. "content" compares the SHA-256 of each file, which copies of the data share; every file is read
            once more at each conversion. By default as the store does; "version" for a new store.
        settings: those of :class:`zarr_core.points.store.settings.ConversionSettings` that are given, by name.

    Raises:
        SourceError: a value or a setting is invalid.
    """

    dataset_kind: DatasetKind
    store_root: str | os.PathLike[str]
    _: KW_ONLY
    root: str | os.PathLike[str] | None = None
    source_url: str | None = None
    splits: Sequence[str] | None = None
    sample_ids: Collection[str] | None = None
    part: Part | None = None
    limit: int | None = None
    dataset_name: str | None = None
    retry_quarantined: bool = False
    force: bool = False
    retire_vanished: bool | Collection[str] = False
    max_retired_share: float = MAX_RETIRED_SHARE
    reconvert: bool = False
    fingerprint: Fingerprint | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_credentials(self.dataset_name)
        if self.limit is not None:
            object.__setattr__(self, "limit", whole_number("limit", self.limit, 1, error=SourceError))
        if self.part is not None and not isinstance(self.part, Part):  # text, as the command line takes it
            object.__setattr__(self, "part", Part.parse(str(self.part)))
        if not 0 <= self.max_retired_share <= 1:
            raise SourceError(f"max_retired_share must be from 0 to 1, not {self.max_retired_share}")
        if self.fingerprint not in (None, *get_args(Fingerprint)):
            raise SourceError(f"fingerprint {self.fingerprint!r} is not one of {', '.join(get_args(Fingerprint))}")
        ConversionSettings(**self.settings)

    def open_source(self) -> SampleSource:
        """The source, which is not listed yet; raises SourceError."""
        return open_source(self.dataset_kind, root=self.root, source_url=self.source_url, splits=self.splits)


def of_fields(name: str, function: Callable[..., _Result], *, without: Collection[str] = ()) -> Callable[..., _Result]:
    """A function of this name that does the same with the fields of a request, and of its settings, by name.

    It takes the options of the function as well, and none of those that ``without`` names.
    """
    fields = dict(inspect.signature(ConversionRequest).parameters)
    _, *options = inspect.signature(function).parameters.values()
    chosen = {each.name: each for each in (*fields.values(), *options) if each.name not in ("settings", *without)}

    @wraps(function)
    def of_arguments(dataset_kind: DatasetKind, store_root: str | os.PathLike[str], **given: Any) -> _Result:
        known = {argument: given.pop(argument) for argument in chosen if argument in given}
        own = {argument: known.pop(argument) for argument in known.keys() - fields}
        return function(ConversionRequest(dataset_kind, store_root, **known, settings=given), **own)

    settings = inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)
    of_arguments.__doc__ = _described(function.__doc__ or "", chosen)
    of_arguments.__name__ = of_arguments.__qualname__ = name
    of_arguments.__signature__ = inspect.Signature([*chosen.values(), settings])  # type: ignore[attr-defined]
    return of_arguments


def _described(text: str, chosen: Collection[str]) -> str:
    """The docstring of a function that takes a request, with the chosen fields in the place of the request."""
    before, entries, after = _entries(text, "Args")
    _, fields, _ = _entries(ConversionRequest.__doc__ or "", "Attributes")
    described = "\n".join(each for name, each in {**fields, **entries}.items() if name in (*chosen, "settings"))
    return f"{before.rstrip()}\n\nArgs:\n{described}\n\n{after}"


def _entries(text: str, section: str) -> tuple[str, dict[str, str], str]:
    """What a docstring says before a section, of each name in it, and after it."""
    before, _, rest = inspect.cleandoc(text).partition(f"\n{section}:\n")
    body, _, after = rest.partition("\n\n")
    entries = re.split(r"\n(?=    \S)", body)  # the other lines of an entry are indented once more
    return before, {entry.partition(":")[0].strip(): entry for entry in entries}, after
