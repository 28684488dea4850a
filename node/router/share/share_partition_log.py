"""The log of a share partition as its group may read it: start, next records, end.

Created for each use from the store's reader and the group's settings, which may change. It keeps no
state and acquires nothing. Used by partitions.py.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acquisition import LogBatch, ReadPosition
from odradek.node.router.cooperative_iteration import run_work
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.records import BatchSpan, spans_of
from odradek.storage.reader import ReadResult, StoreReader

READ_BYTES_MIN: Final = 65_536
"""Read at least this much."""
_READ_AHEAD_FACTOR: Final = 1.25
"""Read this much more than records of average size take, so that one read is enough."""
_BATCHES_MAX: Final = 1_000
"""Of a read. Each of them is looked at again, and acquired from: ten milliseconds together."""


class SharePartitionRead(NamedTuple):
    """Records that were read for a member, before they are acquired."""

    offset: int
    result: ReadResult
    spans: list[tuple[int, BatchSpan]]
    """The batches, each with the index of its buffer."""
    batches: list[LogBatch]

    @property
    def record_bytes(self) -> float | None:
        """The average size of the records; None if there are none."""
        result = self.result
        if not result.buffers:
            return None
        return result.byte_count / max(1, result.next_offset - result.first_offset)


class SharePartitionLog(NamedTuple):
    """See the module's docstring. `number` is the partition's in the reader's store."""

    reader: StoreReader
    number: int
    group_settings: ShareGroupSettings

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return self.reader.status.log_start_offset(self.number)

    @property
    def end_offset(self) -> int:
        """The end of what the group may read, exclusive."""
        status = self.reader.status
        end = status.high_watermark(self.number)
        if self.group_settings.is_read_committed:
            return min(end, status.last_stable_offset(self.number))
        return end

    async def initial_offset(self, leader_epoch: int, now_ms: int) -> int:
        """The start offset of a group that has read nothing here; `now_ms` is the time of day.

        ApiError(OFFSET_NOT_AVAILABLE) while a new leader does not know it.
        """
        if self.group_settings.begins_earliest:
            return self.start_offset
        reader, number = self.reader, self.number
        if self.group_settings.begins_before_ms is not None:
            since_ms = now_ms - self.group_settings.begins_before_ms
            record = await run_work(reader.offset_for_timestamp(number, since_ms))
            if record is not None:
                return record.offset
        end = reader.status.high_watermark(number)
        is_end = end == reader.status.log_end_offset(number)
        if not is_end and end < reader.epoch_start(number, leader_epoch):
            # The high watermark of a new leader may be behind (KIP-207): a group that starts there
            # would get old records.
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return end

    def read(
        self, position: ReadPosition, wanted_bytes: float, bytes_max: int, *, min_one_batch: bool
    ) -> SharePartitionRead | None:
        """About `wanted_bytes` of records at a position; None if there are none.

        `bytes_max` is a limit, except for one batch with `min_one_batch`.
        """
        reader, number, limit = self.reader, self.number, self.end_offset
        if position.end_offset is not None:
            limit = min(limit, position.end_offset)
        if position.offset >= limit:
            return None
        wanted = max(READ_BYTES_MIN, int(_READ_AHEAD_FACTOR * wanted_bytes))
        result = reader.read(
            number,
            position.offset,
            max_bytes=min(bytes_max, wanted),
            end_offset=limit,
            min_one_batch=min_one_batch,
            batches_max=_BATCHES_MAX,
        )
        if not result.buffers:
            if not min_one_batch or not self._is_hole(position.offset, limit):
                return None
            hole = [LogBatch(position.offset, limit, is_void=True)]
            return SharePartitionRead(position.offset, result, [], hole)
        spans = [
            (index, span)
            for index, buffer in enumerate(result.buffers)
            for span in spans_of(buffer)
        ]
        aborted = self._aborted(position.offset, result.next_offset)
        batches = [
            LogBatch(span.start, span.end, span.is_control or _is_aborted(span, aborted))
            for _, span in spans
        ]
        return SharePartitionRead(position.offset, result, spans, batches)

    def _is_hole(self, start: int, end: int) -> bool:
        """Whether compaction has removed all of [start, end): a later batch follows. Records that
        were only not found must not be archived."""
        log_end = self.reader.status.log_end_offset(self.number)
        following = self.reader.read(self.number, start, max_bytes=0, end_offset=log_end)
        return bool(following.buffers) and following.first_offset >= end

    def _aborted(self, start: int, end: int) -> dict[int, list[tuple[int, int]]]:
        """By producer id, the last and first offsets of aborted transactions in [start, end), in
        their order, for groups that read committed records only."""
        aborted: dict[int, list[tuple[int, int]]] = {}
        if self.group_settings.is_read_committed:
            for each in self.reader.aborted_transactions(self.number, start, end):
                aborted.setdefault(each.producer_id, []).append(
                    (each.last_offset, each.first_offset)
                )
        return aborted


def _is_aborted(span: BatchSpan, aborted: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
    if not aborted or not span.is_transactional:
        return False
    of_producer = aborted.get(span.producer_id, ())
    # A producer has one transaction at a time: the first one that ends here or later.
    at = bisect_left(of_producer, (span.start,))
    return at < len(of_producer) and of_producer[at][1] <= span.start
