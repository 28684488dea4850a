"""All events of a record of a share partition, in every state that it can reach.

The record is the second of two. Another member holds the first one, so that the start offset cannot
pass the second one.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final, NamedTuple

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acknowledgements import AcknowledgeType
from odradek.coordinator.share.acquisition import AcquireOptions, LogBatch
from odradek.coordinator.share.partition import AcknowledgeResult, SharePartition, StateWrite
from odradek.coordinator.share.runs import Run
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.protocol.messages.share import AcknowledgementBatch
from tests.support.transition_table import NOTHING, TransitionKey, TransitionRow

AT: Final = 1
MEMBER: Final = "m"
LIMIT: Final = 3
DELAY_MS: Final = 500
WISH: Final = AcquireOptions(records_max=10)
GONE: Final = "gone"
WRITING: Final = "in transition"


class RecordSituation(NamedTuple):
    """A record before the event."""

    state: str
    deliveries: int
    has_topic: bool
    """Whether the group has a dead-letter topic."""
    becomes: AcknowledgeType | None = None
    """The state that is being written, for a record in transition."""

    @property
    def place(self) -> str:
        """The state's name in the table."""
        return self.state

    @property
    def is_last(self) -> bool:
        """Whether the delivery count limit is reached."""
        return self.deliveries >= LIMIT


class RecordScenario:
    """A partition with the record."""

    def __init__(self, kind: RecordSituation, *, rests_ms: int = 0) -> None:
        self.now_ms = 1_000
        self.kind = kind
        self.group_settings = ShareGroupSettings(
            delivery_count_limit=LIMIT,
            dead_letter_topic="dead" if kind.has_topic else "",
            redelivery_delay_ms=rests_ms,
        )
        self.last_write: StateWrite | None = None
        held = kind.state in ("Acquired", WRITING)
        state = RecordState.AVAILABLE if held else RecordState[kind.state.upper()]
        count = kind.deliveries - 1 if held else kind.deliveries
        loaded = [PersisterStateBatch(AT, AT, int(state), count)]
        self.partition = SharePartition(
            0, loaded, now_ms=self.now_ms, group_settings=self.group_settings
        )
        self._acquire("other", 0)
        if held:
            self._acquire(MEMBER, AT)
        if kind.becomes is not None:
            assert not self.acknowledge(kind.becomes).error_code
            self.last_write = self.partition.next_write()

    def run(self) -> Run | None:
        """The run that the record is part of."""
        return next((run for run in self.partition.runs() if run.start <= AT < run.end), None)

    def name(self) -> str:
        """The state of the record, as the table calls it."""
        run = self.run()
        if run is None:
            return GONE
        if run.target is not None:
            return WRITING
        return run.state.name.capitalize()

    # -- what may happen --------------------------------------------------------------------------

    def _acquire(self, member: str, offset: int) -> bool:
        batches = [LogBatch(offset, offset + 1)]
        return bool(
            self.partition.acquire(
                member,
                offset,
                batches,
                WISH,
                now_ms=self.now_ms,
            )
        )

    def acquire(self) -> str:
        """A member acquires here."""
        return "acquired" if self._acquire("new", AT) else "not acquired"

    def acknowledge(self, kind: AcknowledgeType, member: str = MEMBER) -> AcknowledgeResult:
        """The member acknowledges the record."""
        batch = AcknowledgementBatch(first_offset=AT, last_offset=AT, acknowledge_types=[int(kind)])
        return self.partition.acknowledge(member, [batch], now_ms=self.now_ms)

    def acknowledged(self, kind: AcknowledgeType, member: str = MEMBER) -> str:
        """The error code of the response."""
        return self.acknowledge(kind, member).error_code.name

    def let_time_pass(self) -> str:
        """The lock expires."""
        self.now_ms += self.group_settings.lock_duration_ms
        self.partition.on_deadline(self.now_ms)
        return NOTHING

    def leave(self, *, was_delivered: bool) -> str:
        """The member leaves."""
        self.partition.release_member(
            MEMBER,
            was_delivered=was_delivered,
            now_ms=self.now_ms,
        )
        return NOTHING

    def is_void(self) -> str:
        """There is no record at the offset: a marker, or an aborted transaction."""
        self.partition.acquire(
            "new",
            AT,
            [LogBatch(AT, AT + 1, is_void=True)],
            WISH,
            now_ms=self.now_ms,
        )
        return NOTHING

    def begin_later(self) -> str:
        """The log start moves past it."""
        self.partition.on_log_start(AT + 1)
        return NOTHING

    def written(self, *, is_done: bool) -> str:
        """The write in flight has completed."""
        self.partition.on_written(is_done=is_done, now_ms=self.now_ms)
        return NOTHING

    def lose_lock(self, *, is_done: bool) -> str:
        """The same, after the lock has expired."""
        self.now_ms += self.group_settings.lock_duration_ms
        self.partition.on_deadline(self.now_ms)
        return self.written(is_done=is_done)

    def lose_member(self, *, is_done: bool) -> str:
        """The same, after the member has left."""
        self.leave(was_delivered=True)
        return self.written(is_done=is_done)

    def bury(self) -> str:
        """It was written to the dead-letter topic."""
        self.partition.on_dead_lettered(AT, AT + 1)
        return NOTHING

    def written_as(self) -> str:
        """The durable state of the record."""
        write = self.partition.next_write()
        for first, last, state, _ in () if write is None else write.batches:
            if first <= AT <= last:
                return RecordState(state).name.capitalize()
        return NOTHING


