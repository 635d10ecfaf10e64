"""Adds arrays to a ``.vtu`` or ``.vtp`` file: a copy of its bytes with the arrays in between, in bounded memory.

Arrays are written between the elements of the file, in base64. Arrays in its appended section keep their places,
because these count from the beginning of that section.
"""

from __future__ import annotations

import base64
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

import numpy as np
from numcodecs import lz4

from zarr_core.sources.formats.vtk_xml import EnoughError, new_parser

_PIECE_BYTES = 1 << 20
_SECTIONS = {"cells": "CellData", "points": "PointData"}
_CELLS = ("Cells", "Verts", "Lines", "Strips", "Polys")
_KINDS = {"f": "Float", "i": "Int", "u": "UInt"}


def _lz4(data: bytes) -> bytes:
    # numcodecs puts the size before the compressed bytes.
    return bytes(lz4.compress(data))[4:]


_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "vtkZLibDataCompressor": lambda data: zlib.compress(data, 1),
    "vtkLZ4DataCompressor": _lz4,
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
    places = _Places(at)
    places.find(source)
    for name, values in arrays.items():
        if name in places.names:
            raise ValueError(f"has an array {name!r} at its {at} already; choose another name")
        if len(values) != places.rows:
            raise ValueError(f"has {places.rows:,} {at}, and the array {name!r} has {len(values):,} rows")
    with source.open("rb") as old, target.open("wb") as new:
        _copy(old, new, places.stop)
        new.write(places.opening)
        for name, values in arrays.items():
            _write_array(new, name, values, places.format)
        new.write(places.closing)
        old.seek(places.resume)
        shutil.copyfileobj(old, new, _PIECE_BYTES)


class _Places:
    """Where arrays at the cells or points of a file go.

    Attributes:
        format: attributes of the root element.
        rows: number of cells or points.
        names: of the arrays that are there.
        stop, resume: the file is copied before the one position and from the other one on.
        opening, closing: what surrounds the new arrays there.
    """

    def __init__(self, at: str) -> None:
        self._section, self._counts = _SECTIONS[at], _CELLS if at == "cells" else ("Points",)
        self.format: dict[str, str] = {}
        self.rows = 0
        self.names: set[str] = set()
        self.stop = self.resume = 0
        self.opening = self.closing = b""
        self._pieces = 0
        # Positions of the section's tag and of what follows, None without a section; and of the end of the piece.
        self._begin: int | None = None
        self._end_of_section = self._end_of_piece = 0
        self._is_within = False
        self._parser = new_parser(self._start, self._end)

    def find(self, source: Path) -> None:
        """Look at the elements of a file; raises ValueError."""
        with source.open("rb") as file:
            try:
                while piece := file.read(_PIECE_BYTES):
                    self._parser.Parse(piece)
                self._parser.Parse(b"", True)
            except EnoughError:
                pass
            except expat.ExpatError as error:
                raise ValueError(f"truncated or damaged: {error}") from error
            if self._pieces != 1:
                raise ValueError(f"has {self._pieces} pieces; arrays can be added to files of one piece")
            self._choose(file)
        compressor = self.format.get("compressor")
        if compressor and compressor not in _COMPRESSORS:
            raise ValueError(f"is compressed by {compressor}, which is none of {', '.join(_COMPRESSORS)}")

    def _choose(self, file: IO[bytes]) -> None:
        name = self._section.encode()
        if self._begin is None:
            self.stop = self.resume = self._end_of_piece
            self.opening, self.closing = b"<%s>\n" % name, b"</%s>\n" % name
            return
        file.seek(self._end_of_section)
        if file.read(len(name) + 2) == b"</" + name:
            self.stop = self.resume = self._end_of_section
            return
        # The section is one tag, <CellData/>, and this the position behind it.
        file.seek(self._begin)
        tag = file.read(self._end_of_section - self._begin)
        self.stop, self.resume = self._begin, self._end_of_section
        self.opening, self.closing = tag.removesuffix(b"/>") + b">\n", b"</%s>" % name

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "VTKFile":
            self.format = attributes
        elif name == "Piece":
            self._pieces += 1
            for kind in self._counts:
                self.rows += int(attributes.get(f"NumberOf{kind}", 0))
        elif name == self._section:
            self._begin, self._is_within = self._parser.CurrentByteIndex, True
        elif name in ("DataArray", "Array") and self._is_within:
            self.names.add(attributes.get("Name", ""))
        elif name == "AppendedData":
            raise EnoughError

    def _end(self, name: str) -> None:
        if name == self._section:
            self._end_of_section, self._is_within = self._parser.CurrentByteIndex, False
        elif name == "Piece":
            self._end_of_piece = self._parser.CurrentByteIndex


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
