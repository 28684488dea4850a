"""The rules of a share partition."""

from collections.abc import Sequence

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acknowledgements import AcknowledgeType
from odradek.coordinator.share.acquisition import (
    AcquiredRange,
    AcquireOptions,
    LogBatch,
    ReadPosition,
)
from odradek.coordinator.share.partition import (
    NOTHING_TO_WRITE,
    AcknowledgeResult,
    DeadLetterRange,
    SharePartition,
    StateWrite,
)
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import AcknowledgementBatch

SETTINGS = ShareGroupSettings(lock_duration_ms=1_000)
ACCEPT, RELEASE, REJECT = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
)
EVERYTHING = AcquireOptions(records_max=10_000)


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


class Stage:
    """A share partition with its clock and its writes."""

    def __init__(
        self,
        start: int = 0,
        batches: Sequence[PersisterStateBatch] = (),
        group_settings: ShareGroupSettings = SETTINGS,
    ) -> None:
        self.now = 100
        self.partition = SharePartition(
            start, batches, now_ms=self.now, group_settings=group_settings
        )
        self.writes: list[StateWrite] = []

    def acquire(
        self, *log: tuple[int, int], member: str = "a", options: AcquireOptions = EVERYTHING
    ) -> list[AcquiredRange]:
        """Acquire from a log that has these batches."""
        position = self.partition.position(self.now, options.records_max)
        if position is None:
            return []
        end = position.end_offset
        found = [
            LogBatch(*each)
            for each in log
            if each[1] > position.offset and (end is None or each[0] < end)
        ]
        return self.partition.acquire(
            member,
            position.offset,
            found,
            options,
            now_ms=self.now,
        )

    def acknowledge(self, *batches: AcknowledgementBatch, member: str = "a") -> AcknowledgeResult:
        return self.partition.acknowledge(member, batches, now_ms=self.now)

    def write(self, *, is_done: bool = True) -> StateWrite:
        write = self.partition.next_write()
        assert write is not None, "there is something to write"
        self.writes.append(write)
        self.partition.on_written(is_done=is_done, now_ms=self.now)
        return write

    def accept(self, first: int, last: int, member: str = "a") -> StateWrite:
        assert not self.acknowledge(batch(first, last, ACCEPT), member=member).error_code
        return self.write()

    def leave(self, member: str = "a", *, was_delivered: bool = True) -> None:
        self.partition.release_member(member, was_delivered=was_delivered, now_ms=self.now)

    def sleep(self, ms: int) -> None:
        self.now += ms
        deadline = self.partition.next_deadline_ms()
        if deadline is not None and deadline <= self.now:
            self.partition.on_deadline(self.now)

    def states(self) -> list[tuple[int, int, str, int]]:
        return [
            (run.start, run.end, run.state.name.lower(), run.delivery_count)
            for run in self.partition.runs()
        ]


def test_accepted_records_at_the_start_move_the_start_offset() -> None:
    stage = Stage(10)
    assert stage.acquire((10, 20), (20, 30)) == [AcquiredRange(10, 30, 1)]
    assert stage.accept(10, 29) == StateWrite(1, 30, 0, ())
    assert (stage.partition.start_offset, stage.partition.end_offset) == (30, 30)
    assert stage.states() == []


def test_only_the_member_that_acquired_a_record_may_acknowledge_it() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    assert stage.acquire((0, 10), member="b") == []
    assert (
        stage.acknowledge(batch(3, 3, ACCEPT), member="b").error_code
        is ErrorCode.INVALID_RECORD_STATE
    )
    assert stage.acknowledge(batch(3, 3, ACCEPT)).write_id == 1
    stage.write()
    assert stage.acknowledge(batch(3, 3, ACCEPT)).error_code is ErrorCode.INVALID_RECORD_STATE


def test_an_acknowledgement_beyond_the_end_offset_is_an_invalid_request() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    assert stage.acknowledge(batch(0, 10, ACCEPT)).error_code is ErrorCode.INVALID_REQUEST


def test_a_request_with_one_invalid_batch_changes_nothing() -> None:
    stage = Stage()
    stage.acquire((0, 10), options=AcquireOptions(records_max=5, is_exact=True))
    before = stage.states()
    refused = stage.acknowledge(batch(0, 2, ACCEPT), batch(4, 6, ACCEPT))
    assert refused.error_code is ErrorCode.INVALID_RECORD_STATE
    assert stage.states() == before
    assert stage.partition.next_write() is None


