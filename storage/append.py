"""The write path: one turn appends to many partitions and commits all of it at once.

`Turn.append` validates a partition's batches (client_batches.py, validation.py), answers retries,
rewrites base offset and leader epoch in place and writes the bytes into the active segment.
`Turn.commit` makes all appends durable and then visible. If anything fails, the whole turn is
undone on disk and in memory, and all its results become KAFKA_STORAGE_ERROR.

Called by the worker's loop for clients, coordinators and leaders, and by recovery for salvaged
batches.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from struct import Struct
from typing import Final

import lmdb
import msgspec

from odradek.protocol.checksum import crc32c
from odradek.protocol.control_records import EndTransactionMarker
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.record_walker import IS_COMPILED, is_plain_batch
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    set_log_append_time,
    unpack_header,
)
from odradek.storage.client_batches import prepare
from odradek.storage.environment import StorageError
from odradek.storage.layout import KEY, NUMBER, STAMP, STAMP_SIZE
from odradek.storage.log_append import LogAppend
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.partition_log import PartitionLog, Savepoint
from odradek.storage.producer_state import BatchMetadata
from odradek.storage.reserve import DISK_FULL, is_disk_full_error
from odradek.storage.segment import Segment
from odradek.storage.settings import TimestampType
from odradek.storage.validation import (
    AppendOrigin,
    BatchRejectedError,
    check_coordinator_batch,
    check_producer,
    check_replicated_batch,
    split,
)

_pack_offset = Struct(">q").pack_into
_pack_int32 = Struct(">i").pack_into
_note_read = MAPPED_PAGES.note

_STAMP_IN_PLACE_MIN = 8 << 10
_PLAIN_BYTES_MAX: Final = 256 << 10 if IS_COMPILED else 16 << 10
"""A batch of so many bytes is checked at once."""
_unpack_prefix = Struct(">qi").unpack_from
"""Base offset and batch length."""
_pack_stamped_prefix = Struct(">IIQqii").pack
"""The stamp, then base offset, batch length and leader epoch of the batch."""
_PREFIX_BYTES: Final = 16


class AppendResult(msgspec.Struct, gc=False):
    """The result of one append. It is final when the turn is committed: if the commit fails, it
    becomes KAFKA_STORAGE_ERROR. An append with acks=all may be acknowledged when the followers have
    everything below `end_offset`, which for a retry is that of the original batch."""

    error_code: ErrorCode
    base_offset: int = -1
    end_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, rejected: BatchRejectedError) -> "AppendResult":
        """The result of an append that was refused."""
        return cls(
            rejected.code, error_message=rejected.message, record_errors=rejected.record_errors
        )

    def fail(self, error_message: str) -> None:
        """The commit failed: replace the result by KAFKA_STORAGE_ERROR."""
        self.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        self.base_offset = self.end_offset = self.log_append_time_ms = -1
        self.error_message = error_message


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The result of a turn's commit: the numbers of the partitions that were appended to, and
    whether everything is synced to disk already."""

    advanced: Set[int]
    synced: bool


_NOTHING: Final = frozenset[int]()


