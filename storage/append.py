"""The write path: one turn decides what has arrived for many partitions and commits it at once.

`Turn.append` validates a partition's batches (validation.py), answers retries, rewrites offset and
leader epoch in place and puts the bytes where they lie into the active segment. `Turn.commit` makes
all of it durable and then visible. If anything fails the whole turn is undone, on disk and in
memory, and each of its results says KAFKA_STORAGE_ERROR.

Called by the worker's loop, by a store that feeds itself salvaged batches, and later by followers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

import lmdb

from odradek.protocol.checksum import crc32c
from odradek.protocol.control_records import EndTransactionMarker, read_control_batch
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    set_log_append_time,
)
from odradek.storage.environment import StorageError
from odradek.storage.layout import KEY, NUMBER, STAMP, STAMP_SIZE
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment import Segment
from odradek.storage.settings import TimestampType
from odradek.storage.validation import (
    CODECS,
    LATEST_VERSION,
    SINGLE_BATCH_VERSION_MIN,
    AppendOrigin,
    BatchRejectedError,
    Fields,
    check_batch,
    check_coordinator_batch,
    check_producer,
    recompress,
    size_error,
    split,
    unpack_header,
)

_pack_offset = Struct(">q").pack_into
_pack_int32 = Struct(">i").pack_into

_STAMP_IN_PLACE_MIN = 8 << 10


class AppendResult:
    """The answer to one append. Until the turn is committed it is a promise: should the commit
    fail, it turns into KAFKA_STORAGE_ERROR. `end_offset` (exclusive) is what must be replicated
    before an acks=all append may be acknowledged, for a retry that of the original batch."""

    __slots__ = (
        "base_offset",
        "end_offset",
        "error_code",
        "error_message",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
    )

    def __init__(
        self,
        error_code: ErrorCode,
        base_offset: int = -1,
        end_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error_message: str | None = None,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        self.error_code = error_code
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.record_errors = record_errors

    def fail(self, error_message: str) -> None:
        """What was promised did not come to be."""
        self.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        self.base_offset = self.end_offset = self.log_append_time_ms = -1
        self.error_message = error_message

    def __repr__(self) -> str:
        return (
            f"AppendResult({self.error_code!r}, base_offset={self.base_offset}, "
            f"end_offset={self.end_offset}, error_message={self.error_message!r})"
        )


class Commit(NamedTuple):
    """What a turn's commit brought: the numbers of the partitions that grew, and whether all of it
    is on disk already."""

    advanced: set[int]
    synced: bool


class Turn:
    """One write transaction. `logs` and `segment` belong to the store; `on_end` is called after the
    commit or after its failure, and says whether what grew was synced."""

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
        "has_ended",
        "needs_new_segment",
        "now_ms",
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
        self._savepoints: dict[int, tuple[PartitionLog, tuple[object, ...]]] = {}
        self.failure: str | None = None
        self.now_ms = now_ms
        self.appended_bytes = 0
        self.small_values: list[bytes] = []
        """What the segment's journal, if it has one, is to get of this turn."""
        self._journal = segment.journal
        self.needs_new_segment = False
        self.has_ended = False

    def append(
        self,
        number: int,
        arena: memoryview,
        start: int,
        length: int,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        request_version: int = LATEST_VERSION,
        has_headroom: bool = False,
    ) -> AppendResult:
        """Append what stands at [start, start + length) of `arena` to a partition: all or nothing.

        The batches' headers are rewritten in place (a read-only arena is copied). Several batches
        are taken from clients of Produce below version 3 and from our own coordinators and leaders.
        `request_version` is the Produce version, for the codecs an old client may not send. With
        `has_headroom` the 16 bytes before `start` are nobody else's until this returns: they
        are used and put back, which saves copying a large batch.
        """
        log = self._logs.get(number)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.failure is not None:
            return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.failure)
        if arena.readonly and origin is AppendOrigin.REPLICATION:
            has_headroom = False
        elif arena.readonly:
            arena = memoryview(bytearray(arena[start : start + length]))
            start = 0
            has_headroom = False
        try:
            if length >= HEADER_BYTES:
                fields: Fields = unpack_header(arena, start)
                if fields[1] + LENGTH_OVERHEAD == length and fields[3] == MAGIC:
                    # The one that counts: a single batch.
                    if origin is AppendOrigin.CLIENT:
                        result = self._append_from_client(
                            log,
                            arena,
                            start,
                            length,
                            fields,
                            leader_epoch,
                            request_version,
                            has_headroom,
                        )
                    else:
                        marker = _check_from_broker(log, arena, start, length, fields, origin)
                        result = self._put(
                            log,
                            arena,
                            start,
                            length,
                            fields,
                            leader_epoch,
                            origin,
                            marker,
                            has_headroom,
                        )
                    self._results.append(result)
                    return result
            result = self._append_several(
                log, arena, start, length, leader_epoch, origin, request_version, has_headroom
            )
            self._results.append(result)
            return result
        except BatchRejectedError as refused:
            return AppendResult(
                refused.code,
                error_message=refused.message,
                record_errors=refused.record_errors,
            )
        except ProtocolError as error:
            return AppendResult(ErrorCode.CORRUPT_MESSAGE, error_message=str(error))
        except lmdb.Error as error:
            return self._fail(error)

    def commit(self) -> Commit:
        """Make the turn's appends durable, as the store's durability says, and then visible.

        Raises StorageError if that failed or an append had failed already: nothing of the turn has
        happened then, and all its results say KAFKA_STORAGE_ERROR.
        """
        transaction = self._transaction
        if self.failure is None and transaction is not None:
            try:
                self._write_checkpoints(transaction)
                if self.small_values and self._journal is not None:
                    self._journal.reserve(self.small_values)
                transaction.commit()
            except (lmdb.Error, StorageError) as error:
                self._fail(error)
        if self.failure is not None:
            self.abort(self.failure)
            self._on_end(self)
            raise StorageError(self.failure)
        self._transaction = None
        self.has_ended = True
        grown = self._savepoints
        if not grown:
            return Commit(set(), False)
        try:
            synced = self._on_end(self)
        except StorageError as error:
            self.abort(str(error))
            raise
        return Commit(set(grown), synced)

    def abort(self, reason: str = "the turn was given up") -> None:
        """Undo the turn; every result of it turns into KAFKA_STORAGE_ERROR."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        for log, savepoint in self._savepoints.values():
            log.roll_back(savepoint)
        self._savepoints = {}
        for result in self._results:
            result.fail(reason)
        self.failure = reason
        self.has_ended = True

    def grown_logs(self) -> Iterator[PartitionLog]:
        """The partitions that this turn appended to."""
        for log, _ in self._savepoints.values():
            yield log

    def _append_from_client(
        self,
        log: PartitionLog,
        arena: memoryview,
        start: int,
        size: int,
        fields: Fields,
        leader_epoch: int,
        request_version: int,
        has_headroom: bool,
    ) -> AppendResult:
        settings = log.settings
        batch = arena[start : start + size]
        check_batch(batch, fields, settings, request_version, self.now_ms)
        is_append_time = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        if fields[9] >= 0:
            duplicate = check_producer(log, fields, request_version)
            if duplicate is not None:
                return AppendResult(
                    ErrorCode.NONE,
                    duplicate.base_offset,
                    duplicate.last_offset + 1,
                    duplicate.timestamp if is_append_time else -1,
                    log.log_start_offset,
                )
        if settings.compression_type != "producer":
            codec = CODECS[settings.compression_type]
            if fields[5] & CODEC_MASK != codec:
                arena, fields = recompress(batch, fields, codec, settings)
                start, size, has_headroom = 0, len(arena), False
                if size > settings.max_message_bytes:
                    raise size_error(size, settings)
        if is_append_time:
            set_log_append_time(arena, start, self.now_ms)
            fields = unpack_header(arena, start)
        return self._put(
            log,
            arena,
            start,
            size,
            fields,
            leader_epoch,
            AppendOrigin.CLIENT,
            None,
            has_headroom,
            self.now_ms if is_append_time else -1,
        )

    def _append_several(
        self,
        log: PartitionLog,
        arena: memoryview,
        start: int,
        length: int,
        leader_epoch: int,
        origin: AppendOrigin,
        request_version: int,
        has_headroom: bool,
    ) -> AppendResult:
        """Everything that is not one whole batch: several, none, or something broken. All are
        checked before the first is put."""
        batches = split(arena, start, length)
        is_client = origin is AppendOrigin.CLIENT
        if is_client and request_version >= SINGLE_BATCH_VERSION_MIN and len(batches) != 1:
            raise BatchRejectedError(
                ErrorCode.INVALID_RECORD,
                f"a request must carry exactly one batch for a partition, not {len(batches)}",
            )
        markers: list[EndTransactionMarker | None] = []
        end_offset = -1
        for at, size, fields in batches:
            if is_client:
                batch = arena[at : at + size]
                check_batch(batch, fields, log.settings, request_version, self.now_ms)
                if fields[9] >= 0:
                    raise BatchRejectedError(
                        ErrorCode.INVALID_RECORD, "a producer's batches must come one by one"
                    )
            else:
                markers.append(_check_from_broker(log, arena, at, size, fields, origin))
            if origin is AppendOrigin.REPLICATION:
                if fields[0] < end_offset or fields[6] < 0:
                    raise BatchRejectedError(
                        ErrorCode.CORRUPT_MESSAGE, "the leader's batches overlap"
                    )
                end_offset = fields[0] + fields[6] + 1
        results = []
        for index, (at, size, fields) in enumerate(batches):
            if is_client:
                result = self._append_from_client(
                    log, arena, at, size, fields, leader_epoch, request_version, False
                )
            else:
                result = self._put(
                    log,
                    arena,
                    at,
                    size,
                    fields,
                    leader_epoch,
                    origin,
                    markers[index],
                    # Before the second one lies the first, which is put already.
                    has_headroom and (index == 0 or origin is AppendOrigin.REPLICATION),
                )
            results.append(result)
        results[0].end_offset = results[-1].end_offset
        return results[0]

    def _put(
        self,
        log: PartitionLog,
        arena: memoryview,
        start: int,
        size: int,
        fields: Fields,
        leader_epoch: int,
        origin: AppendOrigin,
        marker: EndTransactionMarker | None,
        has_headroom: bool = False,
        log_append_time_ms: int = -1,
    ) -> AppendResult:
        """Put one batch that has passed all checks at the end of the log."""
        transaction = self._transaction
        if transaction is None:
            transaction = self._transaction = self._segment.begin_write()
            self._turn = transaction.id() & 0xFFFFFFFF
        number = log.number
        if number not in self._savepoints:
            self._savepoints[number] = (log, log.savepoint())
        log_end_before = log.log_end_offset
        if origin is AppendOrigin.REPLICATION:
            base_offset, leader_epoch = fields[0], fields[2]
        else:
            base_offset = log_end_before
            _pack_offset(arena, start, base_offset)
            _pack_int32(arena, start + LEADER_EPOCH_AT, leader_epoch)
        key = KEY.pack(number, base_offset)
        if has_headroom and size >= _STAMP_IN_PLACE_MIN and start >= STAMP_SIZE:
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
        assert is_new, f"partition {number} already has a batch at {base_offset}"
        self.appended_bytes += size

        rows = log.advance(
            base_offset,
            size,
            leader_epoch,
            fields[5],
            fields[6],
            fields[8],
            fields[9],
            fields[10],
            fields[11],
            marker,
            self.now_ms,
        )
        if rows:
            database = self._segment.environment.database
            for row in rows:
                transaction.put(row.key, row.value, db=database(row.database))
        return AppendResult(
            ErrorCode.NONE,
            base_offset,
            log.log_end_offset,
            log_append_time_ms,
            log.log_start_offset,
        )

    def _fail(self, error: lmdb.Error | StorageError) -> AppendResult:
        """The transaction is lost: what came before in the turn goes down with it at `commit`."""
        # A full map, and an environment that could not write its meta page and gave itself up, are
        # both left behind by going on in another segment.
        self.needs_new_segment = isinstance(error, lmdb.MapFullError | lmdb.PanicError)
        self.failure = f"the store cannot be written: {error}"
        return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.failure)

    def _write_checkpoints(self, transaction: "lmdb.Transaction[bytes]") -> None:
        segment = self._segment
        for log, _ in self._savepoints.values():
            if log.uncheckpointed_batches >= self._checkpoint_batches:
                write_checkpoint(transaction, segment, log)


def write_checkpoint(
    transaction: "lmdb.Transaction[bytes]", segment: Segment, log: PartitionLog
) -> None:
    """Write a partition's state beside its batches: opening the store reads on from there."""
    extent = log.active_extent(segment.segment_id)
    if extent is not None:
        transaction.put(NUMBER.pack(log.number), extent.encode(), db=segment.extents)
    for producer_id, row in log.take_checkpoint():
        transaction.put(KEY.pack(log.number, producer_id), row, db=segment.producers)


