"""Reads a range of offsets of a partition: its records as Arrow, and what is no record and why."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster

FETCH_MAX_BYTES = 4 * 1024 * 1024
BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Offsets [start, end) that are no committed records, and why."""

    start: int
    end: int
    reason: str
    """"control", "aborted", "compacted" or "expired" (below the log start)."""


def read_partition(
    cluster: KafkaCluster,
    wanted: PartitionRange,
    *,
    read_committed: bool = True,
    with_headers: bool = True,
    fetch_max_bytes: int = FETCH_MAX_BYTES,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The records of the range as batches of KAFKA_SCHEMA, in the order of offsets.

    A batch has at most about `batch_rows` rows. Records of aborted transactions and control
    records are left out. Raises OffsetsLost if the log starts above the range's start, and
    TopicRecreated if the topic has another topic id than the range.
    """
    raise NotImplementedError


def gaps_of_partition(
    cluster: KafkaCluster, wanted: PartitionRange, *, fetch_max_bytes: int = FETCH_MAX_BYTES
) -> Iterator[OffsetGap]:
    """All offsets of the range that are no committed records, in ascending order.

    Neighbours of one reason are joined. Raises TopicRecreated as read_partition does.
    """
    raise NotImplementedError
