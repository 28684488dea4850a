"""The share partitions of a node: loading, writes of their state, and failures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odradek.cluster.metadata.records import PartitionChanged
from odradek.coordinator.share.acquisition import AcquireOptions, LogBatch
from odradek.coordinator.share.partition import SharePartition
from odradek.coordinator.share.requests import WriteShareState
from odradek.node.bus.reply import Reply
from odradek.node.router.share.persister import SharePersister
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Request
from tests.support.share_fetching import ACCEPT, RELEASE, ShareFetchHarness, batch, ranges
from tests.support.share_harness import GROUP, TOPIC
from tests.support.stores import batch_of


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareFetchHarness]:
    with ShareFetchHarness(tmp_path) as harness:
        yield harness


def machine_of(harness: ShareFetchHarness, partition: int = 0) -> SharePartition:
    machine = harness.led.hosted(GROUP)[harness.topic_partition(partition)].machine
    assert machine is not None
    return machine


class Failing:
    """A persister whose next writes fail."""

    def __init__(self, states: SharePersister, code: ErrorCode, count: int) -> None:
        self._states = states
        self._code = code
        self.failures_left = count
        self.close = states.close

    def call(self, request: Request[Any]) -> Reply[Any]:
        if not isinstance(request, WriteShareState) or not self.failures_left:
            return self._states.call(request)
        self.failures_left -= 1
        reply: Reply[Any] = Reply()
        reply.fail(ApiError(self._code))
        return reply


def break_writes(harness: ShareFetchHarness, code: ErrorCode, count: int = 1) -> Failing:
    failing = Failing(harness.services.share_persister, code, count)
    harness.led._persister = failing  # type: ignore[assignment]  # what is used of them
    return failing


def test_a_fetch_waits_for_a_state_that_is_not_initialized(tmp_path: Path) -> None:
    with ShareFetchHarness(tmp_path, is_initialised=False) as harness:
        harness.append(TOPIC, batch_of(2))
        member = harness.member()
        waiting = member.begin_fetch(0, max_wait_ms=5_000)
        harness.turn_loop(0.05)
        assert not waiting.done()
        harness.initialise(0)
        [[data]] = [topic.partitions for topic in member.end_fetch(waiting).responses]
        assert ranges(data) == [(0, 1, 1)]


def test_acknowledgements_of_one_turn_are_written_together(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(10))
    member = harness.member()
    member.fetch(0)
    appends = harness.bus.append_count
    replies = [
        harness.led.acknowledge(GROUP, "a", harness.topic_partition(), [batch(at, at, ACCEPT)])
        for at in range(5)
    ]
    for reply in replies:
        assert isinstance(reply, Reply)
        assert harness.result(reply) == ErrorCode.NONE
    assert harness.bus.append_count - appends == 2, "the first alone, the others together"
    assert machine_of(harness).start_offset == 5


def test_a_failed_write_is_an_error_and_the_record_can_be_acknowledged_again(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    break_writes(harness, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    code = member.acknowledge_partition(batch(0, 1, ACCEPT)).error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.acknowledge_partition(batch(0, 1, ACCEPT)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_fenced_share_partition_is_dropped_and_its_state_is_read_again(
    harness: ShareFetchHarness, code: ErrorCode, told: ErrorCode
) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    break_writes(harness, code)
    assert member.acknowledge_partition(batch(0, 1, ACCEPT)).error_code == told
    assert harness.led.count == 0
    assert ranges(member.fetch()[0]) == [(0, 1, 1)]


def test_pending_acknowledgements_fail_when_the_leader_has_moved(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    harness.bus.is_away = True
    reply = harness.led.acknowledge(GROUP, "a", harness.topic_partition(), [batch(0, 1, ACCEPT)])
    assert isinstance(reply, Reply)
    assert not reply.is_done
    harness.lead(TOPIC, epoch=3, leader=2)
    assert harness.result(reply) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_share_partition_without_sessions_stays_until_its_state_is_written(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    harness.bus.is_away = True
    harness.led.acknowledge(GROUP, "a", harness.topic_partition(), [batch(0, 0, ACCEPT)])
    harness.disconnect(1)
    harness.turn_loop()
    assert harness.led.count == 1
    harness.bus.come_back()
    harness.turn_loop(0.05)
    assert harness.led.count == 0
    assert ranges(harness.member("b").fetch(0)[0]) == [(1, 1, 2)]


def test_the_state_after_an_expired_lock_is_written_until_it_succeeds(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    harness.member("b", connection=2).fetch(1, max_wait_ms=0)
    failing = break_writes(harness, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    harness.disconnect(1)
    assert failing.failures_left == 0
    harness.turn_loop(0.7)
    assert machine_of(harness).is_idle
    harness.restart_router()
    assert ranges(harness.member("c", connection=3).fetch(0)[0]) == [(0, 1, 2)]


def test_nothing_is_acquired_of_a_share_partition_that_was_dropped_since_it_was_read(
    harness: ShareFetchHarness,
) -> None:
    """A fetch that reads and acquires much yields in between."""
    harness.append(TOPIC, batch_of(2))
    member, led = harness.member(), harness.led
    member.fetch(0)
    assert member.acknowledge_partition(batch(0, 1, RELEASE)).error_code == ErrorCode.NONE
    hosted = led.hosted(GROUP)[harness.topic_partition()]
    read = led.read(hosted, 10, 1 << 20, min_one_batch=True)
    assert read is not None
    led.forget(GROUP, [harness.topic_partition()])
    assert led.acquire(hosted, read, "a", AcquireOptions(records_max=10)) == []
    assert ranges(member.fetch()[0])


def test_a_gap_that_compaction_left_is_skipped(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2), batch_of(2))
    member = harness.member()
    member.fetch(0)
    machine = machine_of(harness)
    # As if the log had lost what lies between: there is no batch in what is read.
    machine.acquire(
        "a",
        4,
        [LogBatch(9, 12)],
        AcquireOptions(records_max=9),
        now_ms=harness.led.now_ms(),
    )
    assert member.acknowledge_partition(batch(0, 3, ACCEPT)).error_code == ErrorCode.NONE
    assert machine.start_offset == 9


def test_the_average_record_size_is_estimated(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(10, size=100))
    member = harness.member()
    member.fetch(0)
    hosted = harness.led.hosted(GROUP)[harness.topic_partition()]
    assert 100 < hosted.record_bytes < 150


def test_group_settings_change_with_the_configs(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(1))
    member = harness.member()
    for count in (1, 2):
        assert ranges(member.fetch(0, epoch=None)[0]) == [(0, 0, count)]
        assert member.acknowledge_partition(batch(0, 0, RELEASE)).error_code == ErrorCode.NONE
    harness.configure(GROUP, {"share.delivery.count.limit": "2"})
    assert member.fetch(max_wait_ms=100) == {}
    assert machine_of(harness).start_offset == 1


def test_a_leader_that_does_not_know_its_high_watermark_initializes_no_start_offset(
    harness: ShareFetchHarness,
) -> None:
    harness.initialise(0, group="plain")
    change(harness, leader=0, leader_epoch=1)
    harness.append(TOPIC, batch_of(2), batch_of(2))
    store, number = harness.place(TOPIC)
    harness.partitions.stores[store].set_high_watermark(number, 2)
    change(harness, leader=1, leader_epoch=2)
    change(harness, leader=0, leader_epoch=3)
    member = harness.member(group="plain")
    assert member.fetch(0, max_wait_ms=100) == {}
    # It is forgotten and read again from time to time.
    hosted = harness.led.hosted("plain").get(harness.topic_partition())
    assert hosted is None or hosted.machine is None
    harness.partitions.stores[store].set_high_watermark(number, 4)
    harness.turn_loop(0.2)
    assert member.fetch(max_wait_ms=100) == {}
    machine = harness.led.hosted("plain")[harness.topic_partition()].machine
    assert machine is not None
    assert machine.start_offset == 4


def change(harness: ShareFetchHarness, *, leader: int, leader_epoch: int) -> None:
    """Partition 0 has two in-sync replicas, of which one never fetches."""
    before = harness.image.topics_by_name[TOPIC].partitions[0]
    after = msgspec.structs.replace(
        before,
        replicas=(0, 1),
        in_sync_replicas=(0, 1),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=before.partition_epoch + 1,
    )
    harness.controller.write(PartitionChanged(harness.topic_id, 0, after))
    harness.follow()
