"""One partition of one share group on the partition's leader: Kafka's SharePartition (KIP-932).

                  acquire       accept, gap     release         reject         lock ends
    AVAILABLE     ACQUIRED      refused         refused         refused        -
    ACQUIRED      -             ACKNOWLEDGED,   AVAILABLE,      ARCHIVED or    AVAILABLE, or given
                                ARCHIVED        or given up     ARCHIVING      up at the limit
    ACKNOWLEDGED  -             refused         refused         refused        -
    ARCHIVING     -             refused         refused         refused        -
    ARCHIVED      -             refused         refused         refused        -

Given up (at the delivery count limit) means ARCHIVING in a group with a dead-letter topic, until
`on_dead_lettered`, and ARCHIVED in others. The start offset moves past ACKNOWLEDGED and ARCHIVED
records.

An acknowledgement takes effect when its state is written: until `on_written` such records are in
transition and do not change; after a failed write they are as before. Expired locks and leaving
members take effect at once and are written with the next write, so that other members can acquire
the records immediately. There is at most one write in flight; the next one has all later changes.
Invariant: a record is ACQUIRED by one member, and no acknowledged record is acquired again.

The host (node/router/share/partitions.py) calls a method with the time, and then asks for the next
write, the dead letters and the next deadline.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acknowledgements import (
    AcknowledgedRange,
    AcknowledgeType,
    OffsetBatch,
    acknowledged_ranges,
)
from odradek.coordinator.share.acquisition import (
    AcquiredRange,
    AcquireOptions,
    Acquisition,
    LogBatch,
    ReadPosition,
    is_last_attempt,
    throttled_records_max,
)
from odradek.coordinator.share.runs import (
    NOBODY,
    TERMINAL,
    Run,
    Runs,
    Target,
    is_acquired_by,
    is_available,
    state_batch,
)
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState, joined
from odradek.protocol.errors import ErrorCode

NOTHING_TO_WRITE: Final = 0
_Range: TypeAlias = tuple[int, int]


class AcknowledgeResult(NamedTuple):
    """The result of acknowledgements: an error, or the id of the write that makes them durable
    (NOTHING_TO_WRITE: they are durable)."""

    error_code: ErrorCode
    write_id: int = NOTHING_TO_WRITE


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A state to persist. `delivery_complete_count` is the number of records after `start_offset`
    in a final state (KIP-1226)."""

    write_id: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[PersisterStateBatch, ...]


@dataclass(frozen=True, slots=True)
class DeadLetterRange:
    """Records [start, end) for the dead-letter topic."""

    start: int
    end: int
    delivery_count: int
    is_rejected: bool