def test_an_acknowledgement_takes_effect_when_it_is_written() -> None:
    stage = Stage()
    stage.acquire((0, 4))
    stage.acknowledge(batch(0, 3, ACCEPT))
    assert stage.partition.start_offset == 0
    write = stage.partition.next_write()
    assert write == StateWrite(1, 4, 0, ())
    assert stage.partition.start_offset == 0
    stage.partition.on_written(is_done=True, now_ms=stage.now)
    assert stage.partition.start_offset == 4


def test_after_a_failed_write_records_are_acquired_as_before() -> None:
    stage = Stage()
    stage.acquire((0, 4))
    stage.acknowledge(batch(0, 3, ACCEPT))
    stage.write(is_done=False)
    assert stage.states() == [(0, 4, "acquired", 1)]
    assert stage.accept(0, 3).start_offset == 4


def test_the_next_write_has_all_changes_during_a_write() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    assert stage.acknowledge(batch(0, 0, ACCEPT)).write_id == 1
    assert stage.partition.next_write() == StateWrite(1, 1, 0, ())
    assert stage.acknowledge(batch(2, 3, ACCEPT)).write_id == 2
    assert stage.acknowledge(batch(5, 5, ACCEPT)).write_id == 2
    assert stage.partition.next_write() is None
    stage.partition.on_written(is_done=True, now_ms=stage.now)
    assert stage.partition.next_write() == StateWrite(
        2, 1, 3, (PersisterStateBatch(2, 3, 2, 1), PersisterStateBatch(5, 5, 2, 1))
    )


def test_a_failed_write_reverts_no_change_of_the_next_write() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    stage.acknowledge(batch(0, 0, ACCEPT))
    stage.partition.next_write()
    stage.acknowledge(batch(1, 1, ACCEPT))
    stage.partition.on_written(is_done=False, now_ms=stage.now)
    assert stage.write() == StateWrite(2, 0, 1, (PersisterStateBatch(1, 1, 2, 1),))


def test_a_released_record_is_delivered_again_with_a_higher_count() -> None:
    stage = Stage()
    stage.acquire((0, 2))
    stage.acknowledge(batch(0, 0, RELEASE), batch(1, 1, ACCEPT))
    assert stage.write().batches == (
        PersisterStateBatch(0, 0, 0, 1),
        PersisterStateBatch(1, 1, 2, 1),
    )
    assert stage.acquire((0, 2), member="b") == [AcquiredRange(0, 1, 2)]


@pytest.mark.parametrize("ending", ["release", "lock", "gone"])
def test_a_record_at_the_delivery_count_limit_is_archived(ending: str) -> None:
    stage = Stage(group_settings=ShareGroupSettings(lock_duration_ms=1_000, delivery_count_limit=3))
    for count in (1, 2, 3):
        assert stage.acquire((0, 1)) == [AcquiredRange(0, 1, count)]
        if ending == "release":
            stage.acknowledge(batch(0, 0, RELEASE))
        elif ending == "lock":
            stage.sleep(1_000)
        else:
            stage.leave()
        stage.write()
    assert stage.partition.start_offset == 1
    assert stage.acquire((0, 1)) == []


def test_a_member_that_leaves_does_not_use_up_a_delivery() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    stage.leave(was_delivered=False)
    assert stage.acquire((0, 5), member="b") == [AcquiredRange(0, 5, 1)]


def test_acknowledgements_after_the_lock_has_expired_are_refused() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    assert stage.partition.next_deadline_ms() == stage.now + 1_000
    stage.sleep(999)
    assert stage.acquire((0, 5), member="b") == []
    stage.sleep(1)
    assert stage.acknowledge(batch(0, 0, ACCEPT)).error_code is ErrorCode.INVALID_RECORD_STATE
    assert stage.acquire((0, 5), member="b") == [AcquiredRange(0, 5, 2)]


def test_an_expired_lock_is_void_also_before_its_timer_fires() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    stage.now += 1_000
    assert stage.acknowledge(batch(0, 0, ACCEPT)).error_code is ErrorCode.INVALID_RECORD_STATE


def test_renew_extends_the_lock_without_a_write() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    stage.sleep(600)
    assert stage.acknowledge(batch(1, 1, AcknowledgeType.RENEW)).write_id == NOTHING_TO_WRITE
    stage.sleep(600)
    assert stage.states() == [
        (0, 1, "available", 1),
        (1, 2, "acquired", 1),
        (2, 5, "available", 1),
    ]


def test_a_lock_does_not_expire_during_the_write_of_its_acknowledgement() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    stage.acknowledge(batch(0, 4, ACCEPT))
    stage.partition.next_write()
    stage.sleep(5_000)
    assert stage.states() == [(0, 5, "acquired", 1)]
    stage.partition.on_written(is_done=False, now_ms=stage.now)
    assert stage.states() == [(0, 5, "available", 1)]


