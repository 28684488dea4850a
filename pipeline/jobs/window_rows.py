"""Reads a table's rows of a window, and says which offsets cannot be read.

A table may have lost a file, or a file may be cut. Then the window is read in pieces, each between
the ends of two files, so that whatever can be compared is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.target import TableTarget

_REASON_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets [start, end) whose rows cannot be read, and why."""

    start: int
    end: int
    reason: str


def read_window(
    table: TableTarget,
    scan: ExactScan,
    window: PartitionRange,
    columns: Sequence[str],
    schema: pa.Schema,
) -> tuple[pa.Table, list[Unreadable]]:
    """The rows that can be read, in any order; `schema` is that of these columns."""
    unreadable: list[Unreadable] = []
    batches = _batches(scan, window, columns)
    if isinstance(batches, str):
        ends = _ends_of_files(table, window)
        readable: list[pa.RecordBatch] = []
        for start, end in pairwise(ends):
            piece = replace(window, start=start, end=end)
            found = _batches(scan, piece, columns)
            if isinstance(found, str):
                unreadable.append(Unreadable(piece.start, piece.end, found))
            else:
                readable += found
        batches = readable
    return pa.Table.from_batches(batches) if batches else schema.empty_table(), unreadable


def _batches(
    scan: ExactScan, window: PartitionRange, columns: Sequence[str]
) -> list[pa.RecordBatch] | str:
    """The batches, or why there are none."""
    try:
        return scan.read(columns, window)
    except (OSError, pa.ArrowException, PipelineError) as error:
        return " ".join(str(error).split())[:_REASON_LENGTH_MAX]


def _ends_of_files(table: TableTarget, window: PartitionRange) -> list[int]:
    """Offsets of the window at which files begin or end, with its own start and end."""
    ends = {window.start, window.end}
    for file in table.files():
        if (file.topic, file.partition) == window.name:
            ends |= {file.first_offset, file.last_offset + 1}
    return sorted(each for each in ends if window.start <= each <= window.end)