def write_checkpoints(segment: Segment, logs: Iterable[PartitionLog]) -> None:
    """Write the state of all these beside their batches, in a transaction of its own."""
    transaction: lmdb.Transaction[bytes] | None = None
    try:
        transaction = segment.begin_write()
        for log in logs:
            if log.uncheckpointed_batches or log.dirty_producers:
                write_checkpoint(transaction, segment, log)
        transaction.commit()
    except lmdb.Error:
        # They only save the next opening some reading.
        if transaction is not None:
            transaction.abort()


def _check_from_broker(
    log: PartitionLog,
    arena: memoryview,
    start: int,
    size: int,
    fields: Fields,
    origin: AppendOrigin,
) -> EndTransactionMarker | None:
    """Checks for our own batches and for those of a leader; the marker if it is one."""
    batch = arena[start : start + size]
    if origin is AppendOrigin.COORDINATOR:
        return check_coordinator_batch(log, batch, fields)
    if fields[0] < log.log_end_offset:
        raise BatchRejectedError(
            ErrorCode.OFFSET_OUT_OF_RANGE, "the batch lies before the log's end"
        )
    if crc32c(batch[ATTRIBUTES_AT:]) != fields[4]:
        raise BatchRejectedError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not fit the batch")
    if fields[5] & CONTROL:
        return read_control_batch(batch, BatchHeader._make(fields))
    return None