def test_records_of_a_member_that_left_are_released_when_their_write_fails() -> None:
    stage = Stage()
    stage.acquire((0, 5))
    stage.acknowledge(batch(0, 4, ACCEPT))
    stage.partition.next_write()
    stage.leave()
    stage.partition.on_written(is_done=False, now_ms=stage.now)
    assert stage.states() == [(0, 5, "available", 1)]


def test_in_batch_optimized_mode_whole_batches_are_acquired_up_to_the_limit() -> None:
    stage = Stage()
    found = stage.acquire((0, 4), (4, 8), (8, 12), options=AcquireOptions(records_max=5))
    assert found == [AcquiredRange(0, 8, 1)]


def test_acquired_ranges_have_about_the_batch_size_and_end_with_batches() -> None:
    stage = Stage()
    options = AcquireOptions(records_max=100, batch_size=5)
    assert stage.acquire((0, 4), (4, 8), (8, 12), (12, 20), options=options) == [
        AcquiredRange(0, 8, 1),
        AcquiredRange(8, 20, 1),
    ]
    assert len(list(stage.partition.runs())) == 1


def test_in_record_limit_mode_the_limit_is_exact() -> None:
    stage = Stage()
    options = AcquireOptions(records_max=5, is_exact=True)
    assert stage.acquire((0, 4), (4, 8), options=options) == [AcquiredRange(0, 5, 1)]
    assert stage.acquire((0, 4), (4, 8), options=options, member="b") == [AcquiredRange(5, 8, 1)]


def test_records_in_flight_are_limited() -> None:
    stage = Stage(group_settings=ShareGroupSettings(record_locks_max=100))
    assert stage.acquire((0, 150)) == [AcquiredRange(0, 100, 1)]
    assert stage.partition.position(stage.now, 10) is None
    stage.accept(0, 9)
    assert stage.partition.position(stage.now, 10) == ReadPosition(100, None)
    assert stage.acquire((0, 150)) == [AcquiredRange(100, 110, 1)]


def test_records_in_a_final_state_do_not_count_as_in_flight() -> None:
    stage = Stage(group_settings=ShareGroupSettings(record_locks_max=100))
    stage.acquire((0, 200))
    stage.accept(1, 99)
    assert stage.acquire((0, 200)) == [AcquiredRange(100, 199, 1)]


def test_offsets_without_records_are_archived() -> None:
    stage = Stage()
    assert stage.acquire((3, 5), (8, 10)) == [AcquiredRange(3, 5, 1), AcquiredRange(8, 10, 1)]
    assert stage.partition.start_offset == 3
    assert stage.accept(3, 4).start_offset == 8


def test_markers_and_aborted_records_are_archived() -> None:
    stage = Stage()
    found = stage.partition.acquire(
        "a",
        0,
        [LogBatch(0, 5, is_void=True), LogBatch(5, 8), LogBatch(8, 9, is_void=True)],
        EVERYTHING,
        now_ms=stage.now,
    )
    assert found == [AcquiredRange(5, 8, 1)]
    assert stage.partition.start_offset == 5
    assert stage.accept(5, 7).start_offset == 9


def test_a_higher_log_start_offset_drops_acquired_records_too() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    stage.acknowledge(batch(2, 7, ACCEPT))
    stage.partition.on_log_start(5)
    assert stage.partition.start_offset == 5
    assert stage.write() == StateWrite(1, 8, 0, ())
    assert stage.partition.start_offset == 8
    assert stage.acknowledge(batch(3, 8, ACCEPT)).error_code == ErrorCode.NONE


def test_a_log_start_offset_beyond_the_end_moves_start_and_end() -> None:
    stage = Stage()
    stage.acquire((0, 10))
    stage.partition.on_log_start(50)
    assert (stage.partition.start_offset, stage.partition.end_offset) == (50, 50)
    assert stage.write() == StateWrite(1, 50, 0, ())


def test_a_record_with_many_deliveries_is_throttled_and_delivered_alone_at_last() -> None:
    stage = Stage(group_settings=ShareGroupSettings(lock_duration_ms=1_000, delivery_count_limit=6))
    sizes = []
    for _ in range(6):
        found = stage.acquire((0, 16))
        sizes.append(sum(each.end - each.start for each in found))
        stage.sleep(1_000)
    # Suspect from the third redelivery on: a half of the batch, a quarter of it, one.
    assert sizes[:4] == [16, 16, 16, 8]
    stage = Stage(0, [PersisterStateBatch(0, 15, 0, 4)], stage.partition.group_settings)
    assert stage.acquire((0, 16)) == [AcquiredRange(0, 4, 5)]
    stage = Stage(0, [PersisterStateBatch(0, 15, 0, 5)], stage.partition.group_settings)
    assert stage.acquire((0, 16)) == [AcquiredRange(0, 1, 6)]


