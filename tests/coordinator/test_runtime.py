"""The runtime with a small shard: batches, deferred replies, failed appends, loading, timers."""

from typing import Final, NamedTuple

import pytest

from odradek.coordinator.outcome import (
    NO_REQUEST,
    Answer,
    Command,
    Effect,
    ErrorReply,
    Outcome,
    ShardReply,
    Timer,
    TimerKey,
    TransactionalRecord,
    TransactionMarker,
)
from odradek.coordinator.runtime import ShardRuntime, ShardState, error_of_failed_append
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.protocol.errors import ErrorCode, ProtocolError
from tests.support.shard_playbook import log_entries

NOW_MS = 1_000


class Put(NamedTuple):
    """Write the pairs, and answer with the number of keys."""

    pairs: tuple[tuple[str, str], ...]
    is_atomic: bool = True


class Get(NamedTuple):
    """Respond with the newest value, which depends on all earlier records."""

    key: str


class Peek(NamedTuple):
    """Answer with the committed value, at once."""

    key: str


class Wait(NamedTuple):
    """The next Put responds to it."""


class Alarm(NamedTuple):
    """Set a timer that writes its own name when it is due."""

    name: str
    deadline_ms: int | None


class Pair(NamedTuple):
    key: str
    value: str


class Dictionary:
    """A shard that keeps pairs of strings."""

    is_log_compacted: Final = True

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.table: TimelineTable[str, str] = TimelineTable(self.timeline)
        self.waiting: list[int] = []
        self.lost: list[tuple[Pair, ...]] = []
        self.loaded_at_ms = -1

    def encode(self, record: Pair) -> tuple[bytes, bytes | None]:
        if record.value == "unwritable":
            raise ProtocolError("no form for this")
        return record.key.encode(), record.value.encode()

    def decode(self, key: bytes, value: bytes | None) -> Pair | None:
        return None if value is None else Pair(key.decode(), value.decode())

    def replay(self, record: Pair) -> None:
        self.table.put(record.key, record.value)

    def handle(self, command: Command, now_ms: int) -> Outcome[Pair]:
        request = command.request
        match request:
            case Put(pairs, is_atomic):
                replies = [ShardReply(waiting, "woken") for waiting in self.waiting]
                self.waiting.clear()
                replies.append(ShardReply(command.request_id, "done"))
                records = tuple(Pair(key, value) for key, value in pairs)
                return Outcome(records=records, replies=tuple(replies), is_atomic=is_atomic)
            case Get(key):
                return Outcome(replies=(ShardReply(command.request_id, self.table.get(key)),))
            case Peek(key):
                value = self.table.committed(key)
                return Outcome(replies=(ShardReply(command.request_id, value, is_immediate=True),))
            case Alarm(name, deadline_ms):
                return Outcome(
                    replies=(ShardReply(command.request_id, None),),
                    timers=(Timer(("alarm", name), deadline_ms),),
                )
            case _:
                self.waiting.append(command.request_id)
                return Outcome()

    def fire(self, key: TimerKey, now_ms: int) -> Outcome[Pair]:
        return Outcome(records=(Pair(key[1], str(now_ms)),))

    def on_loaded(self, now_ms: int) -> Outcome[Pair]:
        self.loaded_at_ms = now_ms
        return Outcome()

    def on_append_failed(self, records: tuple[Pair, ...], now_ms: int) -> Outcome[Pair]:
        self.lost.append(records)
        return Outcome()


