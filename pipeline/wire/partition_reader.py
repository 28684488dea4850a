"""Reads a range of offsets of a partition: its records as Arrow, and what is no record and why."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from odradek.pipeline.arrow_columns import CREATE_TIME, LOG_APPEND_TIME, record_batch
from odradek.pipeline.errors import OffsetsLost
from odradek.pipeline.kafka_types import EARLIEST, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.fetching import FetchedPiece, PartitionFetcher
from odradek.pipeline.wire.record_batches import CorruptBatch, Decompressor, FetchedBatch
from odradek.pipeline.wire.record_decoder import RecordDecoder, RecordsCut

FETCH_MAX_BYTES: Final = 4 * 1024 * 1024
BATCH_ROWS: Final = 20_000

CHUNK_BYTES_MIN: Final = 1024 * 1024
"""Fewer bytes and fewer rows than a part of a batch's wait for those of the next answer."""
DECOMPRESSED_BYTES_ENOUGH: Final = 16 * 1024 * 1024
"""So many make an Arrow batch, however few records they are."""
CHUNK_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Arrow's offsets have 31 bits."""


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
    chunk = _Chunk(wanted, with_headers=with_headers)
    decompressor = Decompressor()
    fetcher = PartitionFetcher(
        cluster, wanted, read_committed=read_committed, fetch_max_bytes=fetch_max_bytes
    )
    for piece in fetcher.pieces():
        for batch in piece.batches:
            if batch.is_control or batch.base_offset in piece.aborted:
                continue
            if chunk.must_end_before(batch):
                yield from chunk.take(batch_rows)
            chunk.add(piece, batch, decompressor)
            if chunk.rows >= batch_rows or chunk.decompressed_bytes >= DECOMPRESSED_BYTES_ENOUGH:
                yield from chunk.take(batch_rows)
        if chunk.bytes >= CHUNK_BYTES_MIN or chunk.rows >= batch_rows // 4:
            yield from chunk.take(batch_rows)
    yield from chunk.take(batch_rows)


