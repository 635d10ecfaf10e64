"""The samples of one of several processes that share a conversion without knowing each other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from zarr_core.errors import SourceError


@dataclass(frozen=True)
class Part:
    """One of ``count`` parts of a dataset.

    A digest of its id decides which part a sample belongs to. Each sample belongs to exactly one part, whatever arrives
    at the source between the listings of the processes.

    Attributes:
        number: from 0 to ``count - 1``.
        count: number of parts.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise SourceError(f"there is no part {self.number} of {self.count}; parts are numbered from 0")

    def has(self, sample_id: str) -> bool:
        """Whether a sample belongs to this part."""
        digest = hashlib.blake2b(sample_id.encode(), digest_size=8, person=b"zarr_core.part").digest()
        return int.from_bytes(digest, "big") % self.count == self.number

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> Part:
        """Read "0/8", or "auto" in a task of a Slurm array, or "auto/8" in an indexed Kubernetes job or a Slurm array.

        Raises:
            SourceError: the text is none of these, or the environment does not say which part is meant.
        """
        number, slash, count = text.partition("/")
        if number == "auto":
            number, tasks = _from_environment(environment)
            count = count if slash else tasks
            if not count:
                raise SourceError(f"part {text!r}: a Kubernetes job does not name its completions; give auto/COUNT")
        if not (number.isascii() and number.isdigit() and count.isascii() and count.isdigit()):
            raise SourceError(f"part {text!r} is not NUMBER/COUNT, such as 0/8, or auto")
        return cls(int(number), int(count))


def _from_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    """Number of this task and of all tasks, as Slurm or Kubernetes names them; "" if unknown."""
    task = environment.get("SLURM_ARRAY_TASK_ID")
    if task is not None:
        first, count = (environment.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("MIN", "COUNT"))
        step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
        try:
            number, rest = divmod(int(task) - int(first or 0), int(step))
        except (ValueError, ZeroDivisionError):
            number, rest = -1, 0
        if number < 0 or rest:
            raise SourceError(f"SLURM_ARRAY_TASK_ID={task!r} is not a task of an array of a regular step")
        return str(number), count
    index = environment.get("JOB_COMPLETION_INDEX")
    if index is None:
        raise SourceError("part auto: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set")
    return index, ""
