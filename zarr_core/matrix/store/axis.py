"""Feature axis of a matrix: the names of its columns, fixed at creation.

Tens of millions of names are kept as one NumPy array of bytes or integers, never as Python strings.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from zarr_core._util.arguments import check_names
from zarr_core._util.plain_arrays import plain_array
from zarr_core.errors import CorruptChunkError, ManifestError, MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix.store.state import HEAD_NAME, Axis
from zarr_core.storage import Storage

_BLOCK = 65_536  # names that are handled together
_FEW = 65_536  # names whose positions are remembered
_ZERO = "a feature's name ends with a zero character, which NumPy would drop"


class FeatureAxis(Sequence[Any]):
    """Names of the columns in order: a sequence of ``str`` or ``int``.

    Args:
        ids: (features,) names: strings, bytes (UTF-8) or integers.

    Attributes:
        ids: (features,) the names as a NumPy array of bytes (dtype "S") or int64.

    Raises:
        MatrixError: there are no names, a name is repeated, or the names are neither strings nor integers.
    """

    def __init__(self, ids: Sequence[str] | Sequence[int] | np.ndarray) -> None:
        check_names("feature_ids", ids, error=MatrixError)
        self.ids = _as_array(ids)
        if not len(self.ids):
            raise MatrixError("a matrix needs at least one feature")
        self._order: np.ndarray | None = None
        # Names that were asked for last, and their positions: the batches of a dataset ask for the same ones.
        self._last = b"", np.empty(0, np.int64)
        if not (self.ids[1:] > self.ids[:-1]).all():
            # Names that are not sorted are found through their sorted order, which takes 8 bytes per feature.
            self._order = np.argsort(self.ids, kind="stable")
            for start in range(0, len(self.ids), _BLOCK):
                in_order = self.ids[self._order[start : start + _BLOCK + 1]]
                double = in_order[1:] == in_order[:-1]
                if double.any():
                    raise MatrixError(f"feature {self._name(in_order[int(np.argmax(double))])!r} appears twice")

    @property
    def is_text(self) -> bool:
        """Whether the names are strings."""
        return bool(self.ids.dtype.kind == "S")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: Any) -> Any:
        """One name, or a NumPy array of names for a slice or an array of positions."""
        if isinstance(place, (int, np.integer)):
            return self._name(self.ids[place])
        found = self.ids[place]
        return np.char.decode(found, "utf-8") if self.is_text else found

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK].tolist()

    def __arrow_array__(self, type: Any = None) -> Any:
        """The names as an Arrow array of strings or int64."""
        import pyarrow as pa

        return pa.array(self.ids).cast(type or (pa.string() if self.is_text else pa.int64()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureAxis) or self.ids.dtype != other.ids.dtype:
            return False
        return np.array_equal(self.ids, other.ids)

    def positions(self, feature_ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
        """Positions of features, (n,) int64; raises UnknownFieldError for the first unknown feature."""
        few = isinstance(feature_ids, np.ndarray) and feature_ids.ndim == 1 and 0 < len(feature_ids) <= _FEW
        if few and type(feature_ids) is np.ndarray and feature_ids.dtype == self.ids.dtype:
            asked = feature_ids.tobytes()
            last, found = self._last  # once: another thread may replace it
            if asked == last:
                return found
            found = self.locate(feature_ids)
            if (found >= 0).all():
                found.flags.writeable = False
                self._last = asked, found
                return found
        check_names("feature_ids", feature_ids, error=UnknownFieldError)
        if not len(feature_ids):
            return np.empty(0, np.int64)
        wanted = _as_array(feature_ids)
        if (is_text := wanted.dtype.kind == "S") != self.is_text:
            self.check_kind(is_text, next(iter(feature_ids)))  # a pandas.Series is indexed by its labels
        found = self.locate(wanted)
        if (found < 0).any():
            name = self._name(wanted[int(np.argmin(found))])
            raise UnknownFieldError(f"feature {name!r} is not on the axis of this matrix ({len(self):,} features)")
        return found

    def check_kind(self, is_text: bool, example: Any) -> None:
        """Raise UnknownFieldError if names are of another kind than those of the axis."""
        if is_text != self.is_text:
            own, given = ("strings", "integers") if self.is_text else ("integers", "strings")
            raise UnknownFieldError(f"the features of this matrix are {own}, not {given}: {example!r}")

    def find(self, names: Any) -> np.ndarray:
        """Positions of an Arrow array of strings, (n,) int64, -1 where a name is null or is not on the axis.

        Integers on the axis have the names that SQL writes: 7, not 07 or +7.
        """
        names = names.fill_null("")
        if self.is_text:
            return self.locate(from_arrow(names))
        numbers, is_number = _parsed(names)
        return np.where(is_number, self.locate(numbers), -1)

    def locate(self, wanted: np.ndarray) -> np.ndarray:
        """Positions of names, (n,) bytes or int64 as those of the axis: (n,) int64, -1 where one is not on the axis."""
        found = np.full(len(wanted), -1, np.int64)
        candidates = np.arange(len(wanted))
        if wanted.dtype.itemsize > self.ids.dtype.itemsize:  # longer names would be cut off: they are not on the axis
            candidates = np.flatnonzero(np.char.str_len(wanted) <= self.ids.dtype.itemsize)
            wanted = wanted[candidates]
        wanted = wanted.astype(self.ids.dtype, copy=False)
        # Rows mostly arrive in the order of the axis. Comparing bytes takes a tenth of the time of a search.
        start = int(self._places(wanted[:1]).sum())
        run = self.ids[start : start + len(wanted)]
        if np.array_equal(run.view(np.uint8), wanted.view(np.uint8)):
            found[candidates] = np.arange(start, start + len(wanted))
            return found
        places = self._places(wanted)
        same = self.ids[places] == wanted
        found[candidates[same]] = places[same]
        return found

    def shared(self, other: FeatureAxis) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the features that both axes have, here and there, (n,) int64 each, ascending here.

        Raises:
            UnknownFieldError: the features of one axis are strings, those of the other integers.
        """
        self.check_kind(other.is_text, other[0])
        _, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        order = np.argsort(here)
        return here[order], there[order]

    def union(self, feature_ids: Sequence[str] | Sequence[int] | np.ndarray) -> FeatureAxis:
        """An axis of all features of this one and of others, sorted if this one is; else new features come last.

        Raises:
            MatrixError, UnknownFieldError: the names are invalid, or of another type.
        """
        other = FeatureAxis(feature_ids)
        _, known = self.shared(other)
        added = np.delete(other.ids, known)
        together = np.concatenate([self.ids, added])
        return FeatureAxis(np.sort(together) if self._order is None else together)

    def to_npy(self) -> bytes:
        """The axis as the content of a ``.npy`` file."""
        file = io.BytesIO()
        np.save(file, self.ids, allow_pickle=False)
        return file.getvalue()

    def _places(self, wanted: np.ndarray) -> np.ndarray:
        """Positions of names of the axis, (n,) int64; any position for other names."""
        places = np.minimum(np.searchsorted(self.ids, wanted, sorter=self._order), len(self.ids) - 1)
        return places if self._order is None else self._order[places]

    def _name(self, stored: Any) -> str | int:
        return str(stored.decode("utf-8")) if self.is_text else int(stored)


