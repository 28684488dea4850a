"""Runs one shard: applies its outcomes, batches its records, defers replies until the commit.

A command is handled in this order: the shard decides; its timers are set; its records are encoded,
replayed and put into the open batch; its replies are deferred behind the newest record. At the end
of the host's turn `take_batches` returns what the turn has written, in as few batches as possible,
and the host appends them to the partition in order, several in flight. Batches that are not urgent
(`has_urgent_batches`) may leave with a later turn's. When the high watermark has passed a batch
(`on_high_watermark_updated`) its replies and effects leave.

| State | Meaning | Commands are answered | Goes to |
|---|---|---|---|
| LOADING | the log is replayed | COORDINATOR_LOAD_IN_PROGRESS | ACTIVE |
| ACTIVE | serving | by the shard | DRAINING, FAILED |
| DRAINING | a batch failed, others are in flight | COORDINATOR_NOT_AVAILABLE | ACTIVE, FAILED |
| FAILED | the end of the log is unknown: load again | COORDINATOR_NOT_AVAILABLE | |
| CLOSED | moved or replaced; from every state | NOT_COORDINATOR | |

A batch that was certainly not written is reverted: the tables return to the committed position,
every reply behind it becomes an error, and `on_append_failed` gets the lost records. Later batches
in flight fail as well: each has the log end offset that it expects (`expected_offset`), so that
none is written without those before it. If it is unknown whether a batch was written, the shard is
loaded again from the log.

A log may end in uncommitted records: of a former leader, or of this broker before the shard was
loaded again. They are replayed as if they had just been written: no reply that depends on them
leaves before the high watermark has passed them, and committed state is read without them.

Records that belong to a producer's transaction (`TransactionalRecord`) go into batches of that
producer alone, and a `TransactionMarker` into one of its own, as storage and consumers know them;
here they are replayed like any other record.

Invariants: a reply leaves only when everything written before it is committed; every request gets
exactly one answer, at the latest when the shard is unloaded; positions and log offsets grow in
step, so that a foreign record in the partition is noticed at the next append. Pure: the shell in
node/router/shards/coordinator_service.py owns clock, log and clients.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from itertools import takewhile
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from odradek.coordinator.loader import CoordinatorLoader, LoadableShard, LogEntry
from odradek.coordinator.outcome import (
    NO_REQUEST,
    Answer,
    Command,
    Effect,
    ErrorReply,
    Outcome,
    ShardReply,
    TimerKey,
    TransactionalRecord,
    TransactionMarker,
)
from odradek.coordinator.timers import Timers
from odradek.protocol.errors import ErrorCode, ProtocolError

R = TypeVar("R")

BATCH_BYTES_MAX: Final = 1_000_000
"""A little less than Kafka's default of max.message.bytes, also for coordinator topics."""

_RECORD_OVERHEAD_BYTES: Final = 32
"""An upper bound of the varints of a record."""

