"""Dead letters (KIP-1191): what is told of records that were rejected or given up, and when not."""

import dataclasses
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.coordinator.share.batches import RecordState, StateBatch
from odradek.coordinator.share.partition import DeadLetters as Letters
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.share.dead_letters import GATE, GIVEN_UP, REJECTED, DeadLetters
from odradek.node.router.share.sessions import TopicPartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import Record, build_batch, iter_batches, iter_records
from tests.support.controller_room import topic_id
from tests.support.share_fetching import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareFetchRoom,
    ShareMember,
    batch,
    ranges,
)
from tests.support.share_room import GROUP, STRANGER, TOPIC
from tests.support.stores import batch_of

DLQ = "dlq.t"


def have_dlq(
    room: ShareFetchRoom, partitions: int = 1, configs: tuple[tuple[str, str], ...] = ()
) -> None:
    room.controller.do(
        CreateTopics(
            (
                NewTopic(
                    DLQ,
                    topic_id(77),
                    partition_count=partitions,
                    configs=((GATE, "true"), *configs),
                ),
            )
        )
    )
    room.follow()


def told(room: ShareFetchRoom, partition: int = 0) -> list[Record]:
    """What the dead-letter topic has."""
    store, number = room.place(DLQ, partition)
    reader = room.services.logs.reader(store)
    assert reader is not None
    end = reader.status.log_end_offset(number)
    result = reader.read(number, 0, max_bytes=1 << 20, end_offset=end)
    return [
        record
        for buffer in result.buffers
        for at, header in iter_batches(buffer)
        for record in iter_records(memoryview(buffer)[at:], header)
    ]


def headers(record: Record) -> dict[str, bytes | None]:
    return dict(record.headers)


def wait_for(room: ShareFetchRoom, count: int) -> None:
    for _ in range(100):
        if room.letters.told_count + room.letters.lost_count >= count:
            room.turn_loop(0.01)
            return
        room.turn_loop(0.02)
    raise AssertionError(f"{room.letters.told_count} told, {room.letters.lost_count} lost")


GROUP_CONFIGS: Mapping[str, str] = {"errors.deadletterqueue.topic.name": DLQ}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareFetchRoom]:
    with ShareFetchRoom(tmp_path, group=GROUP_CONFIGS) as room:
        yield room


def holder(room: ShareFetchRoom, *batches: bytes) -> ShareMember:
    room.append(TOPIC, *batches)
    member = room.member()
    member.fetch(0)
    return member


def carry_out(room: ShareFetchRoom, work: Coroutine[Any, None, None]) -> None:
    done: Reply[None] = Reply()

    def finish(_result: None, error: BaseException | None) -> None:
        done.resolve(None) if error is None else done.fail(error)

    drive(work, finish)
    room.result(done)


def start_offset(room: ShareFetchRoom) -> int:
    machine = room.led.hosted(GROUP)[room.spot()].machine
    assert machine is not None
    return machine.start_offset


def test_a_rejected_record_is_told_of_with_six_headers_and_nothing_else(
    room: ShareFetchRoom,
) -> None:
    have_dlq(room)
    member = holder(room, batch_of(3))
    assert member.fate(batch(0, 2, ACCEPT, REJECT, ACCEPT)).error_code == ErrorCode.NONE
    wait_for(room, 1)
    [record] = told(room)
    assert (record.key, record.value) == (None, None)
    assert headers(record) == {
        "__dlq.errors.topic": b"t",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.group": b"g",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": REJECTED,
    }
    assert start_offset(room) == 3


def test_key_value_and_headers_are_copied_if_the_group_says_so(room: ShareFetchRoom) -> None:
    have_dlq(room)
    room.configure(GROUP, {"errors.deadletterqueue.copy.record.enable": "true"})
    records = [Record(index, 0, b"k%d" % index, b"v", (("own", b"x"),)) for index in range(2)]
    member = holder(room, build_batch(records))
    member.fate(batch(0, 1, REJECT))
    wait_for(room, 2)
    found = told(room)
    assert [(record.key, record.value) for record in found] == [(b"k0", b"v"), (b"k1", b"v")]
    assert found[0].headers[-1] == ("own", b"x")


