"""Dead letters (KIP-1191) of rejected and given up records, and their errors."""

from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.coordinator.share.partition import DeadLetterRange
from odradek.coordinator.share.requests import ShareKey, WriteShareState
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.share.dead_letter_queue import (
    ENABLE_CONFIG,
    GIVEN_UP,
    REJECTED,
    DeadLetterQueue,
)
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import Record, build_batch, iter_batches, iter_records
from tests.support.controller_harness import topic_id
from tests.support.share_fetching import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareFetchHarness,
    ShareFetchMember,
    batch,
    ranges,
)
from tests.support.share_harness import GROUP, OTHER_NODE, TOPIC
from tests.support.stores import batch_of

DLQ = "dlq.t"


def have_dlq(
    harness: ShareFetchHarness, partitions: int = 1, configs: tuple[tuple[str, str], ...] = ()
) -> None:
    harness.controller.do(
        CreateTopics(
            (
                NewTopic(
                    DLQ,
                    topic_id(77),
                    partition_count=partitions,
                    configs=((ENABLE_CONFIG, "true"), *configs),
                ),
            )
        )
    )
    harness.follow()


def told(harness: ShareFetchHarness, partition: int = 0) -> list[Record]:
    """The records of the dead-letter topic."""
    store, number = harness.place(DLQ, partition)
    reader = harness.services.logs.reader(store)
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


def wait_for(harness: ShareFetchHarness, count: int) -> None:
    for _ in range(100):
        if harness.letters.written_count + harness.letters.dropped_count >= count:
            harness.turn_loop(0.01)
            return
        harness.turn_loop(0.02)
    raise AssertionError(
        f"{harness.letters.written_count} told, {harness.letters.dropped_count} lost"
    )


GROUP_CONFIGS: Mapping[str, str] = {"errors.deadletterqueue.topic.name": DLQ}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareFetchHarness]:
    with ShareFetchHarness(tmp_path, group=GROUP_CONFIGS) as harness:
        yield harness


def holder(harness: ShareFetchHarness, *batches: bytes) -> ShareFetchMember:
    harness.append(TOPIC, *batches)
    member = harness.member()
    member.fetch(0)
    return member


def run_effect(harness: ShareFetchHarness, work: Coroutine[Any, None, None]) -> None:
    done: Reply[None] = Reply()

    def finish(_result: None, error: BaseException | None) -> None:
        done.resolve(None) if error is None else done.fail(error)

    drive(work, finish)
    harness.result(done)


def start_offset(harness: ShareFetchHarness) -> int:
    machine = harness.led.hosted(GROUP)[harness.topic_partition()].machine
    assert machine is not None
    return machine.start_offset


def test_the_dead_letter_of_a_rejected_record_has_six_headers_and_no_content(
    harness: ShareFetchHarness,
) -> None:
    have_dlq(harness)
    member = holder(harness, batch_of(3))
    assert (
        member.acknowledge_partition(batch(0, 2, ACCEPT, REJECT, ACCEPT)).error_code
        == ErrorCode.NONE
    )
    wait_for(harness, 1)
    [record] = told(harness)
    assert (record.key, record.value) == (None, None)
    assert headers(record) == {
        "__dlq.errors.topic": b"t",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.group": b"g",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": REJECTED,
    }
    assert start_offset(harness) == 3


def test_key_value_and_headers_are_copied_if_the_group_is_configured_so(
    harness: ShareFetchHarness,
) -> None:
    have_dlq(harness)
    harness.configure(GROUP, {"errors.deadletterqueue.copy.record.enable": "true"})
    records = [Record(index, 0, b"k%d" % index, b"v", (("own", b"x"),)) for index in range(2)]
    member = holder(harness, build_batch(records))
    member.acknowledge_partition(batch(0, 1, REJECT))
    wait_for(harness, 2)
    found = told(harness)
    assert [(record.key, record.value) for record in found] == [(b"k0", b"v"), (b"k1", b"v")]
    assert found[0].headers[-1] == ("own", b"x")


def test_a_record_over_the_delivery_limit_is_written(harness: ShareFetchHarness) -> None:
    have_dlq(harness)
    harness.configure(GROUP, {"share.delivery.count.limit": "2"})
    member = holder(harness, batch_of(1))
    member.acknowledge_partition(batch(0, 0, RELEASE))
    assert ranges(member.fetch()[0]) == [(0, 0, 2)]
    member.acknowledge_partition(batch(0, 0, RELEASE))
    wait_for(harness, 1)
    [record] = told(harness)
    assert headers(record)["__dlq.errors.delivery.count"] == b"2"
    assert headers(record)["__dlq.errors.message"] == GIVEN_UP