NOT_WRITTEN_ERRORS: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Errors of an append after which the batch is certainly not in the log."""

_ERROR_OF_FAILED_APPEND: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


_FIND_COORDINATOR_ERRORS: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


def error_of_failed_append(error_code: ErrorCode) -> ErrorCode:
    """The error of a request whose records could not be written.

    Clients find the coordinator again and retry. MESSAGE_TOO_LARGE stays: each API has its own code
    for it.
    """
    return _ERROR_OF_FAILED_APPEND.get(error_code, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class ShardState(Enum):
    """See the table above."""

    LOADING = auto()
    ACTIVE = auto()
    DRAINING = auto()
    FAILED = auto()
    CLOSED = auto()


# Looked at with every request.
_ACTIVE: Final = ShardState.ACTIVE

_ERROR_IN_STATE: Final = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.DRAINING: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.CLOSED: ErrorCode.NOT_COORDINATOR,
}


class Shard(LoadableShard[R], Protocol[R]):
    """A state machine that the runtime can run. Only `replay` changes the state in the log.

    `R` is what it writes: its own records and, if it takes part in transactions, these as
    `TransactionalRecord`, and `TransactionMarker`. Encoded and decoded are its own records only.
    """

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:  # noqa: ANN401 - R without wrappers
        """The record's key and value (None: a tombstone) in the log.

        ProtocolError if they cannot be written at all, which is treated like a batch too large.
        """

    def handle(self, command: Command, now_ms: int) -> Outcome[R]:
        """Handle a request. Changes only soft state (waiting requests, deadlines)."""

    def fire(self, key: TimerKey, now_ms: int) -> Outcome[R]:
        """A timer has expired and is no longer set."""

    def on_loaded(self, now_ms: int) -> Outcome[R]:
        """The log has been replayed: rebuild the soft state."""

    def on_append_failed(self, records: tuple[R, ...], now_ms: int) -> Outcome[R]:
        """These records, oldest first, were not written; the tables are reverted already."""


class CoordinatorBatch(msgspec.Struct, Generic[R], eq=False):
    """Records to append as one record batch, in the order of `take_batches`."""

    timestamp_ms: int
    producer: tuple[int, int] | None = None
    """(producer id, epoch) of the transaction of all records."""
    marker: TransactionMarker | None = None
    """Set if the batch is the end of a transaction."""
    entries: list[tuple[bytes, bytes | None]] = []
    records: list[R] = []
    last_position: int = 0
    expected_offset: int = -1
    """The log end offset at which it may be written: it depends on all batches before."""
    base_offset: int = -1
    error_code: ErrorCode = ErrorCode.NONE

    @property
    def is_written(self) -> bool:
        """Whether it has offsets in the log."""
        return self.base_offset >= 0

    @property
    def offset_count(self) -> int:
        """The number of its offsets."""
        return 1 if self.marker is not None else len(self.entries)


class _DeferredEvent(NamedTuple):
    """A reply or an effect that waits for the commit of `position`. `has_written`: the same outcome
    has records."""

    position: int
    answer: ShardReply | Effect
    has_written: bool


class ShardRuntime(Generic[R]):
    """One shard from loading to unloading. To load again, use a new runtime and shard."""

    def __init__(self, shard: Shard[R], *, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        self.state = ShardState.LOADING
        self.shard = shard
        self.timers = Timers()
        self._timeline = shard.timeline
        self._loader = CoordinatorLoader(shard)
        self._batch_bytes_max = batch_bytes_max
        self._closed: list[CoordinatorBatch[R]] = []
        self._open: CoordinatorBatch[R] | None = None
        self._open_bytes = 0
        self._is_urgent = False
        self._in_flight: deque[CoordinatorBatch[R]] = deque()
        self._loaded: CoordinatorBatch[R] | None = None
        self._deferred_events: deque[_DeferredEvent] = deque()
        self._effects: list[Effect] = []
        self._outstanding: set[int] = set()
        self._next_offset = 0
        # Where the next batch is to go when all that are in flight are written.
        self._write_offset = 0

    @property
    def has_uncommitted_load(self) -> bool:
        """Whether the log was loaded beyond the high watermark: `on_high_watermark_updated` is to
        be called as that moves."""
        return bool(self._in_flight) and self._in_flight[0] is self._loaded

    @property
    def has_batches(self) -> bool:
        """Whether `take_batches` would return something."""
        return (self._open is not None or bool(self._closed)) and self.state is _ACTIVE

    @property
    def has_urgent_batches(self) -> bool:
        """Whether a request waits for any of them; others may linger."""
        return self._is_urgent and self.has_batches

    # -- loading ----------------------------------------------------------------------------------

    def load(self, entries: Iterable[LogEntry], *, is_committed: bool = True) -> None:
        """Replay a slice of the log, in offset order. ProtocolError ends it.

        What is not `is_committed` lies beyond the high watermark, and so does all that follows it.
        """
        assert self.state is ShardState.LOADING
        self._loader.replay(entries, is_committed=is_committed)

    def finish_loading(self, *, next_offset: int, now_ms: int) -> list[Answer]:
        """Everything below `next_offset` has been replayed: start to serve."""
        assert self.state is ShardState.LOADING
        self._loader.finish()
        self.state = ShardState.ACTIVE
        self._next_offset = self._write_offset = next_offset
        timeline = self._timeline
        if timeline.position > timeline.committed:
            loaded: CoordinatorBatch[R] = CoordinatorBatch(now_ms)
            self._loaded = loaded
            loaded.base_offset, loaded.last_position = next_offset, timeline.position
            self._in_flight.append(loaded)
        answers: list[Answer] = []
        self._apply(self.shard.on_loaded(now_ms), now_ms, answers)
        return answers

    # -- requests and timers ----------------------------------------------------------------------

    def execute(self, command: Command, now_ms: int) -> list[Answer]:
        """Handle a request; returns the answers (to this and others) that may be sent."""
        if self.state is not _ACTIVE:
            return [ErrorReply(command.request_id, _ERROR_IN_STATE[self.state])]
        if command.request_id != NO_REQUEST:
            self._outstanding.add(command.request_id)
        answers: list[Answer] = []
        self._apply(self.shard.handle(command, now_ms), now_ms, answers)
        return answers

    def next_check_ms(self) -> int | None:
        """When to call `fire_due` next: no timer expires before."""
        return self.timers.next_check_ms() if self.state is _ACTIVE else None

    def fire_due(self, now_ms: int, *, count_max: int = 100) -> list[Answer]:
        """Fire at most `count_max` expired timers."""
        answers: list[Answer] = []
        while count_max and self.state is ShardState.ACTIVE:
            count_max -= 1
            key = self.timers.pop_due(now_ms)
            if key is None:
                break
            self._apply(self.shard.fire(key, now_ms), now_ms, answers)
        return answers

    def take_effects(self) -> list[Effect]:
        """The effects that may be carried out now; each is returned once."""
        effects, self._effects = self._effects, []
        return effects

    # -- the log ----------------------------------------------------------------------------------

    def take_batches(self) -> list[CoordinatorBatch[R]]:
        """The batches since the last call, to be appended in this order."""
        if self.state is not ShardState.ACTIVE:
            return []
        self._close_batch()
        self._is_urgent = False
        batches, self._closed = self._closed, []
        for batch in batches:
            batch.expected_offset = self._write_offset
            self._write_offset += batch.offset_count
        self._in_flight.extend(batches)
        return batches

    def appended(self, batch: CoordinatorBatch[R], base_offset: int) -> list[Answer]:
        """The batch is in the log at `base_offset`, possibly uncommitted."""
        batch.base_offset = base_offset
        if self.state not in (ShardState.ACTIVE, ShardState.DRAINING):
            return []
        if base_offset != self._next_offset:
            # Another writer has appended records that were not replayed here.
            return self.fail()
        self._next_offset = base_offset + batch.offset_count
        return self._fail_if_log_diverged()

    def on_high_watermark_updated(self, high_watermark: int, now_ms: int) -> list[Answer]:
        """The high watermark (exclusive) has moved: everything below it is committed."""
        answers: list[Answer] = []
        if self.state not in (ShardState.ACTIVE, ShardState.DRAINING):
            return answers
        while self._in_flight:
            batch = self._in_flight[0]
            if not batch.is_written or batch.base_offset + batch.offset_count > high_watermark:
                break
            self._in_flight.popleft()
            self._timeline.commit(batch.last_position)
        committed = self._timeline.committed
        while self._deferred_events and self._deferred_events[0].position <= committed:
            released = self._deferred_events.popleft().answer
            if isinstance(released, Effect):
                self._effects.append(released)
            else:
                self._emit(released, answers)
        if self.state is ShardState.DRAINING:
            self._revert_if_drained(now_ms, answers)
        return answers

    def append_failed(
        self, batch: CoordinatorBatch[R], error_code: ErrorCode, now_ms: int
    ) -> list[Answer]:
        """The log refused the batch, or it is unknown whether the batch was written.

        Afterwards the shard is ACTIVE again, DRAINING until the other batches in flight have
        succeeded or failed, or FAILED.
        """
        if self.state not in (ShardState.ACTIVE, ShardState.DRAINING):
            return []
        is_first = not any(candidate.error_code for candidate in self._in_flight)
        if error_code not in NOT_WRITTEN_ERRORS or (
            # No batch of this shard failed before it: there is another writer.
            error_code is ErrorCode.OFFSET_OUT_OF_RANGE and is_first
        ):
            return self.fail(error_of_failed_append(error_code))
        batch.error_code = error_code
        answers: list[Answer] = []
        # All batches after a failed one depend on it, sent or not.
        last_kept = self._timeline.committed
        for kept in takewhile(lambda candidate: not candidate.error_code, self._in_flight):
            last_kept = kept.last_position
        refusal = error_of_failed_append(error_code)
        # The error of this batch does not apply to the others.
        refusal_of_others = (
            refusal if refusal in _FIND_COORDINATOR_ERRORS else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        while self._deferred_events and self._deferred_events[-1].position > last_kept:
            position, lost, has_written = self._deferred_events.pop()
            if isinstance(lost, ShardReply):
                is_its_own = has_written and position <= batch.last_position
                code = refusal if is_its_own else refusal_of_others
                self._emit(ErrorReply(lost.request_id, code), answers)
        self.state = ShardState.DRAINING
        answers.extend(self._fail_if_log_diverged())
        if self.state is ShardState.DRAINING:
            self._revert_if_drained(now_ms, answers)
        return answers

    def fail(self, error_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> list[Answer]:
        """Stop this runtime: the end of the log is unknown. All requests get an error."""
        return self._end(ShardState.FAILED, error_code)

    def unload(self) -> list[Answer]:
        """The shard has moved or is replaced. All requests get an error."""
        return self._end(ShardState.CLOSED, ErrorCode.NOT_COORDINATOR)

    # -- inside -----------------------------------------------------------------------------------

    def _end(self, state: ShardState, error_code: ErrorCode) -> list[Answer]:
        self.state = state
        self._closed.clear()
        self._open = None
        self._deferred_events.clear()
        self._effects.clear()
        answers: list[Answer] = [ErrorReply(request, error_code) for request in self._outstanding]
        self._outstanding.clear()
        return answers

    def _apply(self, outcome: Outcome[R], now_ms: int, answers: list[Answer]) -> None:
        for timer in outcome.timers:
            if timer.deadline_ms is None:
                self.timers.cancel(timer.key)
            else:
                self.timers.set(timer.key, timer.deadline_ms)
        is_written = True
        if outcome.is_atomic:
            is_written = not outcome.records or self._write(outcome.records, now_ms)
        else:
            for record in outcome.records:
                is_written = self._write((record,), now_ms) and is_written
        if not is_written:
            for reply in outcome.replies:
                self._emit(ErrorReply(reply.request_id, ErrorCode.MESSAGE_TOO_LARGE), answers)
            self._apply(self.shard.on_append_failed(outcome.records, now_ms), now_ms, answers)
            self._resume_commands(outcome, now_ms, answers)
            return
        position = self._timeline.position
        is_settled = position == self._timeline.committed
        if not (is_settled or outcome.can_linger):
            # A request waits for its own records, or a reply for those of other requests.
            self._is_urgent |= bool(outcome.records or outcome.replies or outcome.effects)
        for reply in outcome.replies:
            if is_settled or reply.is_immediate:
                self._emit(reply, answers)
            else:
                self._deferred_events.append(_DeferredEvent(position, reply, bool(outcome.records)))
        for send in outcome.effects:
            if is_settled:
                self._effects.append(send)
            else:
                self._deferred_events.append(_DeferredEvent(position, send, has_written=True))
        if outcome.resumed_commands:
            self._resume_commands(outcome, now_ms, answers)

    def _resume_commands(self, outcome: Outcome[R], now_ms: int, answers: list[Answer]) -> None:
        for command in outcome.resumed_commands:
            if command.request_id in self._outstanding:
                self._apply(self.shard.handle(command, now_ms), now_ms, answers)

    def _write(self, records: tuple[R, ...], now_ms: int) -> bool:
        """Put records into the open batch and replay them; False if no batch can hold them."""
        shard = self.shard
        first: Any = records[0]
        producer: tuple[int, int] | None = None
        try:
            if type(first) is TransactionMarker:
                assert len(records) == 1, "a marker stands alone"
                entries: list[tuple[bytes, bytes | None]] = []
            elif type(first) is TransactionalRecord:
                producer = first.producer_id, first.producer_epoch
                entries = [shard.encode(record.record) for record in records]  # type: ignore[attr-defined]  # all of them are
            else:
                entries = [shard.encode(record) for record in records]
        except ProtocolError:
            return False
        size = sum(
            len(key) + (len(value) if value is not None else 0) + _RECORD_OVERHEAD_BYTES
            for key, value in entries
        )
        if size > self._batch_bytes_max:
            return False
        batch = self._open
        if batch is not None and (
            self._open_bytes + size > self._batch_bytes_max
            or batch.producer != producer
            or type(first) is TransactionMarker
        ):
            self._close_batch()
            batch = None
        if batch is None:
            batch = self._open = CoordinatorBatch(now_ms, producer)
        for record in records:
            batch.last_position = self._timeline.advance()
            shard.replay(record)
        batch.entries.extend(entries)
        batch.records.extend(records)
        self._open_bytes += size
        if type(first) is TransactionMarker:
            batch.marker = first
            self._close_batch()
        return True

    def _close_batch(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
            self._open_bytes = 0

    def _emit(self, answer: Answer, answers: list[Answer]) -> None:
        if answer.request_id in self._outstanding:
            self._outstanding.discard(answer.request_id)
            answers.append(answer)

    def _fail_if_log_diverged(self) -> list[Answer]:
        """If a batch behind a failed one was written, the log differs from the state: fail."""
        is_refused = False
        for batch in self._in_flight:
            if batch.error_code:
                is_refused = True
            elif is_refused and batch.is_written:
                return self.fail()
        return []

    def _revert_if_drained(self, now_ms: int, answers: list[Answer]) -> None:
        """When only failed batches are in flight: revert and become ACTIVE."""
        if any(not batch.error_code for batch in self._in_flight):
            return
        self._close_batch()
        lost: list[R] = []
        for batch in (*self._in_flight, *self._closed):
            lost.extend(batch.records)
        self._in_flight.clear()
        self._closed.clear()
        self._timeline.revert()
        self._write_offset = self._next_offset
        self.state = ShardState.ACTIVE
        self._apply(self.shard.on_append_failed(tuple(lost), now_ms), now_ms, answers)