Act = Callable[[RecordScenario], str]
"""Causes the event; returns the response."""


class RecordCase(NamedTuple):
    """An event of a record."""

    place: TransitionKey
    kind: RecordSituation
    act: Act
    rests_ms: int = 0

    def play(self) -> TransitionRow:
        """Cause the event; returns the state to write, the response, and the change of the
        delivery count."""
        record = RecordScenario(self.kind, rests_ms=self.rests_ms)
        run = record.run()
        assert run is not None
        before = run.delivery_count
        answer = self.act(record)
        after = record.run()
        change = 0 if after is None else after.delivery_count - before
        return TransitionRow(
            record.name(), record.written_as(), answer, f"{change:+}" if change else NOTHING
        )


def _kinds() -> Iterator[RecordSituation]:
    states = ("Available", "Acquired", "Acknowledged", "Archiving", "Archived")
    for state, deliveries, has_topic in product(states, (1, LIMIT), (False, True)):
        yield RecordSituation(state, deliveries, has_topic)
    for becomes, deliveries, has_topic in product((*AcknowledgeType,), (1, LIMIT), (False, True)):
        if becomes is not AcknowledgeType.RENEW:
            yield RecordSituation(WRITING, deliveries, has_topic, becomes)


def _fate(kind: RecordSituation) -> str:
    """The condition of an event without an acknowledgement."""
    if not kind.is_last:
        return "deliveries are left"
    return "it was the last delivery" + (", dead-letter topic" if kind.has_topic else "")


def _where(kind: RecordSituation) -> str:
    return "dead-letter topic" if kind.has_topic else "no dead-letter topic"


def record_cases() -> Iterator[RecordCase]:
    """Every event in every state; all events with one key must have the same results."""
    for kind in _kinds():
        yield from _readings(kind)
        yield from _acknowledgements(kind)
        yield from _ends(kind)
        if kind.state == WRITING:
            yield from _writes(kind)


def _at(kind: RecordSituation, event: str, condition: str, act: Act) -> RecordCase:
    return RecordCase(TransitionKey(kind.place, event, condition), kind, act)


def _readings(kind: RecordSituation) -> Iterator[RecordCase]:
    is_free = kind.state == "Available"
    yield _at(kind, "acquire", _fate(kind) if is_free else NOTHING, RecordScenario.acquire)
    if is_free and not kind.is_last:
        resting = _at(
            kind,
            "acquire",
            "redelivery is delayed (share.redelivery.delay.ms)",
            RecordScenario.acquire,
        )
        yield resting._replace(rests_ms=DELAY_MS)
    yield _at(kind, "the log has no record there", NOTHING, RecordScenario.is_void)
    yield _at(kind, "the log start moves past it", NOTHING, RecordScenario.begin_later)


def _acknowledgements(kind: RecordSituation) -> Iterator[RecordCase]:
    for verdict in AcknowledgeType:
        condition = NOTHING
        if kind.state == "Acquired":
            condition = "by its member"
            if verdict is AcknowledgeType.RELEASE:
                condition += f", {_fate(kind)}"
            elif verdict is AcknowledgeType.REJECT:
                condition += f", {_where(kind)}"
        name = verdict.name.lower()

        def by_holder(record: RecordScenario, verdict: AcknowledgeType = verdict) -> str:
            return record.acknowledged(verdict)

        def by_another(record: RecordScenario, verdict: AcknowledgeType = verdict) -> str:
            return record.acknowledged(verdict, "other")

        def too_late(record: RecordScenario, verdict: AcknowledgeType = verdict) -> str:
            record.now_ms += record.group_settings.lock_duration_ms
            return record.acknowledged(verdict)

        yield _at(kind, name, condition, by_holder)
        if kind.state == "Acquired":
            yield _at(kind, name, "by another", by_another)
            yield _at(kind, name, "by its member, after the lock has expired", too_late)


def _ends(kind: RecordSituation) -> Iterator[RecordCase]:
    fate = _fate(kind) if kind.state == "Acquired" else NOTHING
    yield _at(kind, "the lock expires", fate, RecordScenario.let_time_pass)
    yield _at(kind, "its member leaves", fate, lambda record: record.leave(was_delivered=True))
    yield _at(
        kind,
        "its member leaves undelivered",
        NOTHING,
        lambda record: record.leave(was_delivered=False),
    )
    yield _at(kind, "it is in the dead-letter topic", NOTHING, RecordScenario.bury)


def _writes(kind: RecordSituation) -> Iterator[RecordCase]:
    assert kind.becomes is not None
    name = kind.becomes.name.lower()
    if kind.becomes is AcknowledgeType.RELEASE:
        name += f", {_fate(kind)}"
    elif kind.becomes is AcknowledgeType.REJECT:
        name += f", {_where(kind)}"
    yield _at(kind, "it is written", name, lambda record: record.written(is_done=True))
    yield _at(
        kind,
        "it is written",
        f"{name}, after the lock has expired",
        lambda record: record.lose_lock(is_done=True),
    )
    yield _at(kind, "it cannot be written", NOTHING, lambda record: record.written(is_done=False))
    yield _at(
        kind,
        "it cannot be written",
        f"after the lock has expired, {_fate(kind)}",
        lambda record: record.lose_lock(is_done=False),
    )
    yield _at(
        kind,
        "it cannot be written",
        f"its member has left, {_fate(kind)}",
        lambda record: record.lose_member(is_done=False),
    )
    yield _at(
        kind,
        "it is written",
        f"{name}, its member has left",
        lambda record: record.lose_member(is_done=True),
    )
