"""Log start offsets: DeleteRecords and retention move them forward. They never move back.

A call changes the catalog once, synced, for all its logs. Then readers see it. Replication asks for
the logs that have moved (`take_moved`). Followers take over their leader's log start and apply no
retention of their own, so that no replica's log starts after its leader's.
"""

import logging
from collections.abc import Callable, Mapping

import msgspec

from odradek.protocol.errors import ErrorCode
from odradek.storage.catalog import Catalog
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment_roll import current_row
from odradek.storage.status import LOG_START_OFFSET, StatusTable

logger = logging.getLogger(__name__)

HIGH_WATERMARK = -1
"""An offset of DeleteRecords that stands for the high watermark."""


class LogStarts:
    """The log start offsets of a store. `before_move(log, offset)` is called before each move."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Mapping[int, PartitionLog],
        status: StatusTable,
        before_move: Callable[[PartitionLog, int], None],
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._status = status
        self._before_move = before_move
        self._moved: set[int] = set()

    def delete_records(self, number: int, offset: int) -> tuple[ErrorCode, int]:
        """Move a log start to `offset` (-1: the high watermark). The change is on disk when this
        returns. Returns the error code and the new log start offset. Raises StorageError."""
        log = self._logs.get(number)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        if log.settings.cleanup_compact and not log.settings.cleanup_delete:
            return ErrorCode.POLICY_VIOLATION, -1
        if offset == HIGH_WATERMARK:
            offset = log.high_watermark
        if offset < 0 or offset > log.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, -1
        if offset > log.log_start_offset:
            self.move({number: offset})
            if log.archive is not None and offset > log.archive.archived_offset:
                logger.warning(
                    "DeleteRecords has deleted records that the group of the archive has not"
                    " committed",
                    extra={
                        "topic": log.topic_name,
                        "partition": log.partition,
                        "group": log.archive.group,
                        "offset": max(log.archive.archived_offset, 0),
                        "end_offset": offset,
                    },
                )
        return ErrorCode.NONE, log.log_start_offset

    def move(self, starts: Mapping[int, int]) -> None:
        """Move log starts forward in one synced change, then make them visible. Offsets at or below
        the current ones are ignored. Raises StorageError."""
        moves = {
            number: offset
            for number, offset in starts.items()
            if number in self._logs and offset > self._logs[number].log_start_offset
        }
        if not moves:
            return
        with self._catalog.change() as change:
            for number, offset in moves.items():
                row = current_row(self._catalog, self._logs[number])
                change.put_partition(msgspec.structs.replace(row, log_start_offset=offset))
        for number, offset in moves.items():
            log = self._logs[number]
            self._before_move(log, offset)
            log.log_start_offset = offset
            log.epochs.truncate_start(offset)
            self._status.set(number, LOG_START_OFFSET, offset)
            if log.is_replicated:
                self._moved.add(number)
        self._status.publish()

    def take_moved(self) -> set[int]:
        """The replicated logs whose start has moved since the last call."""
        moved = self._moved
        if moved:
            self._moved = set()
        return moved
