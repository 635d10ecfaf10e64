"""How much a file of a source may claim, contain or expand to before it is refused. Files come from outside."""

from __future__ import annotations

# Of a pickle in a ``.pt`` file; that of one tensor has 200 bytes, and nests 3 deep.
MAX_PICKLE_BYTES = 1 << 20
MAX_PICKLE_DEPTH = 50
# Numbers of a parameter that is an array. Parameters lie in the attributes of a sample, which every reader loads.
MAX_PARAMETER_NUMBERS = 1000
# Objects of an HDF5 file that are looked at.
MAX_HDF5_OBJECTS = 100_000
# Bytes of a VTK XML file that are searched for elements. Values between the elements have to be read as well.
MAX_XML_BYTES = 2**30
# A compressed array may expand to this many times the size of its file, or to _EXPANDED bytes.
_EXPANSION = 200
_EXPANDED = 64 * 2**20
# A mesh may claim this many points or cells per byte of its file, which no compressor of VTK achieves, or _CLAIMED.
_CLAIMED_PER_BYTE = 100
_CLAIMED = 1_000_000


def check_expansion(n_bytes: int, size: int) -> None:
    """Raise ValueError for an array that is much larger than the file that contains it."""
    if n_bytes > max(_EXPANDED, size * _EXPANSION):
        raise ValueError(f"rejected: claims an array of {n_bytes:,} bytes, more than fit into its {size:,} bytes")


def most_claimed(size: int) -> int:
    """Number of points, cells or indices that a mesh in a file of this size may claim."""
    return max(_CLAIMED, size * _CLAIMED_PER_BYTE)


def check_claim(count: int, size: int) -> None:
    """Raise ValueError for more points, cells or indices than fit into a file of this size."""
    if count > most_claimed(size):
        raise ValueError(f"rejected: claims {count:,} values, more than fit into its {size:,} bytes")
