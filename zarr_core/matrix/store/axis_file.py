"""Read features from files: the names of an axis, and the positions of probes on the genome."""

from __future__ import annotations

import csv
import logging
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np

from zarr_core._util.redaction import printable_cause, redact, refuse_credentials
from zarr_core.errors import MatrixError
from zarr_core.matrix.store.axis import from_arrow, words
from zarr_core.matrix.store.batch_names import among

if TYPE_CHECKING:
    import pyarrow as pa

# Names of columns, in lower case, each the first that is found.
_COLUMNS = {
    "name": ("ilmnid", "probe_id", "probeid", "probe", "cpg_id", "cpg", "feature", "name"),
    "chromosome": ("chr", "chrom", "chromosome", "seqnames", "cpg_chrm"),
    "position": ("mapinfo", "pos", "position", "start", "cpg_beg", "chromstart"),
}
# The columns of a BED file without a header.
_BED = ("chrom", "start", "end", "name")
# Columns that count from 0: those of InfiniumAnnotation and of UCSC; "start" does in BED files only.
_ZERO_BASED = ("cpg_beg", "chromstart")

# A row of a BED file: its second column is a number.
_BED_ROW = re.compile(rb"^[^\t\n]*\t\d+\b.*", re.MULTILINE)
_LINE = re.compile(rb"[^\r\n]+")
_BOM = b"\xef\xbb\xbf"

logger = logging.getLogger(__name__)


def read_feature_ids(url: str) -> np.ndarray:
    """The features in a file, without Python strings.

    The first column of a Parquet file (``.parquet``), the column with the names of a table (``.csv``, ``.tsv``,
    ``.bed``), such as ``probe_id``, or the words of any other file. Such a header of a list of words is left out with
    a warning.

    Args:
        url: a local path or any fsspec URL; ``.gz`` and other compressed files are decompressed.

    Returns:
        (features,) bytes (UTF-8), or int64 if the column of a Parquet file holds integers.

    Raises:
        MatrixError: the file cannot be read, the column is neither of strings nor of integers, a table has no column
            of the names, or a word has a comma or a quotation mark.
    """
    where, kind = f"features {redact(url)}", _kind(url)
    with opened_file(url, where) as file:
        if kind in ("csv", "tsv", "bed"):
            return from_arrow(_parse_table(file.read(), kind, where, ["name"]).column(0))
        if kind != "parquet":
            return _listed(file.read(), where)
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(file)
        first = table.schema_arrow.names[:1]
        batches = table.iter_batches(1 << 17, columns=first, use_threads=False)
        parts = [from_arrow(batch.column(0)) for batch in batches if first]
    if not parts:
        raise MatrixError(f"{where}: the file has no rows")
    return np.concatenate(parts)


def read_axis_ids(url: str, text: bool) -> np.ndarray:
    """The names of :func:`read_feature_ids` in the type of an axis: bytes, or int64 if not ``text``."""
    names = read_feature_ids(url)
    try:
        return names.astype("S" if text else np.int64, copy=False)
    except (ValueError, OverflowError) as error:
        raise MatrixError(f"the features of this matrix are integers: {error}") from error


def read_manifest(source: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Names, chromosomes and positions of the probes of a manifest that have a position.

    Args:
        source: a table, or the path or URL of one: ``.parquet``, or text with a header, with or without Illumina's
            preamble, or ``.bed``, whose columns are those of BED unless it has a header.

    Returns:
        (probes,) bytes, (probes,) bytes, and (probes,) int64, counted from 1.

    Raises:
        MatrixError: the file cannot be read, a column is missing, or a position is not a whole number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    where, kind = "manifest", ""
    if hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source)
    else:
        where, kind = f"manifest {redact(str(source))}", _kind(str(source))
        with opened_file(str(source), where) as file:
            if kind == "parquet":
                copied = arrow_file(file.read())
                used = _find_columns(pyarrow.parquet.read_schema(copied).names, _COLUMNS, where)
                table = pyarrow.parquet.read_table(copied, columns=list(used.values()))
            else:
                table = _parse_table(file.read(), kind, where, _COLUMNS)
    used = _find_columns(table.column_names, _COLUMNS, where)
    name, chromosome, position = (table[used[role]] for role in _COLUMNS)
    column = used["position"].lower()
    from_zero = column in _ZERO_BASED or (kind == "bed" and column == "start")
    try:
        positions = pc.add(position.cast(pa.int64()), int(from_zero))
    except pa.ArrowException as error:
        raise MatrixError(f"{where}: positions must be whole numbers: {error}") from error
    chromosomes = chromosome.cast(pa.string())
    # Control probes have neither.
    located = pc.and_(pc.is_valid(positions), pc.and_(pc.is_valid(chromosomes), pc.is_valid(name)))
    found = from_arrow(name.filter(located)), from_arrow(chromosomes.filter(located))
    return *found, positions.filter(located).to_numpy()


