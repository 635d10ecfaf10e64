"""Tables about the samples and batches of a matrix: ages, tissues, array types. Each is one Parquet file, written once.

A commit names the tables of its generation, so a pinned generation always reads the same metadata. The Parquet files
need pyarrow, which is imported on use.
"""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from zarr_core._util.arguments import check_names
from zarr_core._util.commands import shell
from zarr_core._util.extras import extra
from zarr_core._util.redaction import redact
from zarr_core.errors import CorruptChunkError, MatrixError, UnknownFieldError
from zarr_core.matrix.store.axis_file import arrow_file, opened_file
from zarr_core.matrix.store.batch_names import among, home_of, is_name, outside
from zarr_core.matrix.store.head import commit
from zarr_core.matrix.store.state import METADATA, MatrixState, MetadataTable
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["samples", "batches"]

logger = logging.getLogger(__name__)

#: Column that identifies the rows of each table.
KEYS: dict[Kind, str] = {"samples": "sample_id", "batches": "batch_id"}

# What pandas calls the index of a table that was filtered or sorted, in tables of Arrow and in Parquet files.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class MetadataReport:
    """Result of :func:`set_metadata`.

    Attributes:
        generation: that holds the table.
        rows: number of rows of the table now.
        columns: columns of the table now, without that of the ids.
        unknown: ids of the given table that the matrix does not hold. Their rows are kept for when they are loaded.
        missing: ids of the matrix that have no row; their values are null.
        retired: retired samples of the given table; their rows were not stored.
    """

    generation: int
    rows: int
    columns: tuple[str, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    retired: tuple[str, ...]

    def misfits(self, kind: Kind) -> Iterator[str]:
        """The ids that do not fit the matrix, in a line each."""
        for text, names in (
            (f"rows of {kind} that the matrix does not hold, kept for later", self.unknown),
            (f"{kind} without metadata", self.missing),
            ("rows of retired samples, not stored", self.retired),
        ):
            if names:
                yield f"{text}: {len(names):,}, such as {', '.join(names[:5])}"


def read_table(source: Any, kind: Kind, key: str | None = None) -> pa.Table:
    """A table of metadata with its ids as strings, in its first column, ``sample_id`` or ``batch_id``.

    Arguments and errors are those of ``WideMatrix.set_metadata``.
    """
    if kind not in KEYS:
        raise MatrixError(f"kind must be 'samples' or 'batches', not {kind!r:.80}")
    pa = _pyarrow()
    key = key or KEYS[kind]
    if isinstance(source, str | os.PathLike):
        where = f"metadata {redact(str(source))}"
        table = _read_file(os.fspath(source), where, key)
    elif hasattr(source, "__arrow_c_stream__"):
        where = "metadata"
        try:
            table = pa.table(source)
        except pa.ArrowException as error:  # pandas keeps numbers and text in one column, of type object
            raise MatrixError(f"{where}: a column holds values of several types: {error}") from error
    else:
        raise MatrixError(f"metadata must be a path or a table with the Arrow interface, not {type(source).__name__}")
    names = table.column_names
    if key not in names:
        raise MatrixError(f"{where}: no column {key!r} with the ids; its columns are {', '.join(names)}")
    names = [name for name in names if name == key or not _UNNAMED_INDEX.fullmatch(name)]
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        raise MatrixError(f"{where}: a column has no name, or the name of another one: {', '.join(names)}")
    columns = {KEYS[kind]: _ids(table[key], f"{where}: column {key}")}
    for name in names:
        if name != key:
            columns[name] = _plain(table[name], f"{where}: column {name}")
    if len(columns) < len(names):
        raise MatrixError(f"{where}: the column {KEYS[kind]!r} is not that of the ids; give it another name")
    return pa.table(columns)


def set_metadata(
    storage: Storage, state: MatrixState, kind: Kind, given: pa.Table, *, replace_all: bool
) -> tuple[MatrixState, MetadataReport]:
    """Commit a table that :func:`read_table` returned, or merge it; see ``WideMatrix.set_metadata``."""

    def change(current: MatrixState) -> MatrixState:
        retired = current.retired.sample_ids if kind == "samples" else ()
        table = given.filter(_not_in(given[KEYS[kind]], retired))
        if kind == "samples" and "batch_id" in table.column_names:
            _check_batches(storage.url, current, table)
            table = table.drop_columns(["batch_id"])
        other: Kind = "batches" if kind == "samples" else "samples"
        doubled = {*_columns_of(current, other), KEYS[other]}.intersection(table.column_names)
        if doubled:
            raise MatrixError(f"{storage.url}: column {min(doubled)!r} is already in the table of {other}")
        before = load_table(storage, current, kind)
        if before is not None and not replace_all:
            table = _merged(storage.url, before, table)
        if before is not None and table.equals(before):
            return current
        metadata = {**current.metadata, kind: _write(storage, table, kind)}
        return replace(current, metadata=dict(sorted(metadata.items(), reverse=True)))

    committed = commit(storage, state, change)
    stored = load_table(storage, committed, kind)
    assert stored is not None
    return committed, _report(committed, kind, stored, given[KEYS[kind]].to_pylist())


def _report(state: MatrixState, kind: Kind, table: pa.Table, given: Sequence[str]) -> MetadataReport:
    """Compare the ids of the table with those of the matrix."""
    retired = state.retired.sample_ids if kind == "samples" else set()
    rows = set(table[KEYS[kind]].to_pylist())
    missing, described = [], set()
    for name in state.rows if kind == "samples" else state.batches:
        # A row of the batch "b" describes the batch "b@<digest>", too.
        home = home_of(name, rows) if kind == "batches" else name
        if home in rows:
            described.add(home)
        else:
            missing.append(name)
    return MetadataReport(
        generation=state.generation,
        rows=len(table),
        columns=tuple(table.column_names[1:]),
        unknown=tuple(outside(outside(given, described), retired)),
        missing=tuple(missing),
        retired=tuple(among(given, retired)),
    )


def load_table(storage: Storage, state: MatrixState, kind: Kind) -> pa.Table | None:
    """A table of a generation; None if it has none. Raises CorruptChunkError if the object is missing or damaged."""
    record = state.metadata.get(kind)
    if record is None:
        return None
    pa = _pyarrow()
    data = read_table_file(storage, record, kind)
    try:
        return pa.parquet.read_table(arrow_file(data))
    except pa.ArrowException as error:
        raise CorruptChunkError(f"{storage.url}/{record.path} is not a table: {error}") from error


def read_table_file(storage: Storage, record: MetadataTable, kind: Kind) -> bytes:
    """The bytes of a table; raises CorruptChunkError if they are missing or not those that were committed."""
    what = f"{storage.url}/{record.path}: the metadata of the {kind}"
    try:
        data = storage.read(record.path)
    except FileNotFoundError as error:
        raise CorruptChunkError(f"{what} is missing") from error
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise CorruptChunkError(f"{what} is not that which was committed")
    return data


def join(
    storage: Storage, state: MatrixState, columns: Sequence[str] | None, sample_ids: Sequence[str] | None
) -> pa.Table:
    """The metadata of samples; see ``WideMatrix.samples``."""
    pa = _pyarrow()
    check_names("columns", columns, error=UnknownFieldError)
    known = joined_columns(state)
    wanted = list(known if columns is None else columns)
    if unknown := outside(wanted, known):
        there = ", ".join(known) or f"none; `{shell('matrix', 'metadata', storage.url, 'TABLE')}` adds a table"
        raise UnknownFieldError(
            f"{storage.url}, generation {state.generation}: no metadata {unknown[0]!r}; columns: {there}"
        )
    ids = list(state.batch_of if sample_ids is None else sample_ids)
    if absent := outside(ids, state.batch_of):
        raise UnknownFieldError(f"{storage.url}, generation {state.generation}: no sample {absent[0]!r}")
    batches = [state.batch_of[sample] for sample in ids]
    found = {"sample_id": pa.array(ids, pa.string()), "batch_id": pa.array(batches, pa.string())}
    tables: dict[Kind, Any] = {}
    for kind in {known[name] for name in wanted}:
        table = load_table(storage, state, kind)
        assert table is not None
        keys: Sequence[str | None] = ids
        if kind == "batches":
            home = cache(partial(home_of, batch_ids=set(table["batch_id"].to_pylist())))
            keys = list(map(home, batches))
        rows = table[KEYS[kind]].combine_chunks()
        tables[kind] = table.take(pa.compute.index_in(pa.array(keys, pa.string()), rows, skip_nulls=True))
    for name in wanted:
        found[name] = tables[known[name]][name].combine_chunks()
    return pa.table(found)


def joined_columns(state: MatrixState) -> dict[str, Kind]:
    """The columns of :func:`join` besides the ids, and the table that each comes from."""
    kinds: tuple[Kind, Kind] = ("batches", "samples")
    return {name: kind for kind in kinds for name in _columns_of(state, kind)}


def named_columns(table: pa.Table, taken: Collection[str], slash: str = "/") -> dict[str, pa.Array]:
    """The columns of :func:`join` besides the ids, under names that are free: "batch" becomes "metadata_batch".

    Args:
        table: returned by :func:`join`.
        taken: names of other columns.
        slash: replaces "/", which separates the parts of a path in HDF5 and in trees of xarray.
    """
    used, found = {*taken, *table.column_names}, {}
    for name in table.column_names:
        if name in KEYS.values():
            continue
        free = name.replace("/", slash)
        while free in taken or (free != name and free in used):
            free = f"metadata_{free}"
        used.add(free)
        found[free] = table[name].combine_chunks()
    return found


def described(storage: Storage, state: MatrixState, sample_ids: Collection[str]) -> set[str]:
    """Those of the samples that have a row in the table of samples."""
    table = load_table(storage, state, "samples") if sample_ids else None
    return set() if table is None else set(sample_ids).intersection(table["sample_id"].to_pylist())


def without(storage: Storage, state: MatrixState, sample_ids: Collection[str]) -> Mapping[Kind, MetadataTable]:
    """The tables of a state without the rows of some samples, written if necessary; for a commit."""
    table = load_table(storage, state, "samples") if sample_ids else None
    if table is None:
        return state.metadata
    kept = table.filter(_not_in(table["sample_id"], sample_ids))
    if len(kept) == len(table):
        return state.metadata
    return {**state.metadata, "samples": _write(storage, kept, "samples")}


def _columns_of(state: MatrixState, kind: Kind) -> list[str]:
    record = state.metadata.get(kind)
    return [] if record is None else list(record.columns)


def _pyarrow() -> Any:
    with extra("exports", "metadata of samples needs pyarrow", MatrixError):
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    return pyarrow


def _read_file(url: str, where: str, key: str) -> pa.Table:
    """The table in a file. Empty or "NA" cells are nulls, of text as of numbers; but an id may be "NA"."""
    pa = _pyarrow()
    ending = url.rpartition(".")[2].lower()
    if ending not in ("csv", "tsv", "parquet"):
        raise MatrixError(f"{where}: expected a .csv, .tsv or .parquet file")
    # Ids are text, also where all of them are digits: 007 is not 7.
    text = pa.csv.ConvertOptions(column_types={key: pa.string(), "batch_id": pa.string()})
    with opened_file(url, where) as file:
        if ending == "parquet":
            return pa.parquet.read_table(arrow_file(file.read()))
        data = file.read()
        decoded = data.decode()  # pyarrow would take text in another encoding for bytes
        delimiter = "\t" if ending == "tsv" else ","
        _check_quotes(decoded, delimiter, where)
        # Without this, a line break in a cell at the end of a block of 1 MiB begins a row.
        form = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        table = pa.csv.read_csv(arrow_file(data), None, form, text)
        as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(table.column_names, pa.string()))
        written = pa.csv.read_csv(arrow_file(data), None, form, as_text)
    for number, field in enumerate(table.schema):
        column = table[number]
        if (kept := _digits_to_keep(written[number], field.type)) is not None:
            logger.warning(
                "%s: column %s is text, as a number would not keep all digits of %s", where, field.name, kept
            )
            column = written[number]
        if pa.types.is_string(column.type) and field.name not in text.column_types:
            present = _not_in(column, text.null_values)
            column = pa.compute.if_else(present, column, pa.scalar(None, pa.string()))
        table = table.set_column(number, field.name, column)
    return table


