"""Words about what the warehouse no longer has, but the matrix still holds."""

from collections.abc import Sequence

_MOST = 10


def withdrawal(matrix: str, batches: Sequence[str], samples: Sequence[str] = ()) -> str:
    """Withdrawn batches and samples, and the command that removes them; "" if there are none.

    Args:
        matrix: its location.
        batches, samples: what the matrix holds and the warehouse does not.
    """
    options = {"batches": batches, "samples": samples}
    named = " ".join(f"--{option} {' '.join(names[:_MOST])}" for option, names in options.items() if names)
    more = sum(max(0, len(names) - _MOST) for names in options.values())
    if not named:
        return ""
    counts = f"{len(batches)} batches, and {len(samples)} samples of other batches"
    others = f" (and {more} more)" if more else ""
    return (
        f"withdrawn from the warehouse, but still in the matrix: {counts}. "
        f"To remove them: zarr-core matrix retire {matrix} {named}{others}"
    )
