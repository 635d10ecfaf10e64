"""``croissant.json``: a description of a store that data catalogues read, in the format of MLCommons.

Source: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html. The ``mlcroissant`` library validates the
result in the tests; writing it needs no library.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

from zarr_core._util.redaction import redact, refuse_credentials
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix.store.state import MatrixState
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.stores.summary import FieldInfo, StoreInfo, store_info
from zarr_core.versioning.archive import find_archive
from zarr_core.versioning.generations import load

# Terms of Croissant by the names that the document uses.
_TERMS = """arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject fileSet
format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace
samplingRate separator source subField transform"""
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
Records = list[dict[str, Any]]
_DTYPES = {"float16": "cr:Float16", "float32": "cr:Float32", "float64": "cr:Float64", "bool": "sc:Boolean"}


def croissant_document(
    store_root: str | os.PathLike[str],
    *,
    generation: int | str | None = None,
    url: str | None = None,
    description: str = "",
    license: str = "",
    creator: str = "",
    cite_as: str = "",
) -> dict[str, Any]:
    """Describe a generation of a store.

    The description of a point store has the manifest of the generation with its SHA-256, the objects of each domain, a
    record set of the fields of each domain with dtype, width and units, the splits, and the split and the group of each
    sample. Units are those of the first sample. That of a wide matrix has its head, the names of the features and the
    tables of metadata with their SHA-256, the value tables, and the batch and the row of each sample.

    Args:
        store_root: path or URL of the store.
        generation: number or tag; the latest if None.
        url: where others find the store, if elsewhere.
        description: what the dataset is, in a sentence.
        license: URL or SPDX identifier of the licence.
        creator: person or organization.
        cite_as: citation, such as BibTeX.

    Returns:
        The JSON-LD document.

    Raises:
        StoreError: there is no store or no such generation.
    """
    storage = Storage(store_root)
    info = store_info(storage.root, generation=generation)
    generation = info.generation or None  # later reads use the same, whatever is committed meanwhile
    refuse_credentials(url)
    where = (url or info.store).rstrip("/")
    head = find_head(storage)
    state = load(storage, head, generation)
    if isinstance(state, MatrixState):
        title = where.rpartition("/")[2] or "matrix"
        tables = f"{info.features:,} features of {', '.join(info.fields)}, {len(info.batches):,} batches"
        about = f"{info.samples:,} samples x {tables}."
        objects, records = _matrix(info, state, where)
    else:
        title = info.name
        sizes = "; ".join(f"{domain}: {n.least:,} to {n.most:,} points" for domain, n in info.points.items())
        about = f"{info.samples:,} samples of {info.name}; {sizes}."
        objects, records = _points(info, state)
    if description:
        stop = "" if description.endswith((".", "!", "?")) else "."
        about = f"{description}{stop} {about}"
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": title,
        "description": f"{about} Zarr v3, generation {info.generation}.",
        "url": where,
        "version": f"{info.generation}.0.0",
    }
    if license:
        document["license"] = license
    if cite_as:
        document["citeAs"] = cite_as
    if creator:
        document["creator"] = {"@type": "sc:Organization", "name": creator}
    if info.committed is not None:
        document["datePublished"] = time.strftime("%Y-%m-%d", time.gmtime(info.committed))
    # There is no archive of a store of another program, or of a generation that was removed since.
    archive = find_archive(storage, generation) if generation else None
    document["distribution"] = [_manifest(storage, archive or head.name, where), *objects]
    document["recordSet"] = records
    return document


def write_croissant(document: dict[str, Any], out: str | os.PathLike[str]) -> str:
    """Write the document of :func:`croissant_document` to a path or URL; returns it without secrets.

    Raises:
        ZarrCoreError: ``out`` names no file.
    """
    folder, name = os.path.split(os.fspath(out))
    if not name or ("://" in os.fspath(out) and "://" not in folder):
        raise ZarrCoreError(f"{redact(os.fspath(out))} names no file; expected one such as s3://bucket/croissant.json")
    target = Storage(folder or ".")
    target.write(name, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])
    return f"{target.url.rstrip('/')}/{name}"


def _node(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    """A part of the document. What is None is left out."""
    given = {key: value for key, value in properties.items() if value is not None}
    return {"@type": f"cr:{kind}", "@id": name, "name": name, **given}


def _file(name: str, description: str, url: str, encoding: str, sha256: str) -> dict[str, Any]:
    return _node("FileObject", name, description=description, contentUrl=url, encodingFormat=encoding, sha256=sha256)


def _zarr_objects(name: str, description: str, includes: list[str]) -> dict[str, Any]:
    patterns = includes[0] if len(includes) == 1 else includes
    encoding = "application/vnd.zarr"
    return _node("FileSet", f"objects/{name}", description=description, encodingFormat=encoding, includes=patterns)


def _array(name: str, objects: str, column: FieldInfo, shape: str, description: str) -> dict[str, Any]:
    """A field whose values are arrays in the objects of this name."""
    return _node(
        "Field",
        name,
        description=description,
        # Croissant has no property of a unit; unitText is that of schema.org, the document's vocabulary.
        unitText=column.units or None,
        dataType=_DTYPES.get(column.dtype, "sc:Integer"),
        isArray=True,
        arrayShape=shape,
        source={"fileSet": {"@id": f"objects/{objects}"}, "extract": {"fileProperty": "content"}},
    )


def _inline(name: str, types: dict[str, str], rows: list[tuple[Any, ...]], kind: str | None = None) -> Records:
    """A record set whose records are in the document; none without records, which Croissant does not allow.

    ``rows`` have values in the order of the fields, of which the first is the key.
    """
    if not rows:
        return []
    fields = [_node("Field", f"{name}/{field}", dataType=dtype) for field, dtype in types.items()]
    names = [field["@id"] for field in fields]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    return [_node("RecordSet", name, key={"@id": names[0]}, field=fields, dataType=kind, data=records)]


def _manifest(storage: Storage, name: str, where: str) -> dict[str, Any]:
    about = "The samples of this generation, and where each is in the Zarr arrays."
    encoding = "application/gzip" if name.endswith(".gz") else "application/json"
    return _file("manifest", about, f"{where}/{name}", encoding, hashlib.sha256(storage.read(name)).hexdigest())


def _points(info: StoreInfo, manifest: StoreManifest) -> tuple[Records, Records]:
    """The objects and the record sets of a point store: the fields by domain, the splits, and the samples."""
    about = "The Zarr arrays of the fields of this domain. Each chunk ends with its crc32c."
    is_packed = [entry.head > 0 for entry in manifest.samples.values()]
    objects = []
    for domain in manifest.domains:
        places = []
        if not all(is_packed):
            places.append(f"**/{domain}/**")
        if any(is_packed):
            places.append("samples/**/*.zip")
        objects.append(_zarr_objects(domain, about, places))
    domains: dict[str, Records] = {}
    for field, column in info.fields.items():
        path = manifest.fields[field].array_name
        domain = path.partition("/")[0]
        unit = f", in {column.units}" if column.units else ""
        described = f"(points, {column.components}){unit}"
        array = _array(path, domain, column, f"-1,{column.components}", described)
        domains.setdefault(domain, []).append(array)
    records = [_node("RecordSet", domain, field=fields) for domain, fields in domains.items()]
    splits, rows = [], []
    others = dict(manifest.samples)
    for split in manifest.splits:
        splits.append((split,))
        for sample_id in manifest.split_ids(split):  # a sample of several splits has a record in each
            rows.append((sample_id, split, manifest.samples[sample_id].relpath))
            others.pop(sample_id, None)
    for sample_id, entry in others.items():
        rows.append((sample_id, "", entry.relpath))
    records += _inline("splits", {"name": "sc:Text"}, splits, "cr:Split")
    records += _inline("samples", {"id": "sc:Text", "split": "sc:Text", "group": "sc:Text"}, rows)
    return objects, records


def _matrix(info: StoreInfo, state: MatrixState, where: str) -> tuple[Records, Records]:
    """The objects and the record sets of a wide matrix: its value tables, names, metadata, samples and batches."""
    axis, stream = state.axis, "application/octet-stream"
    objects = [_file("features", "Names of the columns, NumPy.", f"{where}/{axis.path}", stream, axis.sha256)]
    for kind, table in state.metadata.items():
        about = f"Metadata of the {kind}: {', '.join(table.columns)}."
        parquet = "application/vnd.apache.parquet"
        objects.append(_file(f"metadata/{kind}", about, f"{where}/{table.path}", parquet, table.sha256))
    # One set of files for all value tables: the fields of a record must have one source, or a key that joins several.
    about = "A Zarr array (rows, features) per value table, NaN where missing. Each chunk ends with its crc32c."
    objects.append(_zarr_objects("matrix", about, [f"{value}.zarr/**" for value in info.fields]))
    described = "(features,) of a sample, NaN where missing"
    fields = []
    for value, column in info.fields.items():
        fields.append(_array(f"matrix/{value}", "matrix", column, str(info.features), described))
    rows = []
    for sample_id, batch_id in state.batch_of.items():
        rows.append((sample_id, batch_id, state.rows[sample_id]))
    samples = _inline("samples", {"id": "sc:Text", "batch": "sc:Text", "row": "sc:Integer"}, rows)
    return objects, [_node("RecordSet", "matrix", field=fields), *samples]
