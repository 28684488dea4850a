"""The machines of this node: when they come and go, what is written for them, and what fails."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.records import PartitionChanged
from odradek.coordinator.share.acquisition import LogBatch, Wish
from odradek.coordinator.share.partition import SharePartition
from odradek.node.bus.reply import Reply
from odradek.node.router.share.states import ShareStates
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.share_fetching import (
    ACCEPT,
    RELEASE,
    ShareFetchRoom,
    batch,
    ranges,
)
from tests.support.share_room import GROUP, TOPIC
from tests.support.stores import batch_of


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareFetchRoom]:
    with ShareFetchRoom(tmp_path) as room:
        yield room


def machine_of(room: ShareFetchRoom, partition: int = 0) -> SharePartition:
    machine = room.led.hosted(GROUP)[room.spot(partition)].machine
    assert machine is not None
    return machine


class Failing:
    """Share states of which the next writes fail."""

    def __init__(self, states: ShareStates, code: ErrorCode, count: int) -> None:
        self._states = states
        self._code = code
        self.failures_left = count
        self.read = states.read
        self.close = states.close

    def write(self, *arguments: object) -> Reply[None]:
        if not self.failures_left:
            return self._states.write(*arguments)  # type: ignore[arg-type]  # as they came
        self.failures_left -= 1
        reply: Reply[None] = Reply()
        reply.fail(ApiError(self._code))
        return reply


def break_writes(room: ShareFetchRoom, code: ErrorCode, count: int = 1) -> Failing:
    failing = Failing(room.services.share_states, code, count)
    room.services.share_states = failing  # type: ignore[assignment]  # what is used of them
    return failing


def test_a_share_partition_that_nobody_has_initialised_is_waited_for(tmp_path: Path) -> None:
    with ShareFetchRoom(tmp_path, is_initialised=False) as room:
        room.append(TOPIC, batch_of(2))
        member = room.member()
        waiting = member.begin_fetch(0, max_wait_ms=5_000)
        room.turn_loop(0.05)
        assert not waiting.done()
        room.initialise(0)
        [[data]] = [topic.partitions for topic in member.end_fetch(waiting).responses]
        assert ranges(data) == [(0, 1, 1)]


def test_acknowledgements_of_one_turn_are_written_together(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(10))
    member = room.member()
    member.fetch(0)
    appends = room.bus.append_count
    replies = [
        room.led.acknowledge(GROUP, "a", room.spot(), [batch(at, at, ACCEPT)]) for at in range(5)
    ]
    for reply in replies:
        assert isinstance(reply, Reply)
        assert room.result(reply) == ErrorCode.NONE
    assert room.bus.append_count - appends == 2, "the first alone, the others together"
    assert machine_of(room).start_offset == 5


def test_a_write_that_fails_is_told_and_the_record_can_be_acknowledged_again(
    room: ShareFetchRoom,
) -> None:
    room.append(TOPIC, batch_of(2))
    member = room.member()
    member.fetch(0)
    break_writes(room, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    code = member.fate(batch(0, 1, ACCEPT)).error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.fate(batch(0, 1, ACCEPT)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_machine_that_is_fenced_goes_and_its_state_is_read_again(
    room: ShareFetchRoom, code: ErrorCode, told: ErrorCode
) -> None:
    room.append(TOPIC, batch_of(2))
    member = room.member()
    member.fetch(0)
    break_writes(room, code)
    assert member.fate(batch(0, 1, ACCEPT)).error_code == told
    assert room.led.count == 0
    assert ranges(member.fetch()[0]) == [(0, 1, 1)]


def test_whoever_waits_for_a_write_hears_that_the_leader_has_moved(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(2))
    member = room.member()
    member.fetch(0)
    room.bus.is_away = True
    reply = room.led.acknowledge(GROUP, "a", room.spot(), [batch(0, 1, ACCEPT)])
    assert isinstance(reply, Reply)
    assert not reply.is_done
    room.lead(TOPIC, epoch=3, leader=2)
    assert room.result(reply) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_machine_stays_until_all_is_written_though_nobody_reads_any_more(
    room: ShareFetchRoom,
) -> None:
    room.append(TOPIC, batch_of(2))
    member = room.member()
    member.fetch(0)
    room.bus.is_away = True
    room.led.acknowledge(GROUP, "a", room.spot(), [batch(0, 0, ACCEPT)])
    room.disconnect(1)
    room.turn_loop()
    assert room.led.count == 1
    room.bus.come_back()
    room.turn_loop(0.05)
    assert room.led.count == 0
    assert ranges(room.member("b").fetch(0)[0]) == [(1, 1, 2)]


def test_what_a_lock_leaves_behind_is_written_again_until_it_can_be(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(2))
    member = room.member()
    member.fetch(0)
    room.member("b", connection=2).fetch(1, max_wait_ms=0)
    failing = break_writes(room, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    room.disconnect(1)
    assert failing.failures_left == 0
    room.turn_loop(0.7)
    assert machine_of(room).is_idle
    room.host()
    assert ranges(room.member("c", connection=3).fetch(0)[0]) == [(0, 1, 2)]


def test_a_stretch_that_compaction_emptied_is_passed_over(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(2), batch_of(2))
    member = room.member()
    member.fetch(0)
    machine = machine_of(room)
    # As if the log had lost what lies between: there is no batch in what is read.
    machine.acquire(
        "a",
        4,
        [LogBatch(9, 12)],
        Wish(records_max=9),
        now_ms=room.led.now_ms(),
        terms=room.led.terms(GROUP),
    )
    assert member.fate(batch(0, 3, ACCEPT)).error_code == ErrorCode.NONE
    assert machine.start_offset == 9


def test_the_size_of_records_is_learnt(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(10, size=100))
    member = room.member()
    member.fetch(0)
    hosted = room.led.hosted(GROUP)[room.spot()]
    assert 100 < hosted.record_bytes < 150


def test_terms_change_with_the_configs(room: ShareFetchRoom) -> None:
    room.append(TOPIC, batch_of(1))
    member = room.member()
    for count in (1, 2):
        assert ranges(member.fetch(0, epoch=None)[0]) == [(0, 0, count)]
        assert member.fate(batch(0, 0, RELEASE)).error_code == ErrorCode.NONE
    room.configure(GROUP, {"share.delivery.count.limit": "2"})
    assert member.fetch(max_wait_ms=100) == {}
    assert machine_of(room).start_offset == 1


def test_a_leader_that_does_not_know_the_end_yet_lets_no_group_begin_there(
    room: ShareFetchRoom,
) -> None:
    room.initialise(0, group="plain")
    change(room, leader=0, leader_epoch=1)
    room.append(TOPIC, batch_of(2), batch_of(2))
    store, number = room.place(TOPIC)
    room.partitions.stores[store].set_high_watermark(number, 2)
    change(room, leader=1, leader_epoch=2)
    change(room, leader=0, leader_epoch=3)
    member = room.member(group="plain")
    assert member.fetch(0, max_wait_ms=100) == {}
    # It is forgotten and read again from time to time.
    hosted = room.led.hosted("plain").get(room.spot())
    assert hosted is None or hosted.machine is None
    room.partitions.stores[store].set_high_watermark(number, 4)
    room.turn_loop(0.2)
    assert member.fetch(max_wait_ms=100) == {}
    machine = room.led.hosted("plain")[room.spot()].machine
    assert machine is not None
    assert machine.start_offset == 4


def change(room: ShareFetchRoom, *, leader: int, leader_epoch: int) -> None:
    """Partition 0 has two replicas in sync, of which one never speaks."""
    before = room.image.topics_by_name[TOPIC].partitions[0]
    after = msgspec.structs.replace(
        before,
        replicas=(0, 1),
        in_sync_replicas=(0, 1),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=before.partition_epoch + 1,
    )
    room.controller.write(PartitionChanged(room.topic_id, 0, after))
    room.follow()
