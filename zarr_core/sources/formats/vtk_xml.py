"""VTK XML files without VTK: what a file contains, and copies of files with more arrays, in bounded memory.

New arrays are written between the elements of a file, in base64. Arrays in its appended section keep their places,
because these count from the beginning of that section.
"""

from __future__ import annotations

import base64
import lzma
import math
import mmap
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

import numpy as np
from numcodecs import lz4

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.limits import MAX_XML_BYTES

# Elements that contain the arrays at the cells, and those at the points.
_ARRAYS_OF = {"CellData": "cells", "PointData": "points"}
_SECTIONS = {"cells": b"CellData", "points": b"PointData"}
_KINDS = {"f": "Float", "i": "Int", "u": "UInt"}
_PIECE_BYTES = 1 << 20


class EnoughError(Exception):
    """A handler of :func:`parse` has all that it needs."""


def new_parser(start: Callable[[str, dict[str, str]], None], end: Callable[[str], None]) -> expat.XMLParserType:
    """A parser that calls ``start`` with the name and the attributes of each element, and ``end`` with its name."""

    def refuse(*_: object) -> None:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    return parser


def parse(parser: expat.XMLParserType, pieces: Iterable[bytes], most: float = MAX_XML_BYTES) -> bool:
    """Whether the whole file was read, or as much as a handler needs, within ``most`` bytes.

    Raises:
        ValueError: the file is not XML, is cut off, or declares a document type.
    """
    done = 0
    try:
        for piece in pieces:
            parser.Parse(piece)
            done += len(piece)
            if done > most:
                return False
        parser.Parse(b"", True)
    except EnoughError:
        pass
    except expat.ExpatError as error:
        raise ValueError(f"truncated or damaged: {error}") from error
    return True


class Elements:
    """Collects what the elements of one or several files tell of their mesh and its arrays.

    Attributes:
        root: attributes of the root element of the last file.
        n_pieces, n_filled: number of pieces, and of those with points.
        rows: number of cells and of points.
        names: places and names of all arrays, and how many pieces with points have each.
        sections: positions of the tags of the last elements that contain arrays, and of the ends of these, by place.
        end_of_piece: position of the last piece's end.
    """

    def __init__(self) -> None:
        self.root: dict[str, str] = {}
        self.n_pieces = self.n_filled = 0
        self.rows = {"cells": 0, "points": 0}
        self.names: Counter[tuple[str, str]] = Counter()
        self.sections: dict[str, tuple[int, int]] = {}
        self.end_of_piece = 0
        self._components: dict[tuple[str, str], int] = {}
        self._cells: Counter[str] = Counter()
        self._is_complete = True

    def add(self, pieces: Iterable[bytes], most: float = MAX_XML_BYTES) -> None:
        """Add those within the first ``most`` bytes of a file; raises ValueError as :func:`parse`."""
        self._at = ""
        self._parser = new_parser(self._start, self._end)
        self._is_complete &= parse(self._parser, pieces, most)

    def contents(self, patches: tuple[str, ...] = ()) -> Contents:
        """Names and sizes of the arrays and of the mesh, which has these parts."""
        arrays = tuple(FoundArray(name, at, n, self.rows[at]) for (at, name), n in self._components.items())
        has_faces = self._cells["Polys"] or self._cells["Strips"]
        dimension = 2 if has_faces and not self._cells["Cells"] else 0
        return Contents(arrays, self.rows["points"], self.rows["cells"], patches, dimension, self._is_complete)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "AppendedData":
            raise EnoughError
        if name == "VTKFile":
            self.root = attributes
        elif name == "Piece":
            self.n_pieces += 1
            n_points = int(attributes.get("NumberOfPoints", 0))
            self._is_filled = n_points > 0
            self.n_filled += self._is_filled
            self.rows["points"] += n_points
            for kind in ("Cells", "Verts", "Lines", "Strips", "Polys"):
                self._cells[kind] += int(attributes.get(f"NumberOf{kind}", 0))
            self.rows["cells"] = self._cells.total()
        elif name in _ARRAYS_OF:
            self._at, self._begin = _ARRAYS_OF[name], self._parser.CurrentByteIndex
        elif name in ("DataArray", "Array") and self._at:
            place = self._at, attributes.get("Name", "")
            self.names[place] += self._is_filled
            if name == "DataArray":
                self._components[place] = int(attributes.get("NumberOfComponents", 1))

    def _end(self, name: str) -> None:
        if name in _ARRAYS_OF:
            self.sections[self._at] = self._begin, self._parser.CurrentByteIndex
            self._at = ""
        elif name == "Piece":
            self.end_of_piece = self._parser.CurrentByteIndex


def peek(file: SourceFile) -> Contents:
    """Names and sizes of the arrays and of the mesh; raises ValueError as :func:`parse`."""
    elements = Elements()
    elements.add(file.pieces())
    return elements.contents()


def check_pieces(path: Path, choices: Iterable[ArrayChoice]) -> None:
    """Raise ValueError if a piece of a local file lacks a chosen array: VTK would leave its values undefined."""
    elements = Elements()
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(b"<Piece", data.find(b"<Piece") + 1) < 0:  # faster than to parse the file
            return
        elements.add(iter(lambda: opened.read(_PIECE_BYTES), b""), most=math.inf)
    for choice in choices:
        for name in choice.arrays:
            lacking = elements.n_filled - elements.names[choice.at, name]
            if lacking > 0:
                pieces = f"{lacking} of its {elements.n_pieces} pieces"
                raise ValueError(f"has no array {name!r} at the {choice.at} of {pieces}")