class SharePartition:
    """See the module's docstring. Times are milliseconds of the host's clock. `group_settings` may
    be replaced at any time."""

    def __init__(
        self,
        start_offset: int,
        batches: Iterable[PersisterStateBatch],
        *,
        now_ms: int,
        group_settings: ShareGroupSettings,
    ) -> None:
        """The state as it was last written. Redelivery delays restart: their start is not
        stored."""
        self.group_settings = group_settings
        self._runs = Runs(start_offset)
        self._complete_count = 0
        self._available_from = start_offset
        self._queued: list[_Range] = []
        self._dirty: list[_Range] = []
        self._lazy: list[_Range] = []
        self._writing: list[_Range] = []
        self._writing_along: list[_Range] = []
        self._written_start = self._writing_start = start_offset
        self._write_id = 0
        self._is_writing = False
        self._has_dead_letters = False
        self._deadline_ms: int | None = None
        for batch in sorted(batches, key=lambda batch: batch.first_offset):
            self._load(batch, now_ms)
        self._advance()

    # -- reading -----------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """All records below are in a final state."""
        return self._runs.start_offset

    @property
    def end_offset(self) -> int:
        """No record at or above was acquired yet."""
        return self._runs.end_offset

    @property
    def open_count(self) -> int:
        """The number of records between start and end that are not in a final state."""
        return self.end_offset - self.start_offset - self._complete_count

    @property
    def is_idle(self) -> bool:
        """Whether everything is written."""
        return not (self._is_writing or self._has_unwritten)

    def runs(self) -> Iterable[Run]:
        """The runs in order; read-only."""
        return iter(self._runs)

    def position(self, now_ms: int, records_max: int) -> ReadPosition | None:
        """Where to read up to `records_max` records; None if none are available."""
        offset = None
        count = 0
        end = self.start_offset
        for run in self._runs.from_offset(self._available_from):
            if not is_available(run, now_ms):
                continue
            if offset is None:
                offset = run.start
            count += run.end - run.start
            end = run.end
            if count >= records_max:
                return ReadPosition(offset, end)
        if self.open_count < self.group_settings.record_locks_max:
            return ReadPosition(self.end_offset if offset is None else offset, None)
        return None if offset is None else ReadPosition(offset, end)

    def next_deadline_ms(self) -> int | None:
        """When to call `on_deadline`, None for never."""
        return self._deadline_ms

    # -- members -----------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        offset: int,
        batches: Sequence[LogBatch],
        options: AcquireOptions,
        *,
        now_ms: int,
    ) -> list[AcquiredRange]:
        """Acquire records for a member. `batches` are those of the log from `offset` on, the result
        of `position`, in order; offsets between them have no records."""
        assert member_id != NOBODY
        acquisition = Acquisition(options)
        at = offset
        for batch in batches:
            if acquisition.is_full:
                break
            start = max(at, batch.start)
            self._archive_gap(at, start)
            if batch.is_void:
                self._archive_gap(start, batch.end)
            else:
                self._extend(batch.end)
                may_go_on = self._acquire_batch(member_id, start, batch, acquisition, now_ms)
                if not may_go_on or self.end_offset < batch.end:
                    # The limit of records in flight is reached: the rest is acquired later.
                    break
            at = max(at, batch.end)
        self._advance()
        return acquisition.ranges

    def acknowledge(
        self, member_id: str, batches: Sequence[OffsetBatch], *, now_ms: int
    ) -> AcknowledgeResult:
        """Apply acknowledgements, and return the write that makes them durable.

        All of them or none: INVALID_RECORD_STATE if one of the records is not acquired by the
        member; INVALID_REQUEST beyond the end offset. Offsets below the start offset are ignored.
        The batches must have no `batches_error`.
        """
        acknowledged = [
            verdict._replace(start=max(verdict.start, self.start_offset))
            for verdict in acknowledged_ranges(batches)
            if verdict.end > self.start_offset
        ]
        for verdict in acknowledged:
            if verdict.end > self.end_offset:
                return AcknowledgeResult(ErrorCode.INVALID_REQUEST)
            for run in self._runs.overlapping(verdict.start, verdict.end):
                if not is_acquired_by(run, member_id, now_ms):
                    return AcknowledgeResult(ErrorCode.INVALID_RECORD_STATE)
        is_written = False
        for verdict in acknowledged:
            is_written |= self._apply(verdict, now_ms)
        return AcknowledgeResult(
            ErrorCode.NONE, self._write_id + 1 if is_written else NOTHING_TO_WRITE
        )

    def release_member(self, member_id: str, *, was_delivered: bool, now_ms: int) -> None:
        """Release the records of a member that has left. If it closed its session itself
        (`was_delivered` is False), its application has not seen them, and the delivery is not
        counted."""
        for run in list(self._runs):
            if run.member_id == member_id and run.state is RecordState.ACQUIRED:
                if run.target is not None:
                    # If the write fails, the lock expires: no member retries.
                    run.deadline_ms = now_ms
                elif was_delivered:
                    self._release(run, now_ms)
                else:
                    run.delivery_count -= 1
                    self._make_available(run, 0)
                    self._mark_dirty(run)
        self._runs.join(self.start_offset, self.end_offset)
        self._advance()

    # -- time, log and writes ----------------------------------------------------------------------

    def on_deadline(self, now_ms: int) -> bool:
        """Release expired locks; returns whether records have become available."""
        self._deadline_ms = None
        is_any = False
        for run in list(self._runs):
            if run.deadline_ms == 0 or run.target is not None:
                continue
            if run.deadline_ms > now_ms:
                self._schedule(run.deadline_ms)
            elif run.state is RecordState.ACQUIRED:
                self._release(run, now_ms)
                is_any |= is_available(run, now_ms)
            else:
                run.deadline_ms = 0
                is_any = True
        self._runs.join(self.start_offset, self.end_offset)
        self._advance()
        return is_any

    def on_log_start(self, log_start_offset: int) -> None:
        """The log start offset has moved: records below it are archived, acquired or not."""
        if log_start_offset <= self.start_offset:
            return
        for run in self._runs.drop_before(log_start_offset):
            if run.state in TERMINAL:
                self._complete_count -= run.end - run.start
        self._advance()

    def next_write(self) -> StateWrite | None:
        """The state to persist now; None if there is none, or a write is in flight. The host calls
        `on_written` with the result."""
        if self._is_writing or not self._has_unwritten:
            return None
        self._is_writing = True
        self._write_id += 1
        self._writing, self._queued = self._queued, []
        dirty, self._dirty, self._lazy = self._dirty + self._lazy, [], []
        start, complete = self._state_after_write()
        self._writing_start = start
        batches: list[PersisterStateBatch] = []
        for first, last in sorted({*self._writing, *dirty}):
            for run in self._runs.overlapping(first, last):
                if run.is_dirty:
                    run.is_dirty = False
                    self._writing_along.append((run.start, run.end))
                elif run.target is None:
                    continue
                if run.start >= start:
                    batches.append(state_batch(run))
        return StateWrite(self._write_id, start, complete, tuple(joined(batches)))

    def on_written(self, *, is_done: bool, now_ms: int) -> None:
        """The write in flight is durable, or failed: then acknowledged records are acquired as
        before, and the other changes are written again."""
        self._is_writing = False
        if is_done:
            self._written_start = self._writing_start
        written, self._writing = self._writing, []
        along, self._writing_along = self._writing_along, []
        for start, end in written:
            for run in self._runs.overlapping(start, end):
                target, run.target = run.target, None
                if target is None:
                    continue  # an adjacent run: the log start offset has passed the run itself
                if is_done and target.state is RecordState.AVAILABLE:
                    self._make_available(run, target.deadline_ms)
                elif is_done:
                    self._end_delivery(run, target.state, is_rejected=target.is_rejected)
                elif run.deadline_ms <= now_ms:
                    self._release(run, now_ms)
                else:
                    self._schedule(run.deadline_ms)
            self._runs.join(start, end)
        if not is_done:
            for start, end in along:
                for run in self._runs.overlapping(start, end):
                    if run.state is not RecordState.ACQUIRED:
                        self._mark_dirty(run)
        self._advance()

    def take_dead_letters(self) -> list[DeadLetterRange]:
        """New records for the dead-letter topic. Their state is durable: they are not delivered
        again."""
        if not self._has_dead_letters:
            return []
        taken = []
        self._has_dead_letters = False
        for run in self._runs:
            if run.state is not RecordState.ARCHIVING or run.is_dead_letter_taken:
                continue
            if not self._is_durable(run):
                self._has_dead_letters = True
            else:
                run.is_dead_letter_taken = True
                taken.append(
                    DeadLetterRange(run.start, run.end, run.delivery_count, run.is_rejected)
                )
        return taken

    def on_dead_lettered(self, start: int, end: int) -> None:
        """These records are in the dead-letter topic, or cannot be written to it."""
        for run in self._runs.split_out(start, end):
            if run.state is RecordState.ARCHIVING:
                self._end_delivery(run, RecordState.ARCHIVED)
                self._mark_dirty(run)
        self._runs.join(start, end)
        self._advance()

    # -- inside: acquiring -------------------------------------------------------------------------

    def _acquire_batch(
        self, member_id: str, start: int, batch: LogBatch, acquisition: Acquisition, now_ms: int
    ) -> bool:
        """Acquire the available records of a batch; returns whether to continue with the next."""
        throttled_left: int | None = None
        for run in self._runs.overlapping(start, batch.end):
            if not is_available(run, now_ms):
                continue
            if run.delivery_count >= self.group_settings.delivery_count_limit:
                # The limit was lowered.
                for piece in self._runs.split_out(max(run.start, start), min(run.end, batch.end)):
                    self._end_delivery(piece, self._given_up)
                    self._mark_dirty(piece)
                continue
            is_last = is_last_attempt(self.group_settings, run.delivery_count)
            if is_last and acquisition.count:
                return False
            first = max(run.start, start)
            size = acquisition.room(min(run.end, batch.end) - first)
            allowed = throttled_records_max(
                self.group_settings, run.delivery_count, batch.end - batch.start
            )
            if allowed is not None:
                throttled_left = allowed if throttled_left is None else throttled_left
                size = min(size, throttled_left)
                throttled_left -= size
            if size:
                self._lock(member_id, first, first + size, acquisition, now_ms)
            if is_last or throttled_left == 0:
                return False
            if acquisition.is_full and acquisition.room(1) == 0:
                return False
        return True

    def _lock(
        self, member_id: str, start: int, end: int, acquisition: Acquisition, now_ms: int
    ) -> None:
        deadline_ms = now_ms + self.group_settings.lock_duration_ms
        for run in self._runs.split_out(start, end):
            run.state = RecordState.ACQUIRED
            run.delivery_count += 1
            run.member_id = member_id
            run.deadline_ms = deadline_ms
            run.is_dirty = False
            acquisition.add(run.start, run.end, run.delivery_count)
        self._schedule(deadline_ms)
        self._runs.join(start, end)

    def _archive_gap(self, start: int, end: int) -> None:
        """There are no records at [start, end): archive what is available there."""
        if start >= end:
            return
        if end > self.end_offset:
            self._runs.append(Run(self.end_offset, end))
        for run in self._runs.split_out(start, end):
            if run.state is RecordState.AVAILABLE:
                self._end_delivery(run, RecordState.ARCHIVED)
                self._mark_dirty(run, is_urgent=False)
        self._runs.join(start, end)

    def _extend(self, end: int) -> None:
        """Move the end offset up to `end`, within the limit of records in flight."""
        room = self.group_settings.record_locks_max - self.open_count
        end = min(end, self.end_offset + room)
        if end > self.end_offset:
            self._runs.append(Run(self.end_offset, end))

    # -- inside: state transitions -----------------------------------------------------------------

    def _apply(self, verdict: AcknowledgedRange, now_ms: int) -> bool:
        """Apply one range; returns whether it has to be written."""
        for run in self._runs.split_out(verdict.start, verdict.end):
            match verdict.type:
                case AcknowledgeType.RENEW:
                    run.deadline_ms = now_ms + self.group_settings.lock_duration_ms
                    self._schedule(run.deadline_ms)
                    continue
                case AcknowledgeType.ACCEPT:
                    run.target = Target(RecordState.ACKNOWLEDGED)
                case AcknowledgeType.GAP:
                    run.target = Target(RecordState.ARCHIVED)
                case AcknowledgeType.REJECT:
                    run.target = Target(self._given_up, is_rejected=True)
                case AcknowledgeType.RELEASE if (
                    run.delivery_count >= self.group_settings.delivery_count_limit
                ):
                    run.target = Target(self._given_up)
                case AcknowledgeType.RELEASE:
                    deadline_ms = self.group_settings.redelivery_ms(run.delivery_count, now_ms)
                    run.target = Target(RecordState.AVAILABLE, deadline_ms)
            self._queued.append((run.start, run.end))
        return verdict.type is not AcknowledgeType.RENEW

    @property
    def _given_up(self) -> RecordState:
        """The state of records that are not delivered again."""
        has_topic = bool(self.group_settings.dead_letter_topic)
        return RecordState.ARCHIVING if has_topic else RecordState.ARCHIVED

    def _release(self, run: Run, now_ms: int) -> None:
        """End the lock of a run: it has expired, or its member has left."""
        if run.delivery_count >= self.group_settings.delivery_count_limit:
            self._end_delivery(run, self._given_up)
        else:
            self._make_available(run, self.group_settings.redelivery_ms(run.delivery_count, now_ms))
        self._mark_dirty(run)

    def _make_available(self, run: Run, deadline_ms: int) -> None:
        run.state = RecordState.AVAILABLE
        run.member_id = NOBODY
        run.deadline_ms = deadline_ms
        self._available_from = min(self._available_from, run.start)
        if deadline_ms:
            self._schedule(deadline_ms)

    def _end_delivery(self, run: Run, state: RecordState, *, is_rejected: bool = False) -> None:
        """The records are not delivered again: `state` is final, or ARCHIVING."""
        run.state = state
        run.member_id = NOBODY
        run.deadline_ms = 0
        run.is_rejected = is_rejected
        run.is_dead_letter_taken = False
        if state is RecordState.ARCHIVING:
            self._has_dead_letters = True
        else:
            self._complete_count += run.end - run.start

    def _mark_dirty(self, run: Run, *, is_urgent: bool = True) -> None:
        """Mark the run as to be written: soon, or with the next write."""
        if not run.is_dirty:
            run.is_dirty = True
            (self._dirty if is_urgent else self._lazy).append((run.start, run.end))

    # -- inside: bookkeeping -----------------------------------------------------------------------

    def _load(self, batch: PersisterStateBatch, now_ms: int) -> None:
        start, end = max(batch.first_offset, self.end_offset), batch.last_offset + 1
        if start >= end:
            return
        if start > self.end_offset:
            self._runs.append(Run(self.end_offset, start))
        state = RecordState(batch.delivery_state)
        run = self._runs.append(Run(start, end, state, batch.delivery_count))
        if state in TERMINAL:
            self._complete_count += end - start
        elif state is RecordState.ARCHIVING:
            self._has_dead_letters = True
        else:
            run.deadline_ms = self.group_settings.redelivery_ms(run.delivery_count, now_ms)
            if run.deadline_ms:
                self._schedule(run.deadline_ms)
        self._runs.join(start, end)

    def _advance(self) -> None:
        """Move the start offset past final states, and `_available_from` to the first available
        run."""
        done = self.start_offset
        for run in self._runs:
            if run.state not in TERMINAL:
                break
            done = run.end
            self._complete_count -= run.end - run.start
        if done > self.start_offset:
            self._runs.drop_before(done)
        available_from = max(self._available_from, self.start_offset)
        for run in self._runs.from_offset(available_from):
            if run.state is RecordState.AVAILABLE:
                break
            available_from = run.end
        self._available_from = available_from

    def _is_durable(self, run: Run) -> bool:
        return not run.is_dirty and not any(
            start < run.end and run.start < end for start, end in self._writing_along
        )

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._queued or self._dirty) or self.start_offset > self._written_start

    def _state_after_write(self) -> tuple[int, int]:
        """The start offset and the delivery complete count after the write."""
        start, complete = self.start_offset, self._complete_count
        for first, last in self._writing:
            for run in self._runs.overlapping(first, last):
                if run.target is not None and run.target.state in TERMINAL:
                    complete += run.end - run.start
        for run in self._runs:
            if (run.state if run.target is None else run.target.state) not in TERMINAL:
                break
            start = run.end
            complete -= run.end - run.start
        return start, complete

    def _schedule(self, deadline_ms: int) -> None:
        if self._deadline_ms is None or deadline_ms < self._deadline_ms:
            self._deadline_ms = deadline_ms
