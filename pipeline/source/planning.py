"""How much a trigger reads, and into which pieces ranges are split for tasks. Pure.

Both are fair over partitions and follow the stock connector: a limit is shared in proportion to
what each partition has, and large ranges are split before small ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from odradek.pipeline.kafka_types import PartitionName, PartitionRange


def limit_rows(
    begins: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], max_rows: int
) -> dict[PartitionName, int]:
    """The ends of a trigger that reads about so many offsets.

    A partition that has any gets at least one, so that small ones do not starve.
    """
    return limit_bytes(begins, ends, max_rows, {})


def limit_bytes(
    begins: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
    max_bytes: int,
    bytes_per_offset: Mapping[PartitionName, float],
) -> dict[PartitionName, int]:
    """The ends of a trigger that reads about so many bytes, by an estimate of each partition's.

    The estimate is 1 where it is missing. A partition that has records gets at least one offset.
    """
    weights = {name: bytes_per_offset.get(name, 1.0) for name in ends}
    sizes = {name: max(0, ends[name] - begins[name]) * weights[name] for name in ends}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(ends)
    limited = {}
    for name, end in ends.items():
        share = int(max_bytes * (sizes[name] / total) / weights[name])
        limited[name] = min(end, begins[name] + max(1, share)) if sizes[name] else end
    return limited


def is_worth_a_trigger(
    begins: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
    *,
    min_rows: int,
    waited_ms: float,
    max_delay_ms: int,
) -> bool:
    """Whether there are offsets enough, or they have waited long enough."""
    if waited_ms >= max_delay_ms:
        return True
    return sum(max(0, ends[name] - begins[name]) for name in ends) >= min_rows


def size_of(batch: pa.RecordBatch) -> int:
    """The bytes of the keys, values and headers of a batch of KAFKA_SCHEMA."""
    columns = {"key", "value", "headers"} & set(batch.schema.names)
    return sum(batch.column(name).nbytes for name in columns)


def split_ranges(
    ranges: Sequence[PartitionRange],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> list[PartitionRange]:
    """The pieces for tasks, in the order of the ranges; empty ranges are left out.

    None has more than `max_records_per_partition` offsets. If that gives fewer than
    `min_partitions`, large ones are split further; there may be a few more or less of them.
    """
    pieces = [each for each in ranges if each.start < each.end]
    if max_records_per_partition is not None:
        pieces = [
            piece
            for each in pieces
            for piece in split_range(
                each, math.ceil((each.end - each.start) / max_records_per_partition)
            )
        ]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    sizes = [each.end - each.start for each in pieces]
    total = sum(sizes)
    # What is small enough for one task is taken out before the rest is shared: it would be counted
    # as a part of one, and there would be too few parts of the large ones.
    small = {index for index, size in enumerate(sizes) if _parts(size, total, min_partitions) == 1}
    large_total = total - sum(sizes[index] for index in small)
    large_parts = max(1, min_partitions - len(small))
    return [
        piece
        for index, each in enumerate(pieces)
        for piece in (
            [each]
            if index in small
            else split_range(each, _parts(sizes[index], large_total, large_parts))
        )
    ]


def split_range(whole: PartitionRange, parts: int) -> list[PartitionRange]:
    """Pieces of nearly the same size that follow each other. None is empty."""
    size = whole.end - whole.start
    count = min(parts, size)
    edges = [whole.start + size * index // count for index in range(count + 1)]
    return [replace(whole, start=edges[index], end=edges[index + 1]) for index in range(count)]


def _parts(size: int, total: int, wanted: int) -> int:
    """The share of one range in the wanted number of parts, rounded half up."""
    return max(1, int(size / total * wanted + 0.5))