class Stage:
    """A runtime and its answers; appends succeed or fail by hand."""

    def __init__(self, *, batch_bytes_max: int = 1_000_000, is_loaded: bool = True) -> None:
        self.shard = Dictionary()
        self.runtime = ShardRuntime(self.shard, batch_bytes_max=batch_bytes_max)
        self.answers: dict[int, Answer] = {}
        self.next_id = 0
        if is_loaded:
            self.hear(self.runtime.finish_loading(next_offset=0, now_ms=NOW_MS))

    def hear(self, answers: list[Answer]) -> None:
        for answer in answers:
            assert answer.request_id not in self.answers, "answered twice"
            self.answers[answer.request_id] = answer

    def state(self) -> ShardState:
        return self.runtime.state

    def ask(self, request: object) -> int:
        self.next_id += 1
        self.hear(self.runtime.execute(Command(request=request, request_id=self.next_id), NOW_MS))
        return self.next_id

    def value(self, request_id: int) -> object:
        answer = self.answers[request_id]
        assert isinstance(answer, ShardReply), answer
        return answer.response

    def refusal(self, request_id: int) -> ErrorCode:
        answer = self.answers[request_id]
        assert isinstance(answer, ErrorReply), answer
        return answer.error_code


def put(key: str, value: str) -> Put:
    return Put(((key, value),))


def test_a_reply_waits_until_its_records_are_committed() -> None:
    stage = Stage()
    write = stage.ask(put("a", "1"))
    [batch] = stage.runtime.take_batches()
    assert batch.entries == [(b"a", b"1")]
    stage.hear(stage.runtime.appended(batch, 0))
    assert stage.answers == {}
    stage.hear(stage.runtime.on_high_watermark_updated(0, NOW_MS))
    assert stage.answers == {}
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.value(write) == "done"


def test_replies_without_records_wait_for_earlier_records() -> None:
    stage = Stage()
    assert stage.value(stage.ask(Get("a"))) is None
    stage.ask(put("a", "1"))
    newest = stage.ask(Get("a"))
    committed = stage.ask(Peek("a"))
    assert newest not in stage.answers
    assert stage.value(committed) is None
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 0))
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.value(newest) == "1"
    assert stage.value(stage.ask(Peek("a"))) == "1"


def test_the_commands_of_one_turn_share_a_batch() -> None:
    stage = Stage()
    for index in range(5):
        stage.ask(put(str(index), "x"))
    [batch] = stage.runtime.take_batches()
    assert len(batch.entries) == 5
    assert not stage.runtime.has_batches
    assert stage.runtime.take_batches() == []


def test_batches_are_closed_before_they_are_too_large() -> None:
    stage = Stage(batch_bytes_max=200)
    for index in range(5):
        stage.ask(put(str(index), "x" * 40))
    sizes = [len(batch.entries) for batch in stage.runtime.take_batches()]
    assert sizes == [2, 2, 1]


def test_the_records_of_one_command_are_in_one_batch() -> None:
    stage = Stage(batch_bytes_max=400)
    stage.ask(Put(tuple((str(index), "x") for index in range(7))))
    stage.ask(Put(tuple((str(index), "y") for index in range(7))))
    assert [len(batch.entries) for batch in stage.runtime.take_batches()] == [7, 7]


def test_a_command_that_is_too_large_for_a_batch_is_refused() -> None:
    stage = Stage(batch_bytes_max=200)
    refused = stage.ask(put("a", "x" * 1_000))
    assert stage.refusal(refused) == ErrorCode.MESSAGE_TOO_LARGE
    assert stage.shard.lost == [(Pair("a", "x" * 1_000),)]
    assert stage.value(stage.ask(Get("a"))) is None
    assert not stage.runtime.has_batches


def test_a_record_that_cannot_be_encoded_is_refused_like_one_too_large() -> None:
    stage = Stage()
    refused = stage.ask(Put((("a", "1"), ("b", "unwritable"))))
    assert stage.refusal(refused) == ErrorCode.MESSAGE_TOO_LARGE
    assert stage.value(stage.ask(Get("a"))) is None
    assert not stage.runtime.has_batches


def test_the_records_of_an_outcome_that_is_not_atomic_may_be_in_several_batches() -> None:
    stage = Stage(batch_bytes_max=200)
    pairs = tuple((str(index), "x" * 40) for index in range(5))
    write = stage.ask(Put(pairs, is_atomic=False))
    batches = stage.runtime.take_batches()
    assert [len(batch.entries) for batch in batches] == [2, 2, 1]
    for base_offset, batch in zip((0, 2, 4), batches, strict=True):
        stage.hear(stage.runtime.appended(batch, base_offset))
    stage.hear(stage.runtime.on_high_watermark_updated(4, NOW_MS))
    assert write not in stage.answers
    stage.hear(stage.runtime.on_high_watermark_updated(5, NOW_MS))
    assert stage.value(write) == "done"


