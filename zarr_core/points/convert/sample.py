"""Converts one sample, in this process or in a worker, and reports the result."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Literal, TypeVar

from zarr_core._util.processes import TimeLimitError, WorkerDiedError, call_in_thread, call_within
from zarr_core.errors import SampleError, SourceError
from zarr_core.format.names import POSITION
from zarr_core.points.convert.writer import GroupWriter, Repair, SampleContent
from zarr_core.points.store.manifest import Quarantine, SampleEntry
from zarr_core.sources.formats.contents import Mesh
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.recorded import record
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.storage import is_local

_log = logging.getLogger(__name__)

_CHANGED = "source files changed while they were read; run again"

_Loaded = TypeVar("_Loaded")

Status = Literal["converted", "up to date", "quarantined", "failed"]


@dataclass(frozen=True)
class ConversionResult:
    """Result of converting one sample.

    Attributes:
        sample_id: id of the sample.
        status: "quarantined" is a problem of the sample, "failed" a problem of its environment (network, disk, memory).
        written: the finished group of a converted sample.
        quarantine: the refusal of a quarantined sample.
        reason: why the sample was not converted, or "".
        seconds: duration.
        bytes_read: size of the source files; 0 if the group of an earlier attempt is used.
        bytes_written: size of the arrays; 0 likewise.
        notes: what the reading of the sample left out or found odd, details by reason.
    """

    sample_id: str
    status: Status
    written: SampleEntry | None = None
    quarantine: Quarantine | None = None
    reason: str = ""
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


#: The name of earlier versions.
SampleOutcome = ConversionResult


def convert_sample(
    writer: GroupWriter,
    source: SampleSource,
    sample: SourceSample,
    retry_quarantined: bool = False,
    repair: Repair | None = None,
    seconds: float | None = None,
) -> ConversionResult:
    """Convert one sample, or use the group of an earlier attempt. Every error is reported in the result.

    With ``repair``, the sample is converted in any case and compared with this group, which is repaired if it has the
    same content. A sample that takes more than ``seconds`` has failed, and is not refused: on another machine it may
    take less.
    """
    started = time.perf_counter()
    with collected_notes() as notes:
        try:
            work = partial(_convert_sample, writer, source, sample, retry_quarantined, repair)
            result = work() if seconds is None else call_within(seconds, work)
        except Exception as error:  # libraries raise anything, for example torch a RuntimeError for lack of memory
            result = failure(sample.sample_id, error)
    return replace(result, seconds=time.perf_counter() - started, notes=notes)


def _convert_sample(
    writer: GroupWriter, source: SampleSource, sample: SourceSample, retry_quarantined: bool, repair: Repair | None
) -> ConversionResult:
    sample_id, fingerprint = sample.sample_id, sample.fingerprint
    try:
        written = writer.find(sample_id, fingerprint) if repair is None else None
        if isinstance(written, Quarantine) and not retry_quarantined:
            return quarantined(sample_id, written)
        if isinstance(written, SampleEntry):
            return ConversionResult(sample_id, "converted", written)
        written = _write(writer, source, sample, repair if written is None else Repair())
    except SampleError as error:
        if not _is_unchanged(source, sample):
            # The file may have been read while it was written: not a problem of the sample.
            return ConversionResult(sample_id, "failed", reason=_CHANGED)
        return quarantined(sample_id, writer.write_quarantine(sample_id, fingerprint, error))
    return ConversionResult(sample_id, "converted", written, bytes_read=sample.n_bytes, bytes_written=written.bytes)


def quarantined(sample_id: str, quarantine: Quarantine, seconds: float = 0.0) -> ConversionResult:
    """The result of a sample that was refused, now or earlier."""
    return ConversionResult(
        sample_id, "quarantined", quarantine=quarantine, reason=quarantine.explanation, seconds=seconds
    )


def failure(sample_id: str, error: Exception) -> ConversionResult:
    """The result of a sample that an error of its environment, its worker or its executor stopped."""
    _log.debug("%s failed", sample_id, exc_info=error)
    reason = str(error) if isinstance(error, WorkerDiedError | TimeLimitError) else f"{type(error).__name__}: {error}"
    return ConversionResult(sample_id, "failed", reason=reason)


def _write(writer: GroupWriter, source: SampleSource, sample: SourceSample, repair: Repair | None) -> SampleEntry:
    if sample.missing:
        several = "where several match a pattern, move the others away or narrow it; of several rows, keep one"
        way_out = f"upload the missing files; {several}"
        raise SampleError(sample.sample_id, "", f"missing {', '.join(sample.missing)}", way_out)

    load = partial(_load, source, sample, source.load)
    fields = [file for canonical, file in source.description.fields.items() if canonical in sample.files]
    # A file of several arrays is loaded once for all its fields.
    ahead = not is_local(source.url) and not sample.choices
    names = [file.field.canonical for file in fields]
    meshes: dict[str, Callable[[], Mesh]] = {}
    for canonical, choice in sample.choices.items():
        if choice.keep_mesh:
            domain = canonical.removesuffix(f"_{POSITION}")
            meshes[domain] = partial(_load, source, sample, source.load_mesh, canonical)
    # Loaded before the fields, so that checks after each field cover it.
    parameters = source.load_parameters(sample)
    with loaded_ahead(load, names) if ahead else nullcontext(load) as next_field:
        content = SampleContent(
            sample.sample_id, sample.fingerprint, fields, next_field, record(sample), parameters, meshes
        )
        return writer.write_sample(content, repair=repair)


def _load(
    source: SampleSource, sample: SourceSample, load: Callable[[SourceSample, str], _Loaded], canonical: str
) -> _Loaded:
    """The result of a method of the source; raises SourceError if the files of the sample have changed."""
    loaded = load(sample, canonical)
    # The group's name is a digest of the listed files. Another converter may use or commit the same group, so data of
    # any other file version must never be written to it.
    if not source.reads_listed_versions and not _is_unchanged(source, sample):
        raise SourceError(f"{sample.sample_id}: {_CHANGED}")
    return loaded


@contextmanager
def loaded_ahead(load: Callable[[str], _Loaded], names: Sequence[str]) -> Iterator[Callable[[str], _Loaded]]:
    """While the caller works on the result for one name, the next one is loaded in a thread, each once and in order.

    A process does not wait for such a thread when it ends: a load may never end.
    """
    loads = (call_in_thread(partial(load, name), "zarr_core.load") for name in names)  # one starts when it is taken
    coming = deque(islice(loads, 1))

    def next_one(_: str) -> _Loaded:
        loaded = coming.popleft().result()
        coming.extend(islice(loads, 1))
        return loaded

    try:
        yield next_one
    finally:
        wait(coming)


def _is_unchanged(source: SampleSource, sample: SourceSample) -> bool:
    try:
        return source.is_unchanged(sample)
    except (OSError, SourceError):  # the folder is missing or cannot be listed
        return False