def test_the_partition_is_derived_from_that_of_the_record(harness: ShareFetchHarness) -> None:
    have_dlq(harness, 2)
    member = harness.member()
    for partition in (1, 2):
        harness.append(TOPIC, batch_of(1), partition=partition)
        member.fetch(partition)
        member.acknowledge_partition(batch(0, 0, REJECT), partition=partition)
    wait_for(harness, 2)
    assert headers(told(harness, 1)[0])["__dlq.errors.partition"] == b"1"
    assert headers(told(harness, 0)[0])["__dlq.errors.partition"] == b"2"


def test_many_records_are_written_in_batches_of_the_topics_size(harness: ShareFetchHarness) -> None:
    have_dlq(harness, 1, (("max.message.bytes", "2000"),))
    harness.configure(GROUP, {"errors.deadletterqueue.copy.record.enable": "true"})
    member = holder(harness, batch_of(20, size=300), batch_of(1, size=5_000))
    member.acknowledge_partition(batch(0, 20, REJECT))
    wait_for(harness, 21)
    found = told(harness)
    assert [int(headers(record)["__dlq.errors.offset"] or b"") for record in found] == list(
        range(21)
    )
    assert len(found[19].value or b"") == 300
    assert found[20].value is None, "too large to be copied; where it is can be said"


@pytest.mark.parametrize("why", ["absent", "closed", "prefix"])
def test_after_a_permanent_error_the_record_is_archived_without_a_dead_letter(
    harness: ShareFetchHarness, why: str
) -> None:
    if why != "absent":
        have_dlq(harness)
    if why == "closed":
        harness.configure(DLQ, {ENABLE_CONFIG: "false"}, ConfigResourceType.TOPIC)
    if why == "prefix":
        prefix = {"errors.deadletterqueue.topic.name.prefix": "dead."}
        harness.configure("", prefix, ConfigResourceType.BROKER)
    member = holder(harness, batch_of(1))
    assert member.acknowledge_partition(batch(0, 0, REJECT)).error_code == ErrorCode.NONE
    wait_for(harness, 1)
    assert (harness.letters.written_count, harness.letters.dropped_count) == (0, 1)
    assert start_offset(harness) == 1


def test_a_missing_topic_is_created_if_the_brokers_are_configured_so(
    harness: ShareFetchHarness,
) -> None:
    allow = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    harness.configure("", allow, ConfigResourceType.BROKER)
    member = holder(harness, batch_of(1))
    member.acknowledge_partition(batch(0, 0, REJECT))
    wait_for(harness, 1)
    assert len(told(harness)) == 1


def test_the_next_leader_writes_what_the_former_one_has_not_written(
    harness: ShareFetchHarness,
) -> None:
    have_dlq(harness)
    harness.append(TOPIC, batch_of(1))
    name = GROUP, harness.topic_id, 0
    states = harness.services.share_persister
    harness.result(
        states.call(
            WriteShareState(
                ShareKey(*name),
                state_epoch=1,
                leader_epoch=0,
                start_offset=0,
                delivery_complete_count=0,
                batches=(PersisterStateBatch(0, 0, RecordState.ARCHIVING, 5),),
            )
        )
    )
    harness.member().fetch(0, max_wait_ms=200)
    wait_for(harness, 1)
    [record] = told(harness)
    assert headers(record)["__dlq.errors.message"] == GIVEN_UP


def test_records_for_another_leader_are_sent_to_it(
    harness: ShareFetchHarness,
) -> None:
    have_dlq(harness)
    harness.append(TOPIC, batch_of(3))
    services = harness.services
    elsewhere = DeadLetterQueue(
        MetadataCache(OTHER_NODE, harness.static, harness.image),
        services.controller,
        services.logs,
        harness.remote_link,
        services.now_ms,
        harness.loop,
    )

    letters = DeadLetterRange(0, 3, 1, is_rejected=True)
    run_effect(
        harness,
        elsewhere.write_records(
            GROUP, harness.topic_partition(), letters, harness.led.group_settings(GROUP)
        ),
    )
    assert elsewhere.written_count == 3
    assert [headers(record)["__dlq.errors.offset"] for record in told(harness)] == [
        b"0",
        b"1",
        b"2",
    ]


def test_records_of_a_dead_letter_topic_are_not_written_to_itself(
    harness: ShareFetchHarness,
) -> None:
    have_dlq(harness)
    place = TopicIdPartition(topic_id(77), 0)
    group_settings = harness.led.group_settings(GROUP)

    letters = DeadLetterRange(0, 3, 1, is_rejected=True)
    run_effect(harness, harness.letters.write_records(GROUP, place, letters, group_settings))
    assert (harness.letters.written_count, harness.letters.dropped_count) == (0, 3)