def _digits_to_keep(written: pa.ChunkedArray, kind: pa.DataType) -> str | None:
    """The first cell whose digits a column of numbers would lose: those of 007, or of 9007199254740993 as a float."""
    pa = _pyarrow()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    doubtful = written.filter(pa.compute.match_substring_regex(written, r"^\s*[-+]?(0[0-9]|[0-9]{16,}\s*$)"))
    for cell in doubtful.to_pylist():
        has_zeros = cell.strip().lstrip("+-")[0] == "0"
        if has_zeros or (pa.types.is_floating(kind) and int(cell) != float(cell)):
            return str(cell)
    return None


def _check_quotes(text: str, delimiter: str, where: str) -> None:
    """Raise MatrixError for a quotation mark that is not closed: pyarrow would read all later rows as one cell.

    Cells of more than 131,072 characters are refused, too: the parser of Python's library takes no longer ones.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for _ in rows:
            pass
    except csv.Error as error:
        longer = "field limit" in str(error)  # a mark that is not closed makes a long cell of the rows after it
        cause = "is a quotation mark not closed, or is the cell right?" if longer else "is a quotation mark not closed?"
        way_out = f"{cause} Correct it, or write the table as .parquet"
        raise MatrixError(f"{where}, line {rows.line_num}: {error}: {way_out}") from error


def _ids(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    pa = _pyarrow()
    found = _plain(column, where)
    if not (pa.types.is_string(found.type) or pa.types.is_integer(found.type)):
        raise MatrixError(f"{where}: ids must be strings, not {found.type}")
    found = found.cast(pa.string())
    seen: set[str] = set()
    for number, name in enumerate(found.to_pylist(), 1):
        if not name:
            raise MatrixError(f"{where}: row {number} has no id")
        if name in seen:
            raise MatrixError(f"{where}: {name!r} has two rows")
        seen.add(name)
    return found


def _plain(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """The column in one of the types that are stored: one value per row, strings of one kind."""
    pa, kind = _pyarrow(), column.type
    types = pa.types
    if types.is_dictionary(kind) and not isinstance(kind.value_type, pa.BaseExtensionType):
        return _plain(column.cast(kind.value_type), where)
    if types.is_decimal(kind):  # how databases store whole numbers, too
        try:
            numbers = column.cast("int64" if kind.scale <= 0 else "float64")
        except pa.ArrowInvalid as error:
            raise MatrixError(f"{where} is of type {kind}, with a number beyond int64; store it as text") from error
        for value, number in zip(column.to_pylist(), numbers.to_pylist(), strict=True):
            if value is not None and abs(value) > 2**53 and value != number:  # digits before the point are lost
                raise MatrixError(f"{where} is of type {kind}, and float64 rounds {value}; store it as text")
        return numbers
    if types.is_large_string(kind) or types.is_string_view(kind):
        return column.cast("string")
    if types.is_interval(kind) or not (types.is_primitive(kind) or types.is_string(kind) or types.is_null(kind)):
        raise MatrixError(f"{where} is of type {kind}; a column holds one number, text, truth value or time per row")
    return column


def _not_in(column: pa.ChunkedArray, names: Collection[str]) -> Any:
    pa = _pyarrow()
    return pa.compute.invert(pa.compute.is_in(column, value_set=pa.array(sorted(names), pa.string())))


def _check_batches(url: str, state: MatrixState, table: pa.Table) -> None:
    """Raise MatrixError if the table assigns a sample to another batch than the matrix does."""
    for sample, batch in zip(table["sample_id"].to_pylist(), table["batch_id"].to_pylist(), strict=True):
        held = state.batch_of.get(sample)
        if held is not None and batch is not None and home_of(held, [str(batch)]) is None:
            text = f"sample {sample!r} is in batch {held!r}, but batch_id in the metadata is {batch!r}"
            raise MatrixError(f"{url}: {text}")


def _merged(url: str, before: pa.Table, given: pa.Table) -> pa.Table:
    """Rows and columns of both tables; the given one's, also nulls, where both have the row and the column."""
    pa = _pyarrow()
    key = before.column_names[0]
    try:
        both = pa.concat_tables([before, given], promote_options="permissive").replace_schema_metadata(None)
    except pa.ArrowException as error:
        text = f"a column has another type than before ({error}); --replace drops the old table"
        raise MatrixError(f"{url}: {text}") from error
    old, new = both.slice(0, len(before)), both.slice(len(before))
    ids = both[key].unique()
    in_old, in_new = (pa.compute.index_in(ids, table[key].combine_chunks()) for table in (old, new))
    columns = {key: ids}
    for name in both.column_names[1:]:
        columns[name] = old[name].take(in_old)
        if name in given.column_names:
            columns[name] = pa.compute.if_else(in_new.is_valid(), new[name].take(in_new), columns[name])
    return pa.table(columns)


def _write(storage: Storage, table: pa.Table, kind: Kind) -> MetadataTable:
    """Write a table under a new name. Equal tables have different names, so none is pending deletion."""
    file = io.BytesIO()
    _pyarrow().parquet.write_table(table.replace_schema_metadata(None), file, compression="zstd")
    data = file.getvalue()
    path = f"{METADATA}/{uuid.uuid4().hex[:16]}.parquet"
    storage.create(path, data)
    columns = {field.name: str(field.type) for field in table.schema if field.name != KEYS[kind]}
    return MetadataTable(path, hashlib.sha256(data).hexdigest(), len(table), columns)
