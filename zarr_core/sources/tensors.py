"""Reads ``.pt`` files from a disk or an object store: tensors only, never code."""

from __future__ import annotations

import errno
import io
import pickletools
import struct
import zipfile
from contextlib import nullcontext
from typing import IO, Any, NamedTuple

import torch

from zarr_core._util.plain_arrays import plain_tensor
from zarr_core.sources.limits import MAX_PICKLE_BYTES, MAX_PICKLE_DEPTH
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage, is_local
from zarr_core.storage.reading import WHOLE_BYTES, RemoteFile, read_listed

_REBUILT = {
    f"torch._utils {name}"
    for name in (
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_sparse_tensor",
        "_rebuild_meta_tensor_no_storage",
        "_rebuild_device_tensor_from_cpu_tensor",
    )
}
_DICT = "collections OrderedDict"
_WITH_ATTRIBUTES = "torch._tensor _rebuild_from_type_v2"
_CALLED = {*_REBUILT, _DICT, _WITH_ATTRIBUTES, "torch Size", "torch.serialization _get_layout"}
_ITEM_BYTES = {
    "torch.storage UntypedStorage": 1,
    **dict.fromkeys(("torch ByteStorage", "torch CharStorage", "torch BoolStorage"), 1),
    **dict.fromkeys(("torch ShortStorage", "torch HalfStorage", "torch BFloat16Storage"), 2),
    **dict.fromkeys(("torch IntStorage", "torch FloatStorage"), 4),
    **dict.fromkeys(("torch LongStorage", "torch DoubleStorage", "torch ComplexFloatStorage"), 8),
    "torch ComplexDoubleStorage": 16,
}
_DTYPES = {f"torch {name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_GLOBALS = {*_CALLED, *_ITEM_BYTES, *_DTYPES, "torch Tensor", "torch.nn.parameter Parameter"}
# Records before and after the directory of a ZIP archive: its end, and the end and its locator of a ZIP64 archive.
_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")


def load_pt(storage: Storage, name: str, info: FileInfo) -> Any:
    """The content of a ``.pt`` file, checked and then loaded with ``weights_only=True``.

    Raises:
        ValueError: the file is truncated, is not a torch file, or contains more than tensors and plain containers.
        SourceError: it is not the version that was listed (see :mod:`zarr_core.storage.reading`).
    """
    file: Any
    if is_local(storage.root):
        file = storage.path(name)
    elif info.size <= WHOLE_BYTES:
        file = io.BytesIO(read_listed(storage, name, info.version))
    else:
        file = RemoteFile(storage, name, info.size, info.version)
    try:
        with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
            check_pt(opened)
            opened.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        # torch seeks to a negative offset in some truncated archives, which the system rejects with EINVAL.
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("truncated or not a torch file") from error
    except MemoryError:
        raise
    except Exception as error:  # unpickling arbitrary bytes can raise anything, for example struct.error
        if isinstance(file, RemoteFile) and file.error is not None:  # torch hides it behind an error of its own
            raise file.error from None
        if isinstance(error, RefusedError):
            raise
        reason = (str(error).splitlines() or [repr(error)])[0]
        if "allocate memory" in reason:  # torch reports lack of memory as RuntimeError; the file may be sound
            raise MemoryError(reason) from error
        raise ValueError(f"truncated or not a torch file: {reason:.300}") from error


def load_point_tensor(storage: Storage, name: str, info: FileInfo) -> torch.Tensor:
    """The tensor in a ``.pt`` file; raises as :func:`load_pt`, and ValueError if the file contains anything else."""
    tensor = load_pt(storage, name, info)
    if isinstance(tensor, torch.Tensor) and tensor.numel() * tensor.element_size() > info.size:
        # Strides of zero let a few bytes claim any number of values.
        raise ValueError(f"claims {tensor.numel()} values, more than fit into its {info.size} bytes")
    return plain_tensor(tensor)


class RefusedError(ValueError):
    """A file is not what torch writes for tensors, numbers and texts."""


class _Value(NamedTuple):
    """What is known of a value on the unpickler's stack; ``content`` of numbers, texts, globals and tuples."""

    kind: str
    content: Any = None
    depth: int = 0


def check_pt(file: IO[bytes]) -> None:
    """Raise RefusedError for a seekable file that is damaged, or has what could take any time or memory to load.

    Unpickling with ``weights_only=True`` runs no code, but it hashes any key, calls ``bytearray(10**12)``, and
    allocates storages of any claimed size. Only what tensors, numbers, texts, and lists and dicts of them consist of
    passes, in time and memory that the size of the file bounds.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        if file.read(4) == b"PK\x03\x04":
            _check_archive(file, size)
        else:
            _check_legacy(file, size)
    except (zipfile.BadZipFile, NotImplementedError, struct.error, KeyError, IndexError) as error:
        raise RefusedError(f"truncated or not a torch file: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a negative offset
            raise
        raise RefusedError(f"truncated or not a torch file: {error}") from error


def _check_archive(file: IO[bytes], size: int) -> None:
    if not _ends_with_its_directory(file, size):
        raise RefusedError("truncated or not a torch file: its archive has bytes beside its records")
    with zipfile.ZipFile(file) as archive:
        records = {record.filename.lower(): record for record in archive.infolist()}  # torch ignores case
        packed = {record.compress_type for record in records.values()} - {zipfile.ZIP_STORED}
        if packed or sum(record.file_size for record in records.values()) > size:
            raise RefusedError(
                "rejected: contains compressed records, which could expand to any size; torch.save writes none"
            )
        names = [name for name in records if name.endswith("/data.pkl")]
        if len(names) != 1 or len(records) != len(archive.infolist()):
            raise RefusedError("truncated or not a torch file: expected one data.pkl, and each record once")
        found = records[names[0]]
        folder = names[0].removesuffix("data.pkl")
        if found.file_size > MAX_PICKLE_BYTES:
            raise RefusedError(_too_large(found.file_size))
        del found.CRC  # torch can be told to write none
        for key, n_bytes in _scan(io.BytesIO(archive.read(found))).items():
            if n_bytes > records[f"{folder}data/{key}".lower()].file_size:
                raise RefusedError(f"truncated or not a torch file: storage {key!r:.20} is shorter than its tensor")


def _ends_with_its_directory(file: IO[bytes], size: int) -> bool:
    """Whether readers of archives agree on where the directory is: at its stated place, and nothing after it."""
    tail = min(size, _END.size + _LOCATOR64.size + _END64.size)
    file.seek(size - tail)
    data = file.read(tail)
    end = len(data) - _END.size
    signature, *_, n_bytes, offset, comment = _END.unpack_from(data, end)
    if signature != b"PK\x05\x06" or comment:
        return False
    locator = end - _LOCATOR64.size
    if data[locator : locator + 4] == b"PK\x06\x07":
        end = locator - _END64.size
        signature, *_, n_bytes, offset = _END64.unpack_from(data, end)
        stated = _LOCATOR64.unpack_from(data, locator)[2]
        if signature != b"PK\x06\x06" or stated != size - tail + end:
            return False
    return bool(offset + n_bytes == size - tail + end)


def _check_legacy(file: IO[bytes], size: int) -> None:
    """A file of torch before 1.6: five pickles (among them the third, of this machine), then the storages."""
    file.seek(0)
    head = io.BytesIO(file.read(min(size, MAX_PICKLE_BYTES)))
    if head.read(1) != b"\x80":
        raise RefusedError("truncated or not a torch file")
    head.seek(0)
    claimed = 0
    for _ in range(5):
        claimed += sum(_scan(head).values())
    if claimed > size:
        raise RefusedError(f"claims {claimed} bytes of storages, more than its {size} bytes")


def _too_large(size: int) -> str:
    most = f"expected at most {MAX_PICKLE_BYTES:,}"
    return f"rejected: its pickle has {size:,} bytes or more, {most}; save one tensor per file"


def _scan(file: io.BytesIO) -> dict[str, int]:
    """Sizes in bytes of the storages that a pickle names, by their keys; raises RefusedError for what is not allowed.

    What it allows is a tree: only names, texts, numbers and tensors appear twice, and only texts and numbers are keys.
    Therefore no walk over it, as for a hash or a message, takes longer than reading the file.
    """
    stack: list[_Value] = []  # since the last mark
    before: list[list[_Value]] = []  # what was on it at each mark
    memo: dict[Any, _Value] = {}
    storages: dict[str, int] = {}
    try:
        argument: Any
        for opcode, argument, _ in pickletools.genops(file):
            match opcode.name:
                case "PROTO" | "STOP":
                    pass
                case "NONE" | "NEWTRUE" | "NEWFALSE" | "BININT" | "BININT1" | "BININT2" | "BINFLOAT" | "LONG1":
                    stack.append(_Value("number", argument))
                case "BINUNICODE" | "SHORT_BINSTRING":
                    stack.append(_Value("text", argument))
                case "GLOBAL":
                    stack.append(_Value("name", _allowed(argument, _GLOBALS)))
                case "EMPTY_LIST" | "EMPTY_DICT":
                    stack.append(_Value(opcode.name[6:].lower()))
                case "MARK":
                    before.append(stack)
                    stack = []
                case "EMPTY_TUPLE":
                    stack.append(_Value("tuple", ()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    count = -int(opcode.name[5:])
                    items = stack[count:]
                    del stack[count:]
                    stack.append(_nested("tuple", items, tuple(items)))
                case "TUPLE":
                    items, stack = stack, before.pop()
                    stack.append(_nested("tuple", items, tuple(items)))
                case "APPEND":
                    items = [stack.pop()]
                    stack[-1] = _extended("list", stack[-1], items)
                case "APPENDS":
                    items, stack = stack, before.pop()
                    stack[-1] = _extended("list", stack[-1], items)
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    stack[-1] = _extended("dict", stack[-1], _checked_items([key, value]))
                case "SETITEMS":
                    items, stack = stack, before.pop()
                    stack[-1] = _extended("dict", stack[-1], _checked_items(items))
                case "REDUCE":
                    arguments, called = stack.pop(), stack.pop()
                    stack.append(_result(called, arguments))
                case "BINPERSID":
                    name, n_bytes = _storage(stack.pop())
                    storages[name] = max(n_bytes, storages.get(name, 0))
                    stack.append(_Value("storage"))
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    if memo[argument].kind in ("tuple", "list", "dict"):
                        raise RefusedError(f"rejected: contains one {memo[argument].kind} twice; save plain tensors")
                    stack.append(memo[argument])
                case other:
                    raise RefusedError(f"rejected: contains more than tensors ({other}); save plain tensors")
    except RefusedError:
        raise
    except (ValueError, IndexError, KeyError) as error:
        if file.tell() >= MAX_PICKLE_BYTES:
            raise RefusedError(_too_large(MAX_PICKLE_BYTES)) from error
        raise RefusedError(f"truncated or not a torch file: {error}") from error
    return storages


def _nested(kind: str, items: list[_Value], content: Any = None, depth: int = 0) -> _Value:
    """A value that contains others; ``depth`` is that of what it contains already."""
    for item in items:
        depth = max(depth, item.depth + 1)
    if depth > MAX_PICKLE_DEPTH:
        raise RefusedError(f"rejected: nested more than {MAX_PICKLE_DEPTH} deep")
    return _Value(kind, content, depth)


def _extended(kind: str, value: _Value, items: list[_Value]) -> _Value:
    """A list or dict with more items."""
    if value.kind != kind:
        raise RefusedError(f"rejected: adds items to a {value.kind}")
    return _nested(kind, items, depth=value.depth)


def _allowed(name: str, names: set[str]) -> str:
    if name not in names:
        raise RefusedError(
            f"rejected: contains more than tensors ({name.replace(' ', '.'):.80}), and loading it could run code; "
            "save plain tensors"
        )
    return name


def _checked_items(items: list[_Value]) -> list[_Value]:
    """The keys and values of a dict, in turns."""
    for key in items[::2]:
        # Python's hashes of texts are secret. Those of larger integers are not, and may all be equal.
        is_small = key.kind == "number" and not (isinstance(key.content, int) and abs(key.content) >= 2**63)
        if key.kind != "text" and not is_small:
            raise RefusedError(f"rejected: contains a dict with a {key.kind} as a key; expected texts or numbers")
    return items


def _result(called: _Value, arguments: _Value) -> _Value:
    if called.kind != "name" or arguments.kind != "tuple":
        raise RefusedError(f"rejected: calls a {called.kind}")
    name = _allowed(called.content, _CALLED)
    if name == _DICT:
        if any(item != _Value("list") for item in arguments.content):  # Python 2 wrote an empty list
            raise RefusedError("rejected: contains an OrderedDict of something; save plain tensors")
        return _Value("dict")
    if name == _WITH_ATTRIBUTES:
        _allowed(str(arguments.content[0].content), _REBUILT)
    return _nested("tensor", [arguments])


def _storage(persistent: _Value) -> tuple[str, int]:
    """Key and size in bytes of a storage, from what torch wrote in its place."""
    items: tuple[_Value, ...] = persistent.content if persistent.kind == "tuple" else ()
    kinds = [item.kind for item in items[:5]]
    if kinds != ["text", "name", "text", "text", "number"] or items[0].content != "storage":
        raise RefusedError("rejected: contains a reference to something that is not a storage")
    count = items[4].content
    if not isinstance(count, int) or count < 0:
        raise RefusedError("rejected: contains a storage without a size")
    for view in items[5:]:
        for part in view.content if view.kind == "tuple" else (view,):
            if part.kind not in ("text", "number"):
                raise RefusedError("rejected: contains a view of a storage that is not one")
    if items[1].content not in _ITEM_BYTES:
        raise RefusedError(f"rejected: contains a storage of {items[1].content}")
    return items[2].content, count * _ITEM_BYTES[items[1].content]