@contextmanager
def opened_file(url: str, where: str) -> Iterator[Any]:
    """The decompressed file; MatrixError if it cannot be read."""
    import pyarrow as pa

    refuse_credentials(url)
    try:
        with fsspec.open(url, "rb", compression="infer") as file:
            yield file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pa.ArrowException) as error:
        raise MatrixError(f"{where} cannot be read: {redact(str(error))}") from printable_cause(error)


def arrow_file(data: bytes | memoryview) -> pa.BufferReader:
    """A file in memory of pyarrow's own, for its functions that read.

    They read ahead in threads that may be at work when the process ends. If these need Python's lock then, to read or
    to release an object of Python, the process is aborted.
    """
    import pyarrow as pa

    memory = pa.BufferOutputStream()
    memory.write(data)
    return pa.BufferReader(memory.getvalue())


def _kind(url: str) -> str:
    """Extension of a file, without that of its compression."""
    return re.sub(r"\.(gz|bz2|xz|zst|zip)$", "", url.lower()).rpartition(".")[2]


def _listed(text: bytes, where: str) -> np.ndarray:
    """The words of a list of names."""
    names = words(text.removeprefix(_BOM))
    if b"," in text or b'"' in text:
        joined = next(name for name in names if b"," in name or b'"' in name).decode(errors="replace")
        raise MatrixError(
            f"{where}: {joined!r:.80} has a comma or a quotation mark; a list has names and blanks alone. Call a table "
            "with a header .csv or .tsv; names with these characters are read from a .parquet file"
        )
    header = names[0].decode(errors="replace") if len(names) else ""
    if header.lower() not in _COLUMNS["name"]:
        return names
    logger.warning("%s: the first word, %r, is a header, not a feature; it is left out", where, header)
    return names[1:]


def _find_columns(names: Sequence[str], roles: Any, where: str) -> dict[str, str]:
    """The column of each role."""
    lower = {name.lower(): name for name in reversed(names)}
    found = {}
    for role in roles:
        columns = among(_COLUMNS[role], lower)
        if not columns:
            raise MatrixError(
                f"{where}: no column of the {role}; expected one of {', '.join(_COLUMNS[role])} in the header (in any "
                f"case), found {', '.join(names)[:200]!r}"
            )
        found[role] = lower[columns[0]]
    return found


def _parse_table(data: bytes, kind: str, where: str, roles: Collection[str]) -> pa.Table:
    """The columns of a table of text that have the roles.

    The header and the rows of Illumina's manifests lie between the lines ``[Assay]`` and ``[Controls]``.
    """
    import pyarrow as pa
    import pyarrow.csv

    start, stop = len(_BOM) if data.startswith(_BOM) else 0, len(data)
    if assay := re.search(rb"^\[Assay\].*\n", data, re.MULTILINE):
        start = assay.end()
        if controls := re.compile(rb"^\[Controls\]", re.MULTILINE).search(data, start):
            stop = controls.start()
    if kind == "bed":
        names, start = _bed_columns(data, start)
        delimiter = "\t"
    else:
        line_end = re.compile(rb"\r\n?|\n").search(data, start)  # "\r" alone: a table of an old Excel
        end = line_end.end() if line_end else stop
        header, start = data[start:end].decode(errors="replace"), end
        names = _cells(header)
        delimiter = "\t" if "\t" in header else ","
    used = _find_columns(names, roles, where)
    # As text, because chromosomes of the first rows may all be numbers.
    texts = {used[role]: pa.string() for role in ("name", "chromosome") if role in used}
    table = pyarrow.csv.read_csv(
        arrow_file(memoryview(data)[start:stop]),
        pyarrow.csv.ReadOptions(column_names=names),
        # Without the second option, a line break in a cell at the end of a block of 1 MiB begins a row.
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=texts, include_columns=list(used.values())),
    )
    lines = sum(1 for _ in _LINE.finditer(data, start, stop))
    if table.num_rows < lines:
        raise MatrixError(
            f"{where}: {lines:,} lines hold {table.num_rows:,} rows: a quotation mark is not closed, or a cell has a "
            "line break. Remove it, or write the table as .parquet"
        )
    return table


def _bed_columns(data: bytes, start: int) -> tuple[list[str], int]:
    """Names of the columns of a BED file, and where its rows begin.

    The rows follow lines such as ``track ...`` and ``# ...``, the last of which may be a header.
    """
    row = _BED_ROW.search(data, start)
    end = row.start() if row else len(data)
    headers = [line for line in data[start:end].decode(errors="replace").splitlines() if line.count("\t") > 1]
    if headers:
        return _cells(headers[-1]), end
    width = row[0].count(b"\t") + 1 if row else 0
    return [*_BED, *(f"column {number}" for number in range(len(_BED), width))][:width], end


def _cells(header: str) -> list[str]:
    """The names in a header, which is separated by tabs or commas."""
    line = header.strip("\r\n").lstrip("# ")
    lines = csv.reader([line], delimiter="\t" if "\t" in line else ",")
    return [name.strip() for name in next(lines, [])]