def test_the_last_delivery_is_made_alone_after_the_records_before_it() -> None:
    stage = Stage(0, [PersisterStateBatch(4, 4, 0, 4)])
    assert stage.acquire((0, 8)) == [AcquiredRange(0, 4, 1)]
    assert stage.acquire((0, 8)) == [AcquiredRange(4, 5, 5)]
    assert stage.acquire((0, 8)) == [AcquiredRange(5, 8, 1)]


def test_a_rejected_record_is_archived_without_a_dead_letter_topic() -> None:
    stage = Stage()
    stage.acquire((0, 2))
    stage.acknowledge(batch(0, 1, REJECT))
    assert stage.write().start_offset == 2
    assert stage.partition.take_dead_letters() == []


def test_a_rejected_record_goes_to_the_dead_letter_topic_before_it_is_archived() -> None:
    stage = Stage(group_settings=ShareGroupSettings(dead_letter_topic="dlq.t"))
    stage.acquire((0, 4))
    stage.acknowledge(batch(0, 1, REJECT), batch(2, 3, ACCEPT))
    assert stage.partition.take_dead_letters() == [], "not before it is durable"
    assert stage.write() == StateWrite(
        1,
        0,
        2,
        (PersisterStateBatch(0, 1, RecordState.ARCHIVING, 1), PersisterStateBatch(2, 3, 2, 1)),
    )
    assert stage.partition.take_dead_letters() == [DeadLetterRange(0, 2, 1, is_rejected=True)]
    assert stage.partition.take_dead_letters() == [], "once"
    stage.partition.on_dead_lettered(0, 2)
    assert stage.write().start_offset == 4


def test_the_next_leader_continues_with_unfinished_dead_letters() -> None:
    stage = Stage(
        0, [PersisterStateBatch(0, 1, 3, 5)], ShareGroupSettings(dead_letter_topic="dlq.t")
    )
    assert stage.partition.take_dead_letters() == [DeadLetterRange(0, 2, 5, is_rejected=False)]


def test_the_redelivery_delay_grows_with_each_delivery() -> None:
    group_settings = ShareGroupSettings(
        lock_duration_ms=1_000, redelivery_delay_ms=200, redelivery_backoff=3.0
    )
    stage = Stage(group_settings=group_settings)
    stage.acquire((0, 2))
    stage.acknowledge(batch(0, 0, RELEASE))
    stage.write()
    stage.sleep(199)
    assert stage.acquire((0, 2)) == []
    stage.sleep(1)
    assert stage.acquire((0, 2)) == [AcquiredRange(0, 1, 2)]
    stage.acknowledge(batch(0, 0, RELEASE))
    stage.write()
    stage.sleep(599)
    assert stage.acquire((0, 1)) == []
    stage.sleep(1)
    assert stage.acquire((0, 1)) == [AcquiredRange(0, 1, 3)]


def test_the_next_leader_restarts_redelivery_delays() -> None:
    group_settings = ShareGroupSettings(redelivery_delay_ms=200)
    stage = Stage(0, [PersisterStateBatch(0, 0, 0, 1)], group_settings)
    assert stage.acquire((0, 1)) == []
    stage.sleep(200)
    assert stage.acquire((0, 1)) == [AcquiredRange(0, 1, 2)]


def test_loaded_batches_with_gaps_are_available_between_them() -> None:
    stage = Stage(5, [PersisterStateBatch(8, 9, 2, 1), PersisterStateBatch(12, 12, 0, 2)])
    assert stage.states() == [
        (5, 8, "available", 0),
        (8, 10, "acknowledged", 1),
        (10, 12, "available", 0),
        (12, 13, "available", 2),
    ]
    assert stage.acquire((0, 20)) == [
        AcquiredRange(5, 8, 1),
        AcquiredRange(10, 12, 1),
        AcquiredRange(12, 13, 3),
        AcquiredRange(13, 20, 1),
    ]


def test_a_consumer_without_lag_has_few_runs() -> None:
    stage = Stage()
    log = [(start, start + 7) for start in range(0, 700, 7)]
    most = 0
    for _ in range(100):
        for found in stage.acquire(*log, options=AcquireOptions(records_max=10)):
            stage.accept(found.start, found.end - 1)
        most = max(most, len(list(stage.partition.runs())))
    assert most <= 1
    assert stage.partition.start_offset == 700
