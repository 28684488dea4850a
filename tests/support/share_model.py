"""A simple model of a share partition: one entry for each offset.

coordinator/share/partition.py keeps runs, hints and counters; this model computes everything from a
dictionary each time.
"""

from dataclasses import dataclass

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acquisition import AcquiredRange, AcquireOptions, LogBatch
from odradek.coordinator.share.partition import StateWrite
from odradek.coordinator.share.state_batches import RecordState

DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
Durable = dict[int, tuple[int, int]]


@dataclass
class ModelOffset:
    """The state of one offset."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str = ""
    due: int = 0
    target: RecordState | None = None
    target_due: int = 0


class ShareModel:
    """See the module's docstring."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.entries: dict[int, ModelOffset] = {}
        self.queued: set[int] = set()
        self.writing: set[int] = set()

    def open_count(self) -> int:
        return sum(entry.state not in DONE for entry in self.entries.values())

    def advance(self) -> None:
        while self.start < self.end and self.entries[self.start].state in DONE:
            del self.entries[self.start]
            self.start += 1

    def is_free(self, offset: int, now: int) -> bool:
        entry = self.entries[offset]
        return entry.state is RecordState.AVAILABLE and entry.due <= now

    def position(
        self, now: int, records_max: int, group_settings: ShareGroupSettings
    ) -> tuple[int, int | None] | None:
        free = [offset for offset in range(self.start, self.end) if self.is_free(offset, now)]
        if len(free) >= records_max:
            return free[0], free[records_max - 1] + 1
        if self.open_count() < group_settings.record_locks_max:
            return free[0] if free else self.end, None
        return (free[0], free[-1] + 1) if free else None

    def grow(self, end: int) -> None:
        for offset in range(self.end, end):
            self.entries[offset] = ModelOffset()
        self.end = max(self.end, end)

    def archive(self, entry: ModelOffset) -> None:
        entry.state, entry.member, entry.due = RecordState.ARCHIVED, "", 0

    def give_up(self, entry: ModelOffset, group_settings: ShareGroupSettings) -> None:
        self.archive(entry)
        if group_settings.dead_letter_topic:
            entry.state = RecordState.ARCHIVING

    def let_go(self, entry: ModelOffset, now: int, group_settings: ShareGroupSettings) -> None:
        if entry.count >= group_settings.delivery_count_limit:
            self.give_up(entry, group_settings)
            return
        entry.state, entry.member = RecordState.AVAILABLE, ""
        entry.due = group_settings.redelivery_ms(entry.count, now)

    def skip(self, start: int, end: int) -> None:
        for offset in range(start, end):
            if offset >= self.end:
                self.grow(offset + 1)
            entry = self.entries.get(offset)
            if entry is not None and entry.state is RecordState.AVAILABLE:
                self.archive(entry)

    def acquire(
        self,
        member: str,
        offset: int,
        batches: list[LogBatch],
        options: AcquireOptions,
        now: int,
        group_settings: ShareGroupSettings,
    ) -> list[int]:
        """The offsets acquired, in order."""
        acquired: list[int] = []
        at = offset
        for batch in batches:
            if len(acquired) >= options.records_max:
                break
            start = max(at, batch.start)
            self.skip(at, start)
            if batch.is_void:
                self.skip(start, batch.end)
            else:
                room = group_settings.record_locks_max - self.open_count()
                self.grow(min(batch.end, self.end + room))
                if not self.acquire_batch(
                    member, start, batch, acquired, options, now, group_settings
                ):
                    break
                if self.end < batch.end:
                    break
            at = max(at, batch.end)
        self.advance()
        return acquired

    def acquire_batch(
        self,
        member: str,
        start: int,
        batch: LogBatch,
        acquired: list[int],
        options: AcquireOptions,
        now: int,
        group_settings: ShareGroupSettings,
    ) -> bool:
        suspects: int | None = None
        limit = group_settings.delivery_count_limit
        throttle_from = max(2, -(-limit // 2))
        for offset in range(start, min(batch.end, self.end)):
            entry = self.entries.get(offset)
            if entry is None or not self.is_free(offset, now):
                continue
            if entry.count >= limit:
                self.give_up(entry, group_settings)
                continue
            if options.is_exact and len(acquired) >= options.records_max:
                return False
            is_last = limit > 2 and entry.count == limit - 1
            if is_last and acquired:
                return False
            if entry.count >= throttle_from:
                if suspects is None:
                    size = batch.end - batch.start
                    suspects = 1 if is_last else max(1, size >> (entry.count - throttle_from + 1))
                if suspects == 0:
                    return False
                suspects -= 1
            entry.state, entry.member = RecordState.ACQUIRED, member
            entry.count += 1
            entry.due = now + group_settings.lock_duration_ms
            acquired.append(offset)
            if is_last or suspects == 0:
                return False
        return True

    def may_acknowledge(self, member: str, offset: int, now: int) -> bool:
        entry = self.entries[offset]
        return (
            entry.state is RecordState.ACQUIRED
            and entry.member == member
            and entry.target is None
            and entry.due > now
        )

    def acknowledge(
        self, offset: int, kind: int, now: int, group_settings: ShareGroupSettings
    ) -> None:
        entry = self.entries[offset]
        if kind == 4:
            entry.due = now + group_settings.lock_duration_ms
            return
        given_up = (
            RecordState.ARCHIVING if group_settings.dead_letter_topic else RecordState.ARCHIVED
        )
        if kind == 2 and entry.count < group_settings.delivery_count_limit:
            entry.target = RecordState.AVAILABLE
            entry.target_due = group_settings.redelivery_ms(entry.count, now)
        else:
            entry.target = {
                0: RecordState.ARCHIVED,
                1: RecordState.ACKNOWLEDGED,
                2: given_up,
                3: given_up,
            }[kind]
        self.queued.add(offset)

    def release(
        self, member: str, was_delivered: bool, now: int, group_settings: ShareGroupSettings
    ) -> None:
        for entry in self.entries.values():
            if entry.member != member or entry.state is not RecordState.ACQUIRED:
                continue
            if entry.target is not None:
                entry.due = now
            elif was_delivered:
                self.let_go(entry, now, group_settings)
            else:
                entry.count -= 1
                entry.state, entry.member, entry.due = RecordState.AVAILABLE, "", 0
        self.advance()

    def on_deadline(self, now: int, group_settings: ShareGroupSettings) -> None:
        for entry in self.entries.values():
            if entry.target is not None or not entry.due or entry.due > now:
                continue
            if entry.state is RecordState.ACQUIRED:
                self.let_go(entry, now, group_settings)
            else:
                entry.due = 0
        self.advance()

    def on_log_start(self, offset: int) -> None:
        for gone in range(self.start, min(offset, self.end)):
            del self.entries[gone]
        self.start = max(self.start, offset)
        self.end = max(self.end, self.start)
        self.advance()

    def begin_write(self) -> None:
        self.writing, self.queued = self.queued, set()

    def end_write(self, is_done: bool, now: int, group_settings: ShareGroupSettings) -> None:
        for offset in self.writing:
            entry = self.entries.get(offset)
            if entry is None or entry.target is None:
                continue
            target, entry.target = entry.target, None
            if is_done:
                entry.state, entry.member = target, ""
                entry.due = entry.target_due if target is RecordState.AVAILABLE else 0
            elif entry.due <= now:
                self.let_go(entry, now, group_settings)
        self.writing = set()
        self.advance()

    def dead_lettered(self, start: int, end: int) -> None:
        for offset in range(start, end):
            entry = self.entries.get(offset)
            if entry is not None and entry.state is RecordState.ARCHIVING:
                self.archive(entry)
        self.advance()


def offsets_of(ranges: list[AcquiredRange]) -> list[int]:
    """One by one."""
    return [offset for found in ranges for offset in range(found.start, found.end)]


def write_down(durable: Durable, write: StateWrite) -> Durable:
    """The durable state after a write: the state of each offset from the start offset on."""
    after = dict(durable)
    for batch in write.batches:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            after[offset] = (batch.delivery_state, batch.delivery_count)
    return {offset: value for offset, value in after.items() if offset >= write.start_offset}