def test_a_record_that_was_delivered_too_often_is_told_of(room: ShareFetchRoom) -> None:
    have_dlq(room)
    room.configure(GROUP, {"share.delivery.count.limit": "2"})
    member = holder(room, batch_of(1))
    member.fate(batch(0, 0, RELEASE))
    assert ranges(member.fetch()[0]) == [(0, 0, 2)]
    member.fate(batch(0, 0, RELEASE))
    wait_for(room, 1)
    [record] = told(room)
    assert headers(record)["__dlq.errors.delivery.count"] == b"2"
    assert headers(record)["__dlq.errors.message"] == GIVEN_UP


def test_the_partition_follows_from_that_of_the_record(room: ShareFetchRoom) -> None:
    have_dlq(room, 2)
    member = room.member()
    for partition in (1, 2):
        room.append(TOPIC, batch_of(1), partition=partition)
        member.fetch(partition)
        member.fate(batch(0, 0, REJECT), partition=partition)
    wait_for(room, 2)
    assert headers(told(room, 1)[0])["__dlq.errors.partition"] == b"1"
    assert headers(told(room, 0)[0])["__dlq.errors.partition"] == b"2"


def test_many_are_told_in_batches_that_the_topic_takes(room: ShareFetchRoom) -> None:
    have_dlq(room, 1, (("max.message.bytes", "2000"),))
    room.configure(GROUP, {"errors.deadletterqueue.copy.record.enable": "true"})
    member = holder(room, batch_of(20, size=300), batch_of(1, size=5_000))
    member.fate(batch(0, 20, REJECT))
    wait_for(room, 21)
    found = told(room)
    assert [int(headers(record)["__dlq.errors.offset"] or b"") for record in found] == list(
        range(21)
    )
    assert len(found[19].value or b"") == 300
    assert found[20].value is None, "too large to be copied; where it is can be said"


@pytest.mark.parametrize("why", ["absent", "closed", "prefix"])
def test_where_nobody_can_help_the_record_is_archived_all_the_same(
    room: ShareFetchRoom, why: str
) -> None:
    if why != "absent":
        have_dlq(room)
    if why == "closed":
        room.configure(DLQ, {GATE: "false"}, ConfigResourceType.TOPIC)
    if why == "prefix":
        prefix = {"errors.deadletterqueue.topic.name.prefix": "dead."}
        room.configure("", prefix, ConfigResourceType.BROKER)
    member = holder(room, batch_of(1))
    assert member.fate(batch(0, 0, REJECT)).error_code == ErrorCode.NONE
    wait_for(room, 1)
    assert (room.letters.told_count, room.letters.lost_count) == (0, 1)
    assert start_offset(room) == 1


def test_a_missing_topic_is_created_where_the_brokers_allow_it(room: ShareFetchRoom) -> None:
    allow = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    room.configure("", allow, ConfigResourceType.BROKER)
    member = holder(room, batch_of(1))
    member.fate(batch(0, 0, REJECT))
    wait_for(room, 1)
    assert len(told(room)) == 1


def test_what_was_not_told_when_the_leader_died_is_told_by_the_next(room: ShareFetchRoom) -> None:
    have_dlq(room)
    room.append(TOPIC, batch_of(1))
    name = GROUP, room.topic_id, 0
    states = room.services.share_states
    room.result(states.write(*name, 1, 0, 0, 0, (StateBatch(0, 0, RecordState.ARCHIVING, 5),)))
    room.member().fetch(0, max_wait_ms=200)
    wait_for(room, 1)
    [record] = told(room)
    assert headers(record)["__dlq.errors.message"] == GIVEN_UP


def test_a_topic_that_another_node_leads_is_told_through_that_node(room: ShareFetchRoom) -> None:
    have_dlq(room)
    room.append(TOPIC, batch_of(3))
    services = dataclasses.replace(room.services, node_id=STRANGER)
    elsewhere = DeadLetters(services, room.passage, room.loop)

    letters = Letters(0, 3, 1, is_rejected=True)
    carry_out(room, elsewhere.bury(GROUP, room.spot(), letters, room.led.terms(GROUP)))
    assert elsewhere.told_count == 3
    assert [headers(record)["__dlq.errors.offset"] for record in told(room)] == [b"0", b"1", b"2"]


def test_a_dead_letter_topic_is_not_told_of_itself(room: ShareFetchRoom) -> None:
    have_dlq(room)
    place = TopicPartition(topic_id(77), 0)
    terms = room.led.terms(GROUP)

    letters = Letters(0, 3, 1, is_rejected=True)
    carry_out(room, room.letters.bury(GROUP, place, letters, terms))
    assert (room.letters.told_count, room.letters.lost_count) == (0, 3)