def load_axis(storage: Storage, recorded: Axis) -> FeatureAxis:
    """The features that the head of a matrix records.

    Raises:
        StoreError, CorruptChunkError: the object is missing or damaged.
        ManifestError: it holds another number of features.
    """
    where = f"{storage.url}/{recorded.path}"
    try:
        data = storage.read(recorded.path)
    except FileNotFoundError as error:
        raise StoreError(f"{where}: the names of the features are missing") from error
    if hashlib.sha256(data).hexdigest() != recorded.sha256:
        raise CorruptChunkError(f"{where}: the features are not those that the matrix was created with")
    try:
        file = io.BytesIO(data)
        if (version := np.lib.format.read_magic(file)) != (1, 0):
            raise ValueError(f"a .npy file of version {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        # A read-only array of these bytes; np.load would copy them.
        found = FeatureAxis(np.frombuffer(data, dtype, math.prod(shape), file.tell()).reshape(shape))
    except Exception as error:  # NumPy passes the header to Python's parsers, which raise many kinds of errors
        raise CorruptChunkError(f"{where} is not a list of features: {error}") from error
    if len(found) != recorded.length:
        raise ManifestError(f"{where}: {len(found)} features, but {HEAD_NAME} records {recorded.length}")
    return found


def _as_array(ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
    try:
        return _encoded(ids)
    except UnicodeEncodeError as error:
        raise MatrixError(f"feature {error.object!r:.80} is not valid Unicode") from error


def _encoded(ids: Any) -> np.ndarray:
    if isinstance(ids, FeatureAxis):
        return ids.ids
    if hasattr(ids, "__arrow_c_array__") or hasattr(ids, "__arrow_c_stream__"):
        return _checked(from_arrow(ids))
    if isinstance(ids, list | tuple) and len(ids) and all(isinstance(name, str) for name in ids):
        if any(name.endswith("\0") for name in ids):
            raise MatrixError(_ZERO)
        found = _in_blocks(ids, lambda block: np.array([name.encode() for name in block]))
    else:
        try:
            found = plain_array(ids, numbers=False)
        except ValueError as error:
            raise MatrixError(f"a plain array of names is needed; this one {error}") from error
    if hasattr(found.dtype, "na_object"):  # NumPy's strings that may be missing; as text, these would be names
        found = found.astype(object)
    if found.ndim == 1 and found.dtype.kind in "UT" and len(found):
        found = _in_blocks(found, lambda block: np.char.encode(block.astype(str), "utf-8"))
    elif found.ndim == 1 and found.dtype.kind == "O" and all(isinstance(name, str) for name in found):
        return _encoded(list(found)) if len(found) else found
    elif found.ndim == 1 and found.dtype.kind in "iu":
        if found.dtype == np.uint64 and len(found) and found.max() > np.iinfo(np.int64).max:
            raise MatrixError(f"feature {found.max()} does not fit in a signed 64-bit integer; use strings as names")
        return found.astype("<i8")
    if found.ndim != 1 or (found.dtype.kind != "S" and len(found)):
        raise MatrixError("names of features must be strings or integers")
    return _checked(found)


def _checked(found: np.ndarray) -> np.ndarray:
    """The names; raises MatrixError if one of them is empty or is not UTF-8."""
    for start in range(0, len(found), _BLOCK) if found.dtype.kind == "S" else ():
        block = np.ascontiguousarray(found[start : start + _BLOCK])
        if not np.char.str_len(block).all():
            raise MatrixError("a feature has an empty name")
        if block.view(np.uint8).max(initial=0) > 127:  # ASCII need not be decoded
            try:
                np.char.decode(block, "utf-8")
            except UnicodeDecodeError as error:
                raise MatrixError(f"the name of a feature is not UTF-8: {error}") from error
    return found


def _in_blocks(names: Any, encode: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Encoded names. Memory: the result twice, whatever the names take as Python or NumPy strings."""
    return np.concatenate([encode(names[start : start + _BLOCK]) for start in range(0, len(names), _BLOCK)])


def words(text: bytes) -> np.ndarray:
    """The words of a text, (n,) bytes, without a Python object per word."""
    data = np.frombuffer(text, np.uint8)
    inside = ~np.isin(data, np.frombuffer(b" \t\n\r\v\f", np.uint8))
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).reshape(-1, 2)
    return _fixed_width(data[inside], edges[:, 1] - edges[:, 0])


def from_arrow(names: Any) -> np.ndarray:
    """Names of an Arrow array as bytes (UTF-8), or int64, without Python strings.

    Args:
        names: an array or chunked array of strings or integers, of pyarrow or any library with its interface.

    Raises:
        MatrixError: a name is missing, or they are neither strings nor integers.
    """
    import pyarrow as pa

    if not isinstance(names, pa.ChunkedArray):
        names = pa.chunked_array(names if hasattr(names, "__arrow_c_stream__") else [pa.array(names)])
    if names.null_count:
        raise MatrixError("a feature has no name: the column of features has null values")
    if pa.types.is_dictionary(names.type):
        names = names.cast(names.type.value_type)
    if pa.types.is_integer(names.type):
        return _encoded(names.to_numpy())
    if str(names.type) not in ("string", "large_string", "string_view"):
        raise MatrixError(f"names of features must be strings or integers, not {names.type}")
    parts = []
    for chunk in names.cast(pa.large_string()).cast(pa.large_binary()).chunks:
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        parts.append(_fixed_width(used, np.diff(ends)))
    return np.concatenate(parts) if parts else np.empty(0, "S1")


def _parsed(texts: Any) -> tuple[np.ndarray, np.ndarray]:
    """Texts of an Arrow array as int64, and whether each of them is one as SQL writes it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    written = pc.match_substring_regex(texts, "^(0|-?[1-9][0-9]{0,18})$")  # 19 digits fit in 64 bits without a sign
    sizes = pc.utf8_ltrim(pc.if_else(written, texts, "0"), "-").cast(pa.uint64()).to_numpy()
    negative = pc.starts_with(texts, "-").to_numpy(zero_copy_only=False)
    numbers = sizes.astype(np.int64)  # -2**63 wraps to itself
    numbers[negative] *= -1
    fits = sizes <= np.iinfo(np.int64).max + negative.astype(np.uint64)
    return numbers, fits & written.to_numpy(zero_copy_only=False)


def _fixed_width(data: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Names that follow each other without gaps, as a NumPy array of bytes.

    Args:
        data: uint8, the bytes of all names.
        lengths: bytes of each name.
    """
    width = max(1, int(lengths.max(initial=0)))
    if len(lengths) and lengths.min() == width:
        if not data[width - 1 :: width].all():
            raise MatrixError(_ZERO)
        return data.view(f"S{width}")
    found = np.zeros((len(lengths), width), np.uint8)
    end = 0
    for start in range(0, len(lengths), _BLOCK):
        block = lengths[start : start + _BLOCK]
        begin, end = end, end + int(block.sum())
        if end > begin and not data[begin - 1 + np.cumsum(block)].all():
            raise MatrixError(_ZERO)
        found[start : start + _BLOCK][np.arange(width) < block[:, None]] = data[begin:end]
    return found.view(f"S{width}").reshape(-1)
