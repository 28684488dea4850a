"""DescribeLag as the command line uses it."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.handlers.lag import handle_describe_lag
from odradek.node.router.handlers.topics import handle_delete_records
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    DescribeLagResponsePartition,
)
from odradek.protocol.messages.offsets import DeleteRecordsRequest
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.records import TRANSACTIONAL
from tests.support.router_harness import RouterHarness
from tests.support.stores import batch_of


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 2)
    harness.follow()
    yield harness
    harness.close()


def lag(
    harness: RouterHarness, offset: int, *, name: str = "t", index: int = 0
) -> DescribeLagResponsePartition:
    partition = DescribeLagRequestPartition(partition_index=index, committed_offset=offset)
    request = DescribeLagRequest(
        topics=[DescribeLagRequestTopic(name=name, partitions=[partition])]
    )
    [topic] = harness.call(handle_describe_lag, request).topics
    [answer] = topic.partitions
    assert (topic.name, answer.partition_index) == (name, index)
    return answer


def test_the_lag_has_records_bytes_and_time(harness: RouterHarness) -> None:
    now_ms = harness.services.now_ms()
    batches = [batch_of(2, timestamps=[now_ms - 900, now_ms - 400]), batch_of(3, timestamp=now_ms)]
    harness.append("t", *batches)
    whole = lag(harness, 0)
    assert (whole.error_code, whole.log_start_offset, whole.high_watermark) == (0, 0, 5)
    assert (whole.records, whole.lag_ms) == (5, 900)
    assert whole.bytes == sum(map(len, batches))
    assert not whole.is_estimate
    behind = lag(harness, 1)
    assert (behind.records, behind.lag_ms) == (4, 400)
    assert behind.bytes == len(batches[0]) // 2 + len(batches[1])
    done = lag(harness, 5)
    assert (done.records, done.bytes, done.lag_ms, done.lost_records) == (0, 0, 0, 0)


def test_without_a_committed_offset_the_lag_is_counted_from_the_log_start(
    harness: RouterHarness,
) -> None:
    harness.append("t", batch_of(2), batch_of(3))
    partition = PartitionOffset(partition_index=0, offset=2)
    topic = TopicOffsets(name="t", partitions=[partition])
    harness.call(handle_delete_records, DeleteRecordsRequest(topics=[topic]))
    nowhere, from_start = lag(harness, -1), lag(harness, 2)
    assert (nowhere.records, nowhere.lost_records) == (3, 0)
    assert (nowhere.bytes, nowhere.high_watermark) == (from_start.bytes, 5)


def test_timestamps_in_the_future_make_no_negative_lag(harness: RouterHarness) -> None:
    harness.append("t", batch_of(timestamp=harness.services.now_ms() + 60_000))
    assert lag(harness, 0).lag_ms == 0


def test_records_without_a_timestamp_have_no_time_lag(harness: RouterHarness) -> None:
    harness.append("t", batch_of(timestamp=-1))
    assert (lag(harness, 0).records, lag(harness, 0).lag_ms) == (1, -1)


def test_records_deleted_before_they_were_read_are_lost_and_not_lag(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2), batch_of(3))
    partition = PartitionOffset(partition_index=0, offset=2)
    topic = TopicOffsets(name="t", partitions=[partition])
    harness.call(handle_delete_records, DeleteRecordsRequest(topics=[topic]))
    answer = lag(harness, 1)
    assert (answer.log_start_offset, answer.records, answer.lost_records) == (2, 3, 1)


def test_an_open_transaction_shows_in_the_last_stable_offset(harness: RouterHarness) -> None:
    open_batch = batch_of(
        producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    harness.append("t", batch_of(2), open_batch)
    answer = lag(harness, 0)
    assert (answer.last_stable_offset, answer.high_watermark, answer.records) == (2, 3, 3)


def test_an_offset_beyond_the_end_has_no_lag(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    assert lag(harness, 99).records == 0


def test_partitions_that_are_not_led_here_have_their_own_error(harness: RouterHarness) -> None:
    assert lag(harness, 0, name="no").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lag(harness, 0, index=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.deny(AclOperation.DESCRIBE, ResourceType.TOPIC, "t")
    denied = lag(harness, 0)
    assert (denied.error_code, denied.high_watermark) == (29, -1)


def test_estimates_are_coarser_for_very_many_partitions(harness: RouterHarness) -> None:
    """The router has one loop."""
    harness.append("t", *(batch_of(2, size=20) for _ in range(20)))
    partition = DescribeLagRequestPartition(partition_index=0, committed_offset=1)
    topic = DescribeLagRequestTopic(name="t", partitions=[partition] * 2_000)
    with closing(asyncio.new_event_loop()) as loop:
        request = DescribeLagRequest(topics=[topic])
        [answer] = harness.call_in_turns(handle_describe_lag, request, loop).topics
    exact = lag(harness, 1)
    assert not exact.is_estimate
    for told in answer.partitions:
        assert told.is_estimate
        assert told.records == exact.records
        assert told.bytes == pytest.approx(exact.bytes, rel=0.1)


def test_many_topics_with_few_partitions_each_are_counted_in_turns(harness: RouterHarness) -> None:
    """No topic alone would be reason to yield."""
    partitions = [DescribeLagRequestPartition(partition_index=0, committed_offset=0)] * 30
    topics = [DescribeLagRequestTopic(name="t", partitions=partitions) for _ in range(10)]
    with closing(asyncio.new_event_loop()) as loop:
        answer = harness.call_in_turns(handle_describe_lag, DescribeLagRequest(topics=topics), loop)
    assert [len(topic.partitions) for topic in answer.topics] == [30] * 10
