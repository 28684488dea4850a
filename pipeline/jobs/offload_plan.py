"""Which offsets the next plan of a job moves, and how tasks share them. Pure.

Called by offload.py with what the table and the cluster say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from odradek.pipeline.kafka_types import PartitionName, PartitionRange

PIECE_ROWS_MIN: Final = 50_000
"""Fewer are not worth another task: a piece is a file for each time, too."""


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A partition as a plan sees it: moved up to `position`, committed records up to `end`."""

    topic_id: str
    position: int
    end: int


def next_ranges(
    progress: Mapping[PartitionName, PartitionProgress],
    rows_max: int,
    *,
    is_first: bool,
) -> tuple[PartitionRange, ...]:
    """The ranges of the next plan: at most about `rows_max` offsets, shared by lag.

    Every partition with a lag gets at least one offset, so none starves. The first plan of a table
    has all partitions, also those without records: it says where the table begins.
    """
    lags = {name: at.end - at.position for name, at in progress.items() if at.end > at.position}
    total = sum(lags.values())
    ranges = []
    for name, at in sorted(progress.items()):
        lag = lags.get(name, 0)
        taken = lag if total <= rows_max else -(-lag * rows_max // total)
        if taken or is_first:
            end = at.position + taken
            ranges.append(PartitionRange(name.topic, at.topic_id, name.partition, at.position, end))
    return tuple(ranges)


def task_pieces(
    ranges: Sequence[PartitionRange], parallelism: int
) -> tuple[tuple[PartitionRange, ...], ...]:
    """The ranges cut and dealt to tasks, each a tuple of pieces.

    A large range is cut so that all cores have work; small ones share a task. The largest piece
    is dealt first, always to the task with the fewest offsets.
    """
    total = sum(each.end - each.start for each in ranges)
    piece_rows = max(PIECE_ROWS_MIN, -(-total // max(1, parallelism)))
    pieces = [piece for each in ranges for piece in _cut(each, piece_rows)]
    count = min(len(pieces), max(1, parallelism))
    dealt: list[list[PartitionRange]] = [[] for _ in range(count)]
    sizes = [0] * count
    for piece in sorted(pieces, key=lambda each: each.start - each.end):
        least = sizes.index(min(sizes))
        dealt[least].append(piece)
        sizes[least] += piece.end - piece.start
    return tuple(tuple(each) for each in dealt)


def _cut(whole: PartitionRange, piece_rows: int) -> list[PartitionRange]:
    """Pieces of nearly the same size."""
    size = whole.end - whole.start
    # Half a piece more than fits is not cut off: it would be a task of its own.
    count = max(1, (size + piece_rows // 2) // piece_rows) if size else 0
    bounds = [whole.start + size * index // count for index in range(count + 1)] if count else []
    return [
        PartitionRange(whole.topic, whole.topic_id, whole.partition, start, end)
        for start, end in pairwise(bounds)
    ]
