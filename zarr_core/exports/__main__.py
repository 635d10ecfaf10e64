"""Write a store in another format: ``zarr-core export webdataset|npy|parquet|h5ad|huggingface|croissant STORE OUT``."""

from __future__ import annotations

from zarr_core._util import command_line as cli

app = cli.verb(
    "export",
    """
zarr-core export webdataset /data/store /scratch/shards --split train --ranks 8 --loader-workers 4
zarr-core export webdataset s3://bucket/store draws --draws-per-sample 10 --num-points surface=4096 volume=16384
zarr-core export h5ad s3://bucket/betas betas.h5ad --values beta --features probes.txt
zarr-core export parquet s3://bucket/betas betas_parquet
zarr-core export npy s3://bucket/betas betas_npy --values beta
zarr-core export huggingface /data/store hub --license cc-by-4.0
zarr-core export croissant s3://bucket/store s3://bucket/store/croissant.json --license CC-BY-4.0
""",
    usage="FORMAT STORE OUT [OPTIONS]",
)
#: The formats of a matrix, as ``zarr-core matrix export`` offers them.
matrix_formats = cli.application("export", "Write a wide matrix in another format.", "", None)

_MATRIX_FORMATS = {
    "npy": "Value tables of a wide matrix as .npy files for numpy.load(file, mmap_mode='r').",
    "parquet": "A wide matrix as Parquet: a row per sample, a list of numbers per value table.",
    "h5ad": "A wide matrix as AnnData: the first value table as X, the others as layers.",
}
_FORMATS = {
    "webdataset": "Tar shards of whole samples or of draws, for the webdataset library and zarr_core.ShardStream.",
    **_MATRIX_FORMATS,
    "huggingface": "A folder for the Hugging Face Hub: a dataset card, and shards or tables that its library loads.",
    "croissant": "A description of one generation of a store for data catalogues: fields, units, splits, checksums, "
    "licence.",
}


for _parent, _verb, _formats in (app, "export", _FORMATS), (matrix_formats, "matrix export", _MATRIX_FORMATS):
    for _name, _text in _formats.items():
        # By its import path, which defers the import: the formats need torch, h5py and pyarrow.
        _usage = f"Usage: zarr-core {_verb} {_name} STORE OUT [OPTIONS]"
        _parent.command(f"zarr_core.exports.commands:{_name}", name=_name, usage=_usage, help=_text)

main = cli.program(app, __name__)