_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "vtkZLibDataCompressor": lambda data: zlib.compress(data, 1),
    "vtkLZ4DataCompressor": lambda data: bytes(lz4.compress(data))[4:],  # without the size that numcodecs adds
    "vtkLZMADataCompressor": lambda data: lzma.compress(data, preset=0),
}


def insert_arrays(source: Path, target: Path, at: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a copy of a VTK file with more arrays.

    Args:
        source: a ``.vtu`` or ``.vtp`` file of one piece.
        target: path of the copy.
        at: "cells" or "points".
        arrays: by name, (rows,) or (rows, components) of real numbers; they may be maps of files.

    Raises:
        ValueError: the file is damaged, has several pieces, another number of cells or points, or an array of a name.
    """
    elements = Elements()
    with source.open("rb") as old:
        elements.add(iter(lambda: old.read(_PIECE_BYTES), b""), most=math.inf)
    if elements.n_pieces != 1:
        raise ValueError(f"has {elements.n_pieces} pieces; arrays can be added to files of one piece")
    compressor = elements.root.get("compressor")
    if compressor and compressor not in _COMPRESSORS:
        raise ValueError(f"is compressed by {compressor}, which is none of {', '.join(_COMPRESSORS)}")
    rows = elements.rows[at]
    for name, values in arrays.items():
        if (at, name) in elements.names:
            raise ValueError(f"has an array {name!r} at its {at} already; choose another name")
        if len(values) != rows:
            raise ValueError(f"has {rows:,} {at}, and the array {name!r} has {len(values):,} rows")
    with source.open("rb") as old, target.open("wb") as new:
        stop, resume, opening, closing = _place(old, elements, at)
        old.seek(0)
        _copy(old, new, stop)
        new.write(opening)
        for name, values in arrays.items():
            _write_array(new, name, values, elements.root)
        new.write(closing)
        old.seek(resume)
        shutil.copyfileobj(old, new, _PIECE_BYTES)


def _place(file: IO[bytes], elements: Elements, at: str) -> tuple[int, int, bytes, bytes]:
    """Where new arrays go: before which position, what follows at which, and the tags to write around them."""
    name = _SECTIONS[at]
    if at not in elements.sections:
        return elements.end_of_piece, elements.end_of_piece, b"<%s>\n" % name, b"</%s>\n" % name
    begin, end = elements.sections[at]
    file.seek(end)
    if file.read(len(name) + 2) == b"</" + name:
        return end, end, b"", b""
    # The section is one tag, <CellData/>, and this the position behind it.
    file.seek(begin)
    tag = file.read(end - begin)
    return begin, end, tag.removesuffix(b"/>") + b">\n", b"</%s>" % name


def _copy(old: IO[bytes], new: IO[bytes], size: int) -> None:
    """Copy the next bytes of a file."""
    while size > 0:
        data = old.read(min(size, _PIECE_BYTES))
        new.write(data)
        size -= len(data)


def _write_array(file: IO[bytes], name: str, values: np.ndarray, form: Mapping[str, str]) -> None:
    """Write the element of an array, encoded as the root element says."""
    dtype = np.dtype(np.float32) if values.dtype == np.float16 else values.dtype
    order: Literal["<", ">"] = ">" if form.get("byte_order") == "BigEndian" else "<"
    header = np.dtype(f"{order}u{8 if form.get('header_type') == 'UInt64' else 4}")
    components = values.shape[1] if values.ndim > 1 else 1
    kind = f"{_KINDS[dtype.kind]}{dtype.itemsize * 8}"
    attributes = f'type="{kind}" Name={quoteattr(name)} NumberOfComponents="{components}" format="binary"'
    file.write(f"<DataArray {attributes}>\n".encode())
    pieces = _pieces(values, dtype.newbyteorder(order))
    compressor = form.get("compressor")
    if compressor:
        _write_compressed(file, pieces, _COMPRESSORS[compressor], header)
    else:
        size = values.size * dtype.itemsize
        if size > np.iinfo(header).max:
            raise ValueError(f"has a header_type that ends at 4 GiB, and the array {name!r} has {size:,} bytes")
        file.writelines(_base64(np.array([size], header).tobytes(), pieces))
    file.write(b"\n</DataArray>\n")


def _pieces(values: np.ndarray, dtype: np.dtype) -> Iterator[bytes]:
    """The bytes of an array, about a MiB at a time; all pieces but the last have the same size."""
    rows = max(1, _PIECE_BYTES // (dtype.itemsize * (values.size // max(len(values), 1) or 1)))
    for start in range(0, len(values), rows):
        yield np.ascontiguousarray(values[start : start + rows]).astype(dtype).tobytes()


def _write_compressed(
    file: IO[bytes], pieces: Iterable[bytes], compress: Callable[[bytes], bytes], header: np.dtype
) -> None:
    """Write compressed blocks, and before them their sizes, which are known only after the last of them."""
    sizes: list[int] = []
    uncompressed: list[int] = []
    with tempfile.TemporaryFile() as scratch:
        for piece in pieces:
            data = compress(piece)
            scratch.write(data)
            sizes.append(len(data))
            uncompressed.append(len(piece))
        block, last = uncompressed[0], uncompressed[-1]
        partial = last if last != block else 0
        file.write(base64.b64encode(np.array([len(sizes), block, partial, *sizes], header).tobytes()))
        scratch.seek(0)
        file.writelines(_base64(b"", iter(lambda: scratch.read(_PIECE_BYTES), b"")))


def _base64(left: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes, and pieces of bytes after them, as one text in base64, which encodes three bytes at a time."""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % 3
        yield base64.b64encode(left[:whole])
        left = left[whole:]
    yield base64.b64encode(left)
