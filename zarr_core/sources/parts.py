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
        """Read "0/8", or "auto/8" in a Slurm array or an indexed Kubernetes job, or "auto" in a Slurm array.

        With "auto/8", the task id of an array 0-7 is the number of the part, so a task that is submitted again on its
        own (``sbatch --array=3``) converts the same part.

        Raises:
            SourceError: the text is none of these, or the environment does not say which part is meant.
        """
        number, slash, count = text.partition("/")
        automatic = number == "auto"
        if automatic:
            number = _task(environment)
            count = count if slash else _tasks(environment)
        if not (number.isascii() and number.isdigit() and count.isascii() and count.isdigit()):
            raise SourceError(f"part {text!r} is not NUMBER/COUNT, such as 0/8, or auto")
        if automatic and int(number) >= int(count) > 0:
            raise SourceError(
                f"part {text!r}: task {number} has no part, because parts are numbered from 0: use tasks 0 to "
                f"{int(count) - 1}, in Slurm --array=0-{int(count) - 1}"
            )
        return cls(int(number), int(count))


def _task(environment: Mapping[str, str]) -> str:
    """Number of this task, as Slurm or Kubernetes names it."""
    for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
        if name in environment:
            return environment[name]
    raise SourceError("part auto: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set")


def _tasks(environment: Mapping[str, str]) -> str:
    """Number of tasks of a Slurm array 0-N; of any other array it is not known how many parts there are."""
    if "SLURM_ARRAY_TASK_ID" not in environment:
        raise SourceError("part 'auto': a Kubernetes job does not name its completions; give auto/COUNT")
    first = environment.get("SLURM_ARRAY_TASK_MIN", "")
    last = environment.get("SLURM_ARRAY_TASK_MAX", "")
    count = environment.get("SLURM_ARRAY_TASK_COUNT", "")
    # The ids are distinct, so an array of COUNT tasks that ends at COUNT - 1 begins at 0 and has no gaps.
    if not (count.isascii() and count.isdigit()) or last != str(int(count) - 1):
        raise SourceError(
            f"part 'auto': the array has {count or '?'} tasks, from {first or '?'} to {last or '?'}, not "
            "0 to COUNT - 1, as if some of its tasks were submitted again; give the number of parts: auto/COUNT"
        )
    return count
