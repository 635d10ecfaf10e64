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
from zarr_core.matrix.store.state import HEAD as MATRIX
from zarr_core.matrix.store.state import MatrixState
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.stores.info import FieldInfo, StoreInfo, store_info
from zarr_core.stores.kinds import find_head
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
    head = find_head(storage)
    # There is no archive of a store of another program, or of a generation that was removed since.
    name = (find_archive(storage, info.generation) if info.generation else None) or head.name
    refuse_credentials(url)
    where = (url or info.store).rstrip("/")
    if info.kind == "points":
        manifest = load_manifest(storage.root, generation)
        title = info.name
        sizes = "; ".join(f"{domain}: {n.least:,} to {n.most:,} points" for domain, n in info.points.items())
        about = f"{info.samples:,} samples of {info.name}; {sizes}. Zarr v3, generation {info.generation}."
        objects, records = _points(info, manifest)
    else:
        title = where.rpartition("/")[2] or "matrix"
        about = (
            f"{info.samples:,} samples x {info.features:,} features of {', '.join(info.fields)}, "
            f"{len(info.batches):,} batches. Zarr v3, generation {info.generation}."
        )
        objects, records = _matrix(info, load(storage, MATRIX, generation), where)
    given = {"license": license, "citeAs": cite_as}
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": title,
        "description": f"{description} {about}".strip(),
        "url": where,
        "version": f"{info.generation}.0.0",
        **{key: text for key, text in given.items() if text},
    }
    if creator:
        document["creator"] = {"@type": "sc:Organization", "name": creator}
    if info.committed is not None:
        document["datePublished"] = time.strftime("%Y-%m-%d", time.gmtime(info.committed))
    document["distribution"] = [
        {
            "@type": "cr:FileObject",
            "@id": "manifest",
            "name": "manifest",
            "description": "The samples of this generation, and where each is in the Zarr arrays.",
            "contentUrl": f"{where}/{name}",
            "encodingFormat": "application/gzip" if name.endswith(".gz") else "application/json",
            "sha256": hashlib.sha256(storage.read(name)).hexdigest(),
        },
        *objects,
    ]
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
    target = Storage(folder)
    target.write(name, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])
    return f"{target.url.rstrip('/')}/{name}"


def _points(info: StoreInfo, manifest: StoreManifest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The objects and the record sets of a point store."""
    paths = {field: column.array_name for field, column in manifest.fields.items()}
    domains: dict[str, list[dict[str, Any]]] = {}
    for field, column in info.fields.items():
        domains.setdefault(paths[field].partition("/")[0], []).append(_field(paths[field], column))
    records = [{"@type": "cr:RecordSet", "@id": d, "name": d, "field": fields} for d, fields in domains.items()]
    about = "The Zarr arrays of the fields of this domain. Each chunk ends with its crc32c."
    objects = [_objects(domain, about, [f"samples/**/{domain}/**"]) for domain in manifest.domains]
    return objects, [*records, *_samples(manifest)]


def _matrix(info: StoreInfo, state: MatrixState, where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The objects and the record sets of a wide matrix: its value tables, names, metadata, samples and batches."""
    files = [
        ("features", "Names of the columns, NumPy.", state.axis.path, state.axis.sha256, "application/octet-stream")
    ]
    for kind, table in state.metadata.items():
        about = f"Metadata of the {kind}: {', '.join(table.columns)}."
        files.append((f"metadata/{kind}", about, table.path, table.sha256, "application/vnd.apache.parquet"))
    objects: list[dict[str, Any]] = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "description": about,
            "contentUrl": f"{where}/{path}",
            "encodingFormat": encoding,
            "sha256": sha256,
        }
        for name, about, path, sha256, encoding in files
    ]
    # One set of files for all value tables: the fields of a record must have one source, or a key that joins several.
    about = "A Zarr array (rows, features) per value table, NaN where missing. Each chunk ends with its crc32c."
    objects.append(_objects("matrix", about, [f"{value}.zarr/**" for value in info.fields]))
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"matrix/{value}",
            "name": f"matrix/{value}",
            "description": "(features,) of a sample, NaN where missing",
            "dataType": _DTYPES[column.dtype],
            "isArray": True,
            "arrayShape": str(info.features),
            "source": {"fileSet": {"@id": "objects/matrix"}, "extract": {"fileProperty": "content"}},
        }
        for value, column in info.fields.items()
    ]
    rows = [
        {"samples/id": sample_id, "samples/batch": batch_id, "samples/row": batch.row + n}
        for batch_id, batch in state.batches.items()
        for n, sample_id in enumerate(batch.sample_ids)
    ]
    return objects, [
        {"@type": "cr:RecordSet", "@id": "matrix", "name": "matrix", "field": fields},
        *_inline("samples", rows, {"id": "sc:Text", "batch": "sc:Text", "row": "sc:Integer"}),
    ]


def _objects(name: str, description: str, includes: list[str]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"objects/{name}",
        "name": f"objects/{name}",
        "description": description,
        "encodingFormat": "application/vnd.zarr",
        "includes": includes[0] if len(includes) == 1 else includes,
    }


def _field(path: str, column: FieldInfo) -> dict[str, Any]:
    unit, domain = f", in {column.units}" if column.units else "", path.partition("/")[0]
    # Croissant has no property of a unit; unitText is that of schema.org, the document's vocabulary.
    return {
        "@type": "cr:Field",
        "@id": path,
        "name": path,
        "description": f"(points, {column.components}){unit}",
        **({"unitText": column.units} if column.units else {}),
        "dataType": _DTYPES.get(column.dtype, "sc:Integer"),
        "isArray": True,
        "arrayShape": f"-1,{column.components}",
        "source": {"fileSet": {"@id": f"objects/{domain}"}, "extract": {"fileProperty": "content"}},
    }


def _samples(manifest: StoreManifest) -> list[dict[str, Any]]:
    """The record sets of the splits and of the samples; a sample of several splits has a record in each."""
    splits = {split: manifest.split_ids(split) for split in manifest.splits}
    listed = {sample_id for ids in splits.values() for sample_id in ids}
    rows = [(sample_id, split) for split, ids in splits.items() for sample_id in ids]
    rows += [(sample_id, "") for sample_id in manifest.samples if sample_id not in listed]
    return [
        *_inline("splits", [{"splits/name": split} for split in splits], {"name": "sc:Text"}, "cr:Split"),
        *_inline(
            "samples",
            [
                {"samples/id": i, "samples/split": split, "samples/group": manifest.samples[i].relpath}
                for i, split in rows
            ],
            {"id": "sc:Text", "split": "sc:Text", "group": "sc:Text"},
        ),
    ]


def _inline(
    name: str, rows: list[dict[str, Any]], fields: dict[str, str], kind: str | None = None
) -> list[dict[str, Any]]:
    """A record set whose records are in the document; none without records, which Croissant does not allow."""
    described = [
        {"@type": "cr:Field", "@id": f"{name}/{field}", "name": f"{name}/{field}", "dataType": dtype}
        for field, dtype in fields.items()
    ]
    first = {"@id": described[0]["@id"]}
    head: dict[str, Any] = {"@type": "cr:RecordSet", "@id": name, "name": name, "key": first, "field": described}
    return [head | ({"dataType": kind} if kind else {}) | {"data": rows}] if rows else []
