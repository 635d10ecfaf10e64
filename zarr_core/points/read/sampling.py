"""Draws the points of a sample for a training step: exact probabilities, a pure function, one byte range per field.

A stored sample has *n* shuffled points in chunks of *c* points; the last chunk may be shorter. A draw selects *T*
points, each with probability T/n, from few neighbouring chunks. It has three steps:

1. **Partition.** Divide the point axis into blocks of whole neighbouring chunks, so that each block holds at least T
   points (``k = ceil(T/c)`` chunks are enough). Remaining chunks are distributed over the blocks with a random phase,
   so that which chunks share a block varies. A shorter last chunk is a block of its own if it holds T points;
   otherwise it belongs to the last block.
2. **Start.** Choose one of the n points uniformly.
3. **Window.** Take T points from the start on, and continue at the beginning of its block when the block ends.

*Why the probabilities are exact.* Consider any point p and any partition; p's block has s >= T points. The windows that
contain p are those that start at p or at one of the T - 1 points before it (cyclically in the block): T starts, all
different because T <= s, all in the block. Starts are uniform over n, so p is drawn with probability T/n. This holds
for each partition, hence also for a random one, and for any n, c and length of the last chunk.

*Why a draw is one byte range.* A window lies in one block, and a block is a run of neighbouring chunks: k of them if
the number of chunks divides evenly, and at most 2k including the shorter last chunk.

A draw is a function of (seed, epoch, sample id, stream) only. Its random words are BLAKE2b hashes of these four, so
every process, in any order, with any version of the libraries, draws the same points.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from zarr_core._util.arguments import whole_number
from zarr_core.errors import ZarrCoreError

if TYPE_CHECKING:
    import torch

    Generator: TypeAlias = np.random.Generator | torch.Generator

_WORD_BYTES = 16
_EMPTY_HASH = hashlib.blake2b(digest_size=2 * _WORD_BYTES, person=b"zarr_core.draw")
_quoted = lru_cache(1 << 16)(json.dumps)  # the same in every epoch


class Draw(NamedTuple):
    """Points of one sample and domain, in the order in which they are returned.

    Attributes:
        runs: one or two half-open ranges of point indices. There are two if the window wraps in its block: the first
            ends at the end of the block, the second starts at its beginning.
        chunk_points: points per chunk of the arrays to read.
    """

    runs: tuple[tuple[int, int], ...]
    chunk_points: int

    @property
    def num_points(self) -> int:
        """Number of points drawn."""
        points = 0
        for start, stop in self.runs:  # asked for once per field and draw, where a generator costs three times as much
            points += stop - start
        return points

    @property
    def span(self) -> tuple[int, int]:
        """The shortest half-open range of points that contains all runs."""
        return min(start for start, _ in self.runs), max(stop for _, stop in self.runs)

    @property
    def chunks(self) -> range:
        """The shortest range of chunks that contains all runs."""
        start, stop = self.span
        return range(start // self.chunk_points, -(-stop // self.chunk_points))


def draw(
    n_points: int,
    chunk_points: int,
    num_points: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    sample_id: str = "",
    stream: str = "",
    generator: Generator | None = None,
) -> Draw:
    """Draw ``num_points`` of ``n_points`` points, each with probability ``num_points / n_points``.

    Args:
        n_points: points of the sample in this domain.
        chunk_points: points per stored chunk.
        num_points: points to draw; ``n_points`` or more returns all points in stored order.
        seed: seed of the training run.
        epoch: number of the epoch; each epoch draws different points.
        sample_id: id of the sample; each sample has independent draws.
        stream: makes draws of the same sample independent, for example those of its domains.
        generator: NumPy or torch generator that replaces ``seed`` and ``epoch``. Each call advances its state, so the
            order of calls matters.

    Raises:
        ZarrCoreError: a count is not a positive integer, or seed or epoch is not an integer.
    """
    n_points = whole_number("n_points", n_points, 1)
    chunk_points = whole_number("chunk_points", chunk_points, 1)
    num_points = whole_number("num_points", num_points, 1)
    seed, epoch = whole_number("seed", seed), whole_number("epoch", epoch)
    return draw_points(n_points, chunk_points, num_points, seed, epoch, sample_id, stream, generator)


def draw_points(
    n_points: int,
    chunk_points: int,
    num_points: int,
    seed: int,
    epoch: int,
    sample_id: str,
    stream: str,
    generator: Generator | None,
) -> Draw:
    """See :func:`draw`; the arguments must have been checked."""
    if num_points >= n_points:
        return Draw(((0, n_points),), chunk_points)
    entropy = f"{seed},{epoch}" if generator is None else f'"{_entropy(generator)}"'
    start_word, phase_word = _random_words(entropy, sample_id, stream)
    # The words have 128 bits, so the bias of the modulo is at most n / 2**128.
    phase = phase_word % block_count(n_points, chunk_points, num_points)
    return window(n_points, chunk_points, num_points, phase, start_word % n_points)


@lru_cache(1 << 12)  # samples have few numbers of points, and each draw asks twice
def block_count(n_points: int, chunk_points: int, num_points: int) -> int:
    """Number of blocks of the full chunks. The phase of a partition is one of ``range(block_count)``."""
    chunks_needed = -(-num_points // chunk_points)
    return max(1, n_points // chunk_points // chunks_needed)


def block_around(n_points: int, chunk_points: int, num_points: int, phase: int, point: int) -> tuple[int, int]:
    """The block of a partition that contains ``point``, as a half-open range of points.

    Of K full chunks in B blocks, block j has the chunks from ``(j*K + phase) // B`` to ``((j+1)*K + phase) // B``:
    ``K // B`` or one more. The phase determines which blocks have one more.
    """
    full_chunks = n_points // chunk_points
    tail_start = full_chunks * chunk_points
    tail_is_block = n_points - tail_start >= num_points
    if tail_is_block and point >= tail_start:
        return tail_start, n_points
    blocks = block_count(n_points, chunk_points, num_points)
    chunk = min(point // chunk_points, full_chunks - 1)
    block = ((chunk + 1) * blocks - 1 - phase) // full_chunks  # the last block that starts at or before this chunk
    first_chunk = (block * full_chunks + phase) // blocks
    stop_chunk = ((block + 1) * full_chunks + phase) // blocks
    takes_tail = stop_chunk == full_chunks and not tail_is_block
    return first_chunk * chunk_points, n_points if takes_tail else stop_chunk * chunk_points


def window(n_points: int, chunk_points: int, num_points: int, phase: int, start: int) -> Draw:
    """The ``num_points`` points from ``start`` on, cyclically in the block around it.

    All randomness is in ``phase`` (of ``range(block_count(...))``) and ``start`` (of ``range(n_points)``), both
    uniform, so a test can enumerate all draws. ``num_points < n_points``.
    """
    block_start, block_stop = block_around(n_points, chunk_points, num_points, phase, start)
    beyond = start + num_points - block_stop
    if beyond <= 0:
        return Draw(((start, start + num_points),), chunk_points)
    return Draw(((start, block_stop), (block_start, block_start + beyond)), chunk_points)


def _random_words(entropy: str, sample_id: str, stream: str) -> tuple[int, int]:
    """Two independent words, uniform over 128 bits."""
    # A list in JSON: different keys give different texts.
    text = f"[{entropy},{_quoted(sample_id)},{_quoted(stream)}]".encode("ascii")
    hashed = _EMPTY_HASH.copy()  # takes half the time of a new one
    hashed.update(text)
    digest = hashed.digest()
    return int.from_bytes(digest[:_WORD_BYTES], "little"), int.from_bytes(digest[_WORD_BYTES:], "little")


def _entropy(generator: Generator) -> str:
    if isinstance(generator, np.random.Generator):
        return generator.bytes(2 * _WORD_BYTES).hex()
    if type(generator).__module__.partition(".")[0] == "torch":
        import torch

        octets = torch.randint(256, (2 * _WORD_BYTES,), generator=generator, dtype=torch.uint8, device=generator.device)
        return bytes(octets.tolist()).hex()
    raise ZarrCoreError(f"generator must be a numpy.random.Generator or a torch.Generator, not {type(generator)}")