def test_several_batches_in_flight_are_committed_in_order() -> None:
    stage = Stage()
    first = stage.ask(put("a", "1"))
    [one] = stage.runtime.take_batches()
    second = stage.ask(put("a", "2"))
    [two] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(one, 0))
    stage.hear(stage.runtime.appended(two, 1))
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.value(first) == "done"
    assert second not in stage.answers
    assert stage.shard.table.committed("a") == "1"
    stage.hear(stage.runtime.on_high_watermark_updated(2, NOW_MS))
    assert stage.value(second) == "done"


# -- failure --------------------------------------------------------------------------------------


def test_a_failed_batch_is_reverted_with_all_later_ones() -> None:
    stage = Stage()
    stage.ask(put("a", "1"))
    [kept] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(kept, 0))
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    lost = stage.ask(put("a", "2"))
    [batch] = stage.runtime.take_batches()
    unsent = stage.ask(put("b", "3"))
    stage.hear(stage.runtime.append_failed(batch, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS))
    assert stage.refusal(lost) == stage.refusal(unsent) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state() is ShardState.ACTIVE
    assert dict(stage.shard.table.items()) == {"a": "1"}
    assert stage.shard.lost == [(Pair("a", "2"), Pair("b", "3"))]
    resumed_commands = stage.ask(put("a", "4"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 1))
    stage.hear(stage.runtime.on_high_watermark_updated(2, NOW_MS))
    assert stage.value(resumed_commands) == "done"


def test_after_a_failed_batch_the_later_ones_in_flight_are_awaited() -> None:
    stage = Stage()
    first = stage.ask(put("a", "1"))
    [one] = stage.runtime.take_batches()
    second = stage.ask(put("a", "2"))
    [two] = stage.runtime.take_batches()
    stage.hear(stage.runtime.append_failed(one, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS))
    assert stage.state() is ShardState.DRAINING
    assert stage.refusal(first) == stage.refusal(second) == ErrorCode.NOT_COORDINATOR
    assert stage.refusal(stage.ask(Get("a"))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.hear(stage.runtime.append_failed(two, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS))
    assert stage.state() is ShardState.ACTIVE
    assert stage.value(stage.ask(Get("a"))) is None
    assert stage.shard.lost == [(Pair("a", "1"), Pair("a", "2"))]


def test_batches_before_a_failed_one_are_kept() -> None:
    stage = Stage()
    first = stage.ask(put("a", "1"))
    [one] = stage.runtime.take_batches()
    second = stage.ask(put("a", "2"))
    [two] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(one, 0))
    stage.hear(stage.runtime.append_failed(two, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS))
    assert stage.state() is ShardState.DRAINING
    assert stage.refusal(second) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert first not in stage.answers
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.value(first) == "done"
    assert stage.state() is ShardState.ACTIVE
    assert dict(stage.shard.table.items()) == {"a": "1"}


def test_every_batch_has_its_expected_log_end_offset() -> None:
    stage = Stage()
    offsets = []
    for keys in ("ab", "c", "d"):
        stage.ask(Put(tuple((key, "1") for key in keys)))
        offsets += [batch.expected_offset for batch in stage.runtime.take_batches()]
    assert offsets == [0, 2, 3]


def test_a_batch_that_fails_because_of_an_earlier_one_is_reverted_with_it() -> None:
    stage = Stage()
    stage.ask(put("a", "1"))
    [one] = stage.runtime.take_batches()
    stage.ask(put("b", "2"))
    [two] = stage.runtime.take_batches()
    stage.hear(stage.runtime.append_failed(one, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS))
    stage.hear(stage.runtime.append_failed(two, ErrorCode.OFFSET_OUT_OF_RANGE, NOW_MS))
    assert stage.state() is ShardState.ACTIVE
    assert dict(stage.shard.table.items()) == {}
    stage.ask(put("c", "3"))
    [resumed_commands] = stage.runtime.take_batches()
    assert resumed_commands.expected_offset == 0