class Turn:
    """One write transaction of a store, for any number of appends. `logs` and `segment` belong to
    the store. `on_end` is called after the commit or its failure, and returns whether the turn is
    synced to disk."""

    __slots__ = (
        "_checkpoint_batches",
        "_journal",
        "_logs",
        "_on_end",
        "_results",
        "_savepoints",
        "_segment",
        "_transaction",
        "_turn",
        "appended_bytes",
        "failure",
        "grown",
        "has_ended",
        "is_disk_full",
        "needs_new_segment",
        "now_ms",
        "small_bytes",
        "small_values",
    )

    def __init__(
        self,
        logs: Mapping[int, PartitionLog],
        segment: Segment,
        on_end: Callable[["Turn"], bool],
        now_ms: int,
        checkpoint_batches: int,
    ) -> None:
        self._logs = logs
        self._segment = segment
        self._on_end = on_end
        self._checkpoint_batches = checkpoint_batches
        self._transaction: lmdb.Transaction[bytes] | None = None
        self._turn = 0
        self._results: list[AppendResult] = []
        self.grown: dict[int, PartitionLog] = {}
        """The partitions that this turn appended to, by number."""
        self._savepoints: list[Savepoint] = []
        """Of `grown`, in its order."""
        self.failure: str | None = None
        self.now_ms = now_ms
        self.appended_bytes = 0
        self.small_values: list[bytes] = []
        """The small values of this turn, for the segment's journal."""
        self.small_bytes = 0
        self._journal = segment.journal
        self.needs_new_segment = self.is_disk_full = False
        self.has_ended = False

    def append(self, number: int, append: LogAppend) -> AppendResult:
        """Append to the partition `number`: all batches or none."""
        log = self._logs.get(number)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.failure is not None:
            return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.failure)
        arena, start, length = append.arena, append.start, append.length
        if arena.readonly:
            append.has_headroom = False
            if append.origin is not AppendOrigin.REPLICATION:
                append.replace(memoryview(bytearray(arena[start : start + length])))
                arena, start = append.arena, 0
        try:
            if append.origin is AppendOrigin.CLIENT:
                is_single = append.is_prepared and append.parts is None
                put = self._put_from_client if is_single else self._append_from_client
                result = put(log, append)
                self._results.append(result)
                return result
            header = unpack_header(arena, start) if length >= HEADER_BYTES else None
            if (
                header is not None
                and header.batch_length + LENGTH_OVERHEAD == length
                and header.magic == MAGIC
            ):
                # The common case: a single batch.
                marker = _check_from_broker(log, append, header)
                result = self._put(log, append, header, marker)
            else:
                result = self._append_several(log, append)
        except BatchRejectedError as rejected:
            return AppendResult.of(rejected)
        except ProtocolError as error:
            return AppendResult(ErrorCode.CORRUPT_MESSAGE, error_message=str(error))
        except lmdb.Error as error:
            return self._fail(error)
        self._results.append(result)
        return result

    def append_plain(self, number: int, append: LogAppend) -> AppendResult | None:
        """Append a client's batch that is not prepared, if it is of the most frequent kind
        (record_walker.is_plain_batch) and may be appended as it is. None if it is not; then nothing
        has happened, and the other way is for it: `prepare`, which may take long, and `append`."""
        log = self._logs.get(number)
        if log is None or self.failure is not None:
            return None
        arena, start, size = append.arena, append.start, append.length
        settings = log.settings
        if (
            not HEADER_BYTES < size <= _PLAIN_BYTES_MAX
            or size > settings.max_message_bytes
            or settings.compression_type != "producer"
            or settings.message_timestamp_type is not TimestampType.CREATE_TIME
        ):
            return None
        base_offset, batch_length = _unpack_prefix(arena, start)
        if base_offset or batch_length != size - LENGTH_OVERHEAD:
            return None
        end = start + size
        crc = crc32c(arena[start + ATTRIBUTES_AT : end])
        base_offset, leader_epoch = log.log_end_offset, append.leader_epoch
        try:
            transaction = self._transaction or self._begin()
            head = _pack_stamped_prefix(
                number, self._turn, base_offset, base_offset, batch_length, leader_epoch
            )
            value = b"".join((head, arena[start + _PREFIX_BYTES : end]))
            header = unpack_header(value, STAMP_SIZE)
            now_ms = self.now_ms
            if header.crc != crc or not is_plain_batch(
                value,
                STAMP_SIZE,
                settings.cleanup_compact,
                now_ms - settings.message_timestamp_before_max_ms,
                now_ms + settings.message_timestamp_after_max_ms,
            ):
                return None
            if header.producer_id >= 0:
                duplicate = check_producer(log, header, append.request_version)
                if duplicate is not None:
                    return _result_of_duplicate(log, duplicate)
            if number not in self.grown:
                self.grown[number] = log
                self._savepoints.append(log.savepoint())
            is_new = transaction.put(KEY.pack(number, base_offset), value, True, False)
            assert is_new, f"partition {number} already has a batch at {base_offset}"
            if size < self._segment.large_value_size and self._journal is not None:
                self.small_values.append(value)
                self.small_bytes += len(value)
            log.client_bytes += size
            log.client_records += header.last_offset_delta + 1
            result = self._advance(log, append, header, base_offset, leader_epoch, None)
        except BatchRejectedError as rejected:
            return AppendResult.of(rejected)
        except lmdb.Error as error:
            return self._fail(error)
        self._results.append(result)
        return result

    def commit(self) -> Commit:
        """Make the turn's appends durable, as the store's durability requires, and then visible.

        Raises StorageError if the commit or an append before it failed. The turn is undone then,
        and all its results are KAFKA_STORAGE_ERROR.
        """
        transaction = self._transaction
        if self.failure is None and transaction is not None:
            _note_read(self.appended_bytes)
            try:
                for log in self.grown.values():
                    if log.uncheckpointed_batches >= self._checkpoint_batches:
                        write_checkpoint(transaction, self._segment, log)
                if self.small_values and self._journal is not None:
                    self._journal.reserve(self.small_bytes)
                transaction.commit()
            except (lmdb.Error, StorageError) as error:
                self._fail(error)
        if self.failure is not None:
            self.abort(self.failure)
            self._on_end(self)
            raise StorageError(self.failure)
        self._transaction = None
        self.has_ended = True
        if not self.grown:
            return Commit(_NOTHING, False)
        try:
            synced = self._on_end(self)
        except StorageError as error:
            self.abort(str(error))
            raise
        return Commit(self.grown.keys(), synced)

    def abort(self, reason: str = "the turn was aborted") -> None:
        """Undo the turn. All its results become KAFKA_STORAGE_ERROR."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        for log, savepoint in zip(self.grown.values(), self._savepoints, strict=True):
            log.roll_back(savepoint)
        self.grown = {}
        self._savepoints = []
        for result in self._results:
            result.fail(reason)
        self.failure = reason
        self.has_ended = True

    def _append_from_client(self, log: PartitionLog, append: LogAppend) -> AppendResult:
        if not append.is_prepared:
            for _ in prepare(append, log.settings, self.now_ms):
                pass
        if append.parts is None:
            return self._put_from_client(log, append)
        results = [self._put_from_client(log, part) for part in append.parts]
        results[0].end_offset = results[-1].end_offset
        return results[0]

    def _put_from_client(self, log: PartitionLog, append: LogAppend) -> AppendResult:
        """Put a client's batch, which is prepared, if its sequence is right."""
        header = unpack_header(append.arena, append.start)
        is_append_time = log.settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        if header.producer_id >= 0:
            duplicate = check_producer(log, header, append.request_version)
            if duplicate is not None:
                return _result_of_duplicate(log, duplicate)
        if is_append_time:
            append.log_append_time_ms = self.now_ms
            set_log_append_time(append.arena, append.start, self.now_ms)
            header = unpack_header(append.arena, append.start)
        log.client_bytes += append.length
        log.client_records += header.last_offset_delta + 1
        return self._put(log, append, header, None)

    def _append_several(self, log: PartitionLog, append: LogAppend) -> AppendResult:
        """Any number of batches but one, or bytes that are no whole batch, of a broker. All batches
        are checked before the first is put."""
        is_replication = append.origin is AppendOrigin.REPLICATION
        parts: list[tuple[LogAppend, BatchHeader, EndTransactionMarker | None]] = []
        end_offset = -1
        for at, size, header in split(append.arena, append.start, append.length):
            # Before the second batch lies the first, which has been put already.
            has_headroom = append.has_headroom and (not parts or is_replication)
            part = msgspec.structs.replace(append, start=at, length=size, has_headroom=has_headroom)
            marker = _check_from_broker(log, part, header)
            if is_replication:
                if header.base_offset < end_offset or header.last_offset_delta < 0:
                    raise BatchRejectedError(
                        "The leader's batches overlap.", ErrorCode.CORRUPT_MESSAGE
                    )
                end_offset = header.next_offset
            parts.append((part, header, marker))
        results = [self._put(log, part, header, marker) for part, header, marker in parts]
        results[0].end_offset = results[-1].end_offset
        return results[0]

    def _put(
        self,
        log: PartitionLog,
        append: LogAppend,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
    ) -> AppendResult:
        """Put one batch that has passed all checks at the end of the log."""
        transaction = self._transaction or self._begin()
        number = log.number
        if number not in self.grown:
            self.grown[number] = log
            self._savepoints.append(log.savepoint())
        arena, start, size = append.arena, append.start, append.length
        log_end_before = log.log_end_offset
        if append.origin is AppendOrigin.REPLICATION:
            base_offset, leader_epoch = header.base_offset, header.partition_leader_epoch
        else:
            base_offset, leader_epoch = log_end_before, append.leader_epoch
            _pack_offset(arena, start, base_offset)
            _pack_int32(arena, start + LEADER_EPOCH_AT, leader_epoch)
        key = KEY.pack(number, base_offset)
        if append.has_headroom and size >= _STAMP_IN_PLACE_MIN and start >= STAMP_SIZE:
            stamp_at = start - STAMP_SIZE
            before = bytes(arena[stamp_at:start])
            STAMP.pack_into(arena, stamp_at, number, self._turn, log_end_before)
            try:
                is_new = transaction.put(key, arena[stamp_at : start + size], True, False)
            finally:
                arena[stamp_at:start] = before
        else:
            stamp = STAMP.pack(number, self._turn, log_end_before)
            value = b"".join((stamp, arena[start : start + size]))
            is_new = transaction.put(key, value, True, False)
            if size < self._segment.large_value_size and self._journal is not None:
                self.small_values.append(value)
                self.small_bytes += len(value)
        assert is_new, f"partition {number} already has a batch at {base_offset}"
        return self._advance(log, append, header, base_offset, leader_epoch, marker)

    def _begin(self) -> "lmdb.Transaction[bytes]":
        transaction = self._transaction = self._segment.begin_write()
        self._turn = transaction.id() & 0xFFFFFFFF
        return transaction

    def _advance(
        self,
        log: PartitionLog,
        append: LogAppend,
        header: BatchHeader,
        base_offset: int,
        leader_epoch: int,
        marker: EndTransactionMarker | None,
    ) -> AppendResult:
        """The batch is in the segment: update the log's state and its indexes."""
        size = append.length
        self.appended_bytes += size
        rows = log.advance(
            header,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            size=size,
            append_ms=self.now_ms,
            marker=marker,
        )
        if rows:
            database = self._segment.environment.database
            transaction = self._transaction or self._begin()
            for row in rows:
                transaction.put(row.key, row.value, db=database(row.database))
        return AppendResult(
            ErrorCode.NONE,
            base_offset,
            log.log_end_offset,
            append.log_append_time_ms,
            log.log_start_offset,
        )

    def _fail(self, error: lmdb.Error | StorageError) -> AppendResult:
        """The LMDB transaction is broken. `commit` undoes the appends before it, too."""
        # A full map, and an environment that LMDB disabled after a failed write of its meta page,
        # are both left behind by rolling to a new segment.
        self.needs_new_segment = isinstance(error, lmdb.MapFullError | lmdb.PanicError)
        self.is_disk_full = is_disk_full_error(error, self._segment.environment.path)
        self.failure = DISK_FULL if self.is_disk_full else f"the store cannot be written: {error}"
        return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.failure)


