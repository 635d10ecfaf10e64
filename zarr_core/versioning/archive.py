"""Archived generations: the document of each committed state, plain if it is small, compressed if it is large.

A compressed document begins with the key "commit", which tells what the commit changed. It is a member of its own of
the gzip file, so the history of a store reads the beginnings of the archives only.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import ManifestError
from zarr_core.storage import Storage, StoredObject

GENERATIONS = "generations"

# Documents up to this size stay plain JSON.
_PLAIN_BYTES = 64 << 10
# Compresses manifests to an eighth; higher levels take more time and save little.
_LEVEL = 3
# Bytes of an archive that are read to know its commit, unless the names of what changed need more.
_HEAD_BYTES = 64 << 10
# A document in memory; protects readers against hostile archives.
_LARGEST = 1 << 30
_GZIP = zlib.MAX_WBITS | 16


def generation_name(generation: int) -> str:
    """Name of the object that archives a generation; a compressed one has the suffix ".gz"."""
    return f"{GENERATIONS}/{generation:08d}.json"


def archive_names(generation: int) -> tuple[str, str]:
    """Both names that the archive of a generation may have."""
    return generation_name(generation), f"{generation_name(generation)}.gz"


def documents(storage: Storage) -> dict[int, StoredObject]:
    """Archived generations by number; each object was written when its generation was committed."""
    archives = {}
    for found in storage.objects(GENERATIONS):
        name = re.fullmatch(rf"{GENERATIONS}/(\d{{8,}})\.json(?:\.gz)?", found.name)
        if name:
            archives[int(name[1])] = found
    return archives


def find_archive(storage: Storage, generation: int) -> str | None:
    """Name of the archive of a generation; None if there is none."""
    return next((name for name in archive_names(generation) if storage.exists(name)), None)


def read_archive(storage: Storage, generation: int) -> tuple[str, bytes]:
    """Name and document of an archived generation; raises FileNotFoundError, or ManifestError if it is damaged."""
    plain, compressed = archive_names(generation)
    try:
        return plain, storage.read(plain)
    except FileNotFoundError:
        data = storage.read(compressed)
    try:
        document = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_LARGEST + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ManifestError(f"{storage.url}/{compressed} is damaged: {error}") from error
    if len(document) > _LARGEST:
        raise ManifestError(f"{storage.url}/{compressed} is larger than {_LARGEST} bytes")
    return compressed, document


def write_archive(
    storage: Storage, generation: int, document: bytes, commit: Callable[[], Mapping[str, Any]] | None
) -> None:
    """Archive a generation, unless it is archived. The document is a JSON object that is not empty.

    ``commit`` tells what the commit changed; None if it is unknown. It is recorded in large documents only.
    """
    plain, compressed = archive_names(generation)
    if len(document) <= _PLAIN_BYTES:
        storage.create(plain, document)
        return
    pieces = [document]
    if commit is not None:
        pieces = [b'{"commit":' + json.dumps(commit(), separators=(",", ":")).encode() + b",", document[1:]]
    storage.create(compressed, b"".join(zlib.compress(piece, _LEVEL, _GZIP) for piece in pieces))


def read_commit(storage: Storage, archive: StoredObject) -> dict[str, Any]:
    """What an archive records of its commit; empty if nothing. Reads the beginning of the archive, as a rule.

    Raises FileNotFoundError, or ManifestError if the record is damaged.
    """
    if not archive.name.endswith(".gz"):
        return {}
    member = zlib.decompressobj(_GZIP)
    try:
        data = member.decompress(storage.read(archive.name, 0, min(_HEAD_BYTES, archive.size)), _LARGEST)
        start = b'{"commit":'
        if not data.startswith(start):
            return {}
        if not member.eof:
            data += member.decompress(storage.read(archive.name, _HEAD_BYTES, archive.size), _LARGEST - len(data))
        return expect(dict, parse_json(data[len(start) : -1]), "commit")
    except (ValueError, zlib.error) as error:
        raise ManifestError(f"{storage.url}/{archive.name} is damaged: {error}") from error