def test_an_unexpected_log_end_offset_fails_the_shard() -> None:
    stage = Stage()
    stage.ask(put("a", "1"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.append_failed(batch, ErrorCode.OFFSET_OUT_OF_RANGE, NOW_MS))
    assert stage.state() is ShardState.FAILED


def test_a_written_batch_after_a_failed_one_fails_the_shard() -> None:
    stage = Stage()
    waiting = stage.ask(Wait())
    refused = stage.ask(put("a", "1"))
    [one] = stage.runtime.take_batches()
    behind = stage.ask(put("a", "2"))
    [two] = stage.runtime.take_batches()
    stage.hear(stage.runtime.append_failed(one, ErrorCode.MESSAGE_TOO_LARGE, NOW_MS))
    stage.hear(stage.runtime.appended(two, 0))
    assert stage.state() is ShardState.FAILED
    assert {waiting, refused, behind} <= stage.answers.keys()


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_an_append_of_unknown_outcome_fails_the_shard(code: ErrorCode, answer: ErrorCode) -> None:
    stage = Stage()
    waiting = stage.ask(Wait())
    write = stage.ask(put("a", "1"))
    [batch] = stage.runtime.take_batches()
    late = stage.ask(Wait())
    stage.hear(stage.runtime.append_failed(batch, code, NOW_MS))
    assert stage.state() is ShardState.FAILED
    assert stage.refusal(write) == stage.refusal(late) == answer
    assert waiting in stage.answers
    assert stage.refusal(stage.ask(Get("a"))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.runtime.next_check_ms() is None


def test_a_foreign_record_in_the_log_fails_the_shard() -> None:
    stage = Stage()
    write = stage.ask(put("a", "1"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 1))
    assert stage.state() is ShardState.FAILED
    assert stage.refusal(write) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_errors_of_the_log_become_errors_of_the_coordinator() -> None:
    assert error_of_failed_append(ErrorCode.NOT_ENOUGH_REPLICAS) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert error_of_failed_append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert error_of_failed_append(ErrorCode.KAFKA_STORAGE_ERROR) == ErrorCode.NOT_COORDINATOR
    assert error_of_failed_append(ErrorCode.RECORD_LIST_TOO_LARGE) == ErrorCode.MESSAGE_TOO_LARGE


# -- loading, unloading, timers -------------------------------------------------------------------


def test_loading_replays_slices_and_then_serves() -> None:
    stage = Stage(is_loaded=False)
    assert stage.refusal(stage.ask(Get("a"))) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.runtime.load([(b"a", b"1"), (b"gone", None), (None, b"no key")])
    stage.runtime.load([(b"a", b"2")])
    stage.hear(stage.runtime.finish_loading(next_offset=4, now_ms=7))
    assert stage.shard.loaded_at_ms == 7
    assert stage.value(stage.ask(Get("a"))) == "2"
    assert stage.shard.table.committed("a") == "2"
    stage.ask(put("a", "3"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 4))
    assert stage.state() is ShardState.ACTIVE


def test_replies_wait_for_the_commit_of_records_loaded_beyond_the_high_watermark() -> None:
    """Found by the simulation: a leader loaded a generation that was never committed and returned
    its assignment to a member; its successor assigned the same partitions to another one."""
    stage = Stage(is_loaded=False)
    stage.runtime.load([(b"a", b"1")])
    stage.runtime.load([(b"a", b"2"), (b"b", b"1")], is_committed=False)
    stage.hear(stage.runtime.finish_loading(next_offset=3, now_ms=7))
    newest = stage.ask(Get("a"))
    assert newest not in stage.answers
    assert stage.value(stage.ask(Peek("a"))) == "1"
    written = stage.ask(put("a", "3"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 3))
    stage.hear(stage.runtime.on_high_watermark_updated(2, NOW_MS))
    assert stage.runtime.has_uncommitted_load
    assert newest not in stage.answers
    stage.hear(stage.runtime.on_high_watermark_updated(3, NOW_MS))
    assert stage.value(newest) == "2"
    assert stage.shard.table.committed("a") == "2"
    assert written not in stage.answers
    stage.hear(stage.runtime.on_high_watermark_updated(4, NOW_MS))
    assert written in stage.answers


def test_a_failed_batch_after_an_uncommitted_load_does_not_revert_the_load() -> None:
    stage = Stage(is_loaded=False)
    stage.runtime.load([(b"a", b"1")], is_committed=False)
    stage.hear(stage.runtime.finish_loading(next_offset=1, now_ms=7))
    lost = stage.ask(put("a", "2"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.append_failed(batch, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS))
    assert stage.refusal(lost) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state() is ShardState.DRAINING
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.state() is ShardState.ACTIVE
    assert stage.value(stage.ask(Get("a"))) == "1"


def test_unloading_refuses_all_waiting_requests() -> None:
    stage = Stage()
    waiting = stage.ask(Wait())
    writing = stage.ask(put("a", "1"))
    stage.hear(stage.runtime.unload())
    assert stage.refusal(waiting) == stage.refusal(writing) == ErrorCode.NOT_COORDINATOR
    assert stage.refusal(stage.ask(Get("a"))) == ErrorCode.NOT_COORDINATOR
    assert stage.runtime.take_batches() == []


def test_a_parked_request_is_answered_when_the_records_of_a_later_one_are_committed() -> None:
    stage = Stage()
    waiting = stage.ask(Wait())
    stage.ask(put("a", "1"))
    [batch] = stage.runtime.take_batches()
    stage.hear(stage.runtime.appended(batch, 0))
    stage.hear(stage.runtime.on_high_watermark_updated(1, NOW_MS))
    assert stage.value(waiting) == "woken"


def test_a_timer_that_fires_can_write_records() -> None:
    stage = Stage()
    stage.ask(Alarm("late", 3_000))
    stage.ask(Alarm("early", 2_000))
    stage.ask(Alarm("never", 1_500))
    stage.ask(Alarm("never", None))
    assert stage.runtime.next_check_ms() == 1_500, "the entry of the cancelled timer"
    stage.hear(stage.runtime.fire_due(2_500))
    assert dict(stage.shard.table.items()) == {"early": "2500"}
    assert stage.runtime.next_check_ms() == 3_000
    assert stage.runtime.has_batches


def test_many_due_timers_are_fired_in_slices() -> None:
    stage = Stage()
    for index in range(10):
        stage.ask(Alarm(str(index), 2_000))
    stage.hear(stage.runtime.fire_due(2_000, count_max=4))
    assert len(stage.shard.table) == 4
    assert stage.runtime.next_check_ms() == 2_000


def test_a_command_without_a_request_id_has_no_reply() -> None:
    stage = Stage()
    stage.hear(stage.runtime.execute(Command(request=Get("a"), request_id=NO_REQUEST), NOW_MS))
    assert stage.answers == {}


# -- transactions and what is done elsewhere ------------------------------------------------------


class Ledger(Dictionary):
    """Writes outcomes as they are, and keeps what it replays."""

    def __init__(self) -> None:
        super().__init__()
        self.replayed: list[object] = []

    def replay(self, record: object) -> None:
        self.replayed.append(record)

    def handle(self, command: Command, now_ms: int) -> Outcome[Pair]:
        request = command.request
        if isinstance(request, Outcome):
            return request
        return super().handle(command, now_ms)


def told(*outcomes: Outcome[object]) -> ShardRuntime[Pair]:
    """A runtime with these outcomes."""
    runtime: ShardRuntime[Pair] = ShardRuntime(Ledger())
    runtime.finish_loading(next_offset=0, now_ms=NOW_MS)
    for outcome in outcomes:
        runtime.execute(Command(request=outcome), NOW_MS)
    return runtime


def test_effects_wait_for_the_commit() -> None:
    runtime = told(Outcome(records=(Pair("a", "1"),), effects=(Effect("go"),)))
    assert runtime.take_effects() == []
    [batch] = runtime.take_batches()
    runtime.appended(batch, 0)
    assert runtime.take_effects() == []
    runtime.on_high_watermark_updated(1, NOW_MS)
    assert runtime.take_effects() == [Effect("go")]
    assert runtime.take_effects() == []


def test_lingering_records_become_urgent_when_a_request_waits_for_them() -> None:
    patient: Outcome[object] = Outcome(
        records=(Pair("a", "1"),), replies=(ShardReply(1, None),), can_linger=True
    )
    runtime = told(patient)
    assert (runtime.has_batches, runtime.has_urgent_batches) == (True, False)
    runtime.execute(Command(request=Get("a"), request_id=2), NOW_MS)
    assert (runtime.has_batches, runtime.has_urgent_batches) == (True, True)
    [batch] = runtime.take_batches()
    assert batch.records == [Pair("a", "1")]


def test_lingering_records_share_the_next_batch() -> None:
    patient: Outcome[object] = Outcome(records=(Pair("a", "1"),), can_linger=True)
    runtime = told(patient, Outcome(records=(Pair("b", "2"),)), patient)
    assert runtime.has_urgent_batches
    [batch] = runtime.take_batches()
    assert [record.key for record in batch.records] == ["a", "b", "a"]
    assert not runtime.has_urgent_batches


def test_effects_of_a_failed_append_are_dropped() -> None:
    runtime = told(Outcome(records=(Pair("a", "1"),), effects=(Effect("go"),)))
    [batch] = runtime.take_batches()
    runtime.append_failed(batch, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS)
    assert runtime.take_effects() == []
    assert runtime.state is ShardState.ACTIVE


def test_transactional_records_and_markers_have_batches_of_their_own() -> None:
    marker = TransactionMarker(7, 1, 3, is_commit=True)
    runtime = told(
        Outcome(records=(Pair("a", "1"),)),
        Outcome(records=(TransactionalRecord(7, 0, Pair("b", "2")),)),
        Outcome(records=(TransactionalRecord(7, 0, Pair("c", "3")),)),
        Outcome(records=(TransactionalRecord(8, 0, Pair("d", "4")),)),
        Outcome(records=(marker,)),
        Outcome(records=(Pair("e", "5"),)),
    )
    batches = runtime.take_batches()
    assert [batch.producer for batch in batches] == [None, (7, 0), (8, 0), None, None]
    assert [batch.offset_count for batch in batches] == [1, 2, 1, 1, 1]
    entries = [entry for batch in batches for entry in log_entries(batch)]
    offset = 0
    for batch in batches:
        runtime.appended(batch, offset)
        offset += batch.offset_count
    assert runtime.state is ShardState.ACTIVE
    # Whoever loads the log replays the same.
    loaded: ShardRuntime[Pair] = ShardRuntime(Ledger())
    loaded.load(entries)
    loaded.finish_loading(next_offset=offset, now_ms=NOW_MS)
    shards = runtime.shard, loaded.shard
    live, resumed_commands = (shard.replayed for shard in shards if isinstance(shard, Ledger))
    assert live == resumed_commands
    assert marker in resumed_commands


def test_resumed_commands_are_handled_after_the_outcome() -> None:
    runtime = told()
    put_off = Command(request=Outcome(replies=(ShardReply(5, "late"),)), request_id=5)
    runtime.execute(Command(request=Wait(), request_id=5), NOW_MS)
    answers = runtime.execute(Command(request=Outcome(resumed_commands=(put_off,))), NOW_MS)
    assert answers == [ShardReply(5, "late")]
    # Whoever has been answered is not decided again.
    assert runtime.execute(Command(request=Outcome(resumed_commands=(put_off,))), NOW_MS) == []