class _Chunk:
    """Records that become one Arrow batch: where they lie, and the bytes they lie in."""

    def __init__(self, wanted: PartitionRange, *, with_headers: bool) -> None:
        self._wanted = wanted
        self._with_headers = with_headers
        self._clear()

    def _clear(self) -> None:
        self._decoder = RecordDecoder(self._with_headers)
        self._parts: list[bytes] = []
        self._last: bytes | None = None
        self._timestamp_type: int | None = None
        self.bytes = 0
        """Those in which records lie, answers and what was decompressed."""
        self.decompressed_bytes = 0

    @property
    def rows(self) -> int:
        """Records so far."""
        return self._decoder.rows

    def must_end_before(self, batch: FetchedBatch) -> bool:
        """Whether this batch's records cannot be in the same Arrow batch."""
        has_other_times = self.rows > 0 and self._timestamp_type != _timestamp_type(batch)
        return has_other_times or self.bytes > CHUNK_BYTES_MAX

    def add(self, piece: FetchedPiece, batch: FetchedBatch, decompressor: Decompressor) -> None:
        """Decode the batch's records that are in the range."""
        data, at, end = decompressor.records_of(piece.data, batch)
        if data is not self._last:
            self._last = data
            self._parts.append(data)
            self.bytes += len(data)
            if data is not piece.data:
                self.decompressed_bytes += len(data)
        self._timestamp_type = _timestamp_type(batch)
        try:
            self._decoder.decode(
                data,
                at,
                end,
                self.bytes - len(data),
                batch.record_count,
                batch.base_offset,
                batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp,
                not batch.is_log_append_time,
                self._wanted.start,
                self._wanted.end,
            )
        except RecordsCut as error:
            raise CorruptBatch(
                f"Partition {self._wanted.name}, batch at offset {batch.base_offset}: {error}"
            ) from None

    def take(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """What was collected, in batches of so many rows; then the chunk is empty."""
        if self.rows:
            found = record_batch(
                self._decoder,
                self._parts[0] if len(self._parts) == 1 else b"".join(self._parts),
                topic=self._wanted.topic,
                partition=self._wanted.partition,
                timestamp_type=self._timestamp_type or CREATE_TIME,
                with_headers=self._with_headers,
            )
            self._clear()
            for start in range(0, len(found), batch_rows):
                yield found.slice(start, batch_rows)
        else:
            self._clear()


def _timestamp_type(batch: FetchedBatch) -> int:
    return LOG_APPEND_TIME if batch.is_log_append_time else CREATE_TIME


def gaps_of_partition(
    cluster: KafkaCluster, wanted: PartitionRange, *, fetch_max_bytes: int = FETCH_MAX_BYTES
) -> Iterator[OffsetGap]:
    """All offsets of the range that are no committed records, in ascending order.

    Neighbours of one reason are joined. Raises TopicRecreated as read_partition does.
    """
    last: OffsetGap | None = None
    for gap in _gaps(cluster, wanted, fetch_max_bytes):
        if last is None:
            last = gap
        elif last.end == gap.start and last.reason == gap.reason:
            last = replace(last, end=gap.end)
        else:
            yield last
            last = gap
    if last is not None:
        yield last


def _gaps(
    cluster: KafkaCluster, wanted: PartitionRange, fetch_max_bytes: int
) -> Iterator[OffsetGap]:
    """The gaps, not joined. What expires while it is read is found expired."""
    position = wanted.start
    while position < wanted.end:
        rest = replace(wanted, start=position)
        try:
            for gap, known in _gaps_of_log(cluster, rest, fetch_max_bytes):
                position = known
                if gap is not None:
                    yield gap
            return
        except OffsetsLost:
            first = cluster.list_offsets({wanted.name: EARLIEST}, read_committed=True)
            log_start = min(first[wanted.name].offset, wanted.end)
            if log_start <= position:
                raise
            yield OffsetGap(position, log_start, "expired")
            position = log_start


def _gaps_of_log(
    cluster: KafkaCluster, wanted: PartitionRange, fetch_max_bytes: int
) -> Iterator[tuple[OffsetGap | None, int]]:
    """Each gap, and the offset up to which all is known; without a gap at the end of an answer."""
    fetcher = PartitionFetcher(
        cluster, wanted, read_committed=True, fetch_max_bytes=fetch_max_bytes
    )
    decompressor = Decompressor()
    known = wanted.start
    for piece in fetcher.pieces():
        for batch in piece.batches:
            if known == wanted.end:
                break  # an answer may have batches from behind the range
            start = max(batch.base_offset, known)
            end = min(batch.next_offset, wanted.end)
            if start > known:
                hole_end = min(start, wanted.end)
                yield OffsetGap(known, hole_end, "compacted"), hole_end
            known = max(known, end)
            if start >= end:
                continue
            if batch.is_control:
                yield OffsetGap(start, end, "control"), end
            elif batch.base_offset in piece.aborted:
                yield OffsetGap(start, end, "aborted"), end
            elif not batch.is_whole:
                for hole in _holes(piece, batch, decompressor, start, end):
                    yield hole, hole.end
        yield None, known
    if known < wanted.end:
        yield OffsetGap(known, wanted.end, "compacted"), wanted.end


def _holes(
    piece: FetchedPiece, batch: FetchedBatch, decompressor: Decompressor, start: int, end: int
) -> Iterator[OffsetGap]:
    """What compaction removed from a batch."""
    data, at, records_end = decompressor.records_of(piece.data, batch)
    decoder = RecordDecoder(False)
    try:
        decoder.decode(
            data, at, records_end, 0, batch.record_count, batch.base_offset, 0, False, start, end
        )
    except RecordsCut as error:
        raise CorruptBatch(f"The batch at offset {batch.base_offset}: {error}") from None
    runs = decoder.offset_runs
    for index in range(0, len(runs), 2):
        row, offset = runs[index], runs[index + 1]
        next_row = runs[index + 2] if index + 2 < len(runs) else decoder.rows
        if offset > start:
            yield OffsetGap(start, offset, "compacted")
        start = offset + next_row - row
    if start < end:
        yield OffsetGap(start, end, "compacted")