def _result_of_duplicate(log: PartitionLog, duplicate: BatchMetadata) -> AppendResult:
    """The result of a retry: that of the batch that was appended."""
    settings = log.settings
    is_append_time = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return AppendResult(
        ErrorCode.NONE,
        duplicate.base_offset,
        duplicate.last_offset + 1,
        duplicate.timestamp if is_append_time else -1,
        log.log_start_offset,
    )


def write_checkpoint(
    transaction: "lmdb.Transaction[bytes]", segment: Segment, log: PartitionLog
) -> None:
    """Write a partition's state into the segment. Opening the store reads batches from there on."""
    extent = log.active_extent(segment.segment_id)
    if extent is not None:
        transaction.put(NUMBER.pack(log.number), extent.encode(), db=segment.extents)
    for producer_id, row in log.take_checkpoint():
        transaction.put(KEY.pack(log.number, producer_id), row, db=segment.producers)


def write_checkpoints(segment: Segment, logs: Iterable[PartitionLog]) -> None:
    """Write the state of these partitions into the segment, in one transaction."""
    transaction: lmdb.Transaction[bytes] | None = None
    try:
        transaction = segment.begin_write()
        for log in logs:
            if log.uncheckpointed_batches or log.dirty_producers:
                write_checkpoint(transaction, segment, log)
        transaction.commit()
    except lmdb.Error:
        # Checkpoints only make the next opening faster.
        if transaction is not None:
            transaction.abort()


def _check_from_broker(
    log: PartitionLog, append: LogAppend, header: BatchHeader
) -> EndTransactionMarker | None:
    """Check a batch of a coordinator or of a leader. Returns the marker if it is one."""
    batch = append.arena[append.start : append.start + append.length]
    if append.origin is AppendOrigin.COORDINATOR:
        return check_coordinator_batch(log, batch, header)
    return check_replicated_batch(log, batch, header)
