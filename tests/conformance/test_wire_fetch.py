"""Fetch (1) without sessions: which batches come, how many bytes, how long it waits, the errors."""

import time

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.offsets import DeleteRecordsRequest, DeleteRecordsResponse
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.records import read_header
from tests.conformance.dialogue import (
    FETCH,
    DialogueCluster,
    append,
    batch_of,
    batches_of,
    bytes_of,
    fetch,
    fetch_request,
    partitions_of,
    produce,
    records_of,
    unique,
    values_of,
)
from tests.support.wire import WireClient


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_an_offset_inside_a_batch_brings_that_batch(
    wire: WireClient, topic: str, codec: Codec
) -> None:
    """B.1: "Return whole batches starting with the one that CONTAINS the offset (client trims)"."""
    for _ in range(3):
        assert produce(wire, topic, batch_of(b"a", b"b", b"c", codec=codec)).error_code == 0
    for offset in range(9):
        records = records_of(fetch(wire, topic, offset))
        assert [record.offset for record in records] == list(range(offset - offset % 3, 9))


def test_the_first_batch_comes_even_if_it_is_larger_than_every_limit(
    wire: WireClient, topic: str
) -> None:
    """B.1: "first batch always, even above max_bytes/partition_max_bytes"."""
    for _ in range(3):
        append(wire, topic, b"x" * 10_000)
    for limits in ((1, 1), (100, 10_000_000), (10_000_000, 100), (0, 0)):
        max_bytes, partition_max_bytes = limits
        data = fetch(wire, topic, 1, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
        assert [record.offset for record in records_of(data)] == [1]


def test_a_partition_gives_no_more_than_its_limit_after_the_first_batch(
    wire: WireClient, topic: str
) -> None:
    for _ in range(10):
        append(wire, topic, b"x" * 1000)
    size = len(batch_of(b"x" * 1000))
    data = fetch(wire, topic, 0, partition_max_bytes=3 * size + size // 2)
    assert len(batches_of(data)) == 3
    assert len(bytes_of(data)) <= 3 * size + size // 2


def test_partitions_share_the_limit_of_the_request_in_their_order(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: "honour partition order"; what does not fit any more stays empty without an error."""
    topic = cluster.new_topic_of_one_leader(3)
    for partition in range(3):
        append(wire, topic, b"x" * 1000, partition=partition)
    size = len(batch_of(b"x" * 1000))
    for order in ((2, 0, 1), (1, 2, 0)):
        request = fetch_request(topic, dict.fromkeys(order, 0), max_bytes=2 * size)
        answered = partitions_of(wire.ask(request, FETCH, FetchResponse))
        assert [len(batches_of(answered[partition])) for partition in order] == [1, 1, 0]
        assert {data.error_code for data in answered.values()} == {ErrorCode.NONE}


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_brings_the_watermarks(wire: WireClient, topic: str, version: int) -> None:
    """B.1: "LSO/HW always filled", "null list for read_uncommitted"."""
    append(wire, topic, b"a", b"b")
    data = fetch(wire, topic, 1, version=version)
    assert values_of(data) == [b"a", b"b"]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 2, 2)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert data.aborted_transactions is None
    assert data.preferred_read_replica == -1


@pytest.mark.parametrize("version", range(13, 19))
def test_a_topic_may_be_named_by_its_id(
    cluster: DialogueCluster, wire: WireClient, topic: str, version: int
) -> None:
    """B.1: "v13 topic ids (100)"."""
    append(wire, topic, b"a")
    topic_id = cluster.topic_id(topic)
    request = FetchRequest(
        max_bytes=1000,
        topics=[
            FetchTopic(topic_id=asked, partitions=[FetchPartition(partition_max_bytes=1000)])
            for asked in (topic_id, b"\x01" * 16)
        ],
    )
    answer = wire.ask(request, version, FetchResponse)
    answered = {topic.topic_id: topic.partitions[0] for topic in answer.responses}
    assert values_of(answered[topic_id]) == [b"a"]
    assert answered[b"\x01" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_read_committed_reads_what_is_not_in_a_transaction(wire: WireClient, topic: str) -> None:
    """B.1: "read_committed: only below LSO"."""
    append(wire, topic, b"a")
    request = fetch_request(topic, {0: 0})
    request.isolation_level = 1
    data = partitions_of(wire.ask(request, FETCH, FetchResponse))[0]
    assert values_of(data) == [b"a"]
    assert not data.aborted_transactions


def test_at_the_end_there_is_nothing_and_no_error(wire: WireClient, topic: str) -> None:
    """B.1: "Fetch at end: empty, no error"."""
    append(wire, topic, b"a")
    data = fetch(wire, topic, 1)
    assert (data.error_code, bytes_of(data), data.high_watermark) == (ErrorCode.NONE, b"", 1)


@pytest.mark.parametrize("offset", [-1, -100, 2, 10**15])
def test_an_offset_beyond_either_end_is_out_of_range(
    wire: WireClient, topic: str, offset: int
) -> None:
    """B.1: "Offset < log start or > end: OFFSET_OUT_OF_RANGE (1)"."""
    append(wire, topic, b"a")
    data = fetch(wire, topic, offset)
    assert (data.error_code, bytes_of(data)) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


def test_deleted_records_are_out_of_range(wire: WireClient, topic: str) -> None:
    """B.1: "Offset < log start [...]: OFFSET_OUT_OF_RANGE (1)"."""
    for _ in range(4):
        append(wire, topic, b"a")
    request = DeleteRecordsRequest(
        timeout_ms=5000,
        topics=[
            TopicOffsets(name=topic, partitions=[PartitionOffset(partition_index=0, offset=3)])
        ],
    )
    wire.ask(request, 2, DeleteRecordsResponse)
    assert fetch(wire, topic, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    data = fetch(wire, topic, 3)
    assert (data.error_code, data.log_start_offset) == (ErrorCode.NONE, 3)
    assert values_of(data) == [b"a"]


def test_an_unknown_topic_or_partition_is_answered_at_once(wire: WireClient, topic: str) -> None:
    """An error ends the wait: max_wait is for partitions that are merely quiet."""
    wire.socket.settimeout(20)
    for name, partition in ((unique("nowhere"), 0), (topic, 9)):
        request = fetch_request(name, {partition: 0}, max_wait_ms=60_000)
        data = partitions_of(wire.ask(request, FETCH, FetchResponse))[partition]
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_waits_for_as_long_as_it_was_told(wire: WireClient, topic: str) -> None:
    """B.1: "wait until min_bytes or max_wait"."""
    start = time.monotonic()
    assert bytes_of(fetch(wire, topic, 0, max_wait_ms=400)) == b""
    assert 0.35 <= time.monotonic() - start < 20


def test_a_waiting_fetch_wakes_when_a_record_arrives(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: "wait until min_bytes or max_wait"."""
    topic = cluster.new_topic_of_one_leader(3)
    wire.socket.settimeout(20)
    with cluster.connect() as other:
        for expected in range(3):
            request = fetch_request(topic, {0: 0, 1: expected, 2: 0}, max_wait_ms=60_000)
            wire.post(request, FETCH)
            assert wire.is_silent(0.05)
            append(other, topic, b"wake", partition=1)
            answered = partitions_of(wire.receive(FetchResponse))
            assert [bytes_of(answered[quiet]) for quiet in (0, 2)] == [b"", b""]
            assert values_of(answered[1]) == [b"wake"]


def test_a_fetch_waits_for_the_least_bytes_it_asked_for(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: "wait until min_bytes or max_wait"; the bytes of all partitions count together."""
    topic = cluster.new_topic_of_one_leader(2)
    size = len(batch_of(b"x" * 1000))
    wire.socket.settimeout(20)
    with cluster.connect() as other:
        wire.post(fetch_request(topic, {0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=3 * size), FETCH)
        append(other, topic, b"x" * 1000)
        append(other, topic, b"y" * 1000, partition=1)
        assert wire.is_silent(0.1)
        append(other, topic, b"z" * 1000)
        answered = partitions_of(wire.receive(FetchResponse))
    assert {partition: len(batches_of(data)) for partition, data in answered.items()} == {
        0: 2,
        1: 1,
    }


def test_too_few_bytes_come_when_the_wait_is_over(wire: WireClient, topic: str) -> None:
    """B.1: "wait until min_bytes or max_wait"."""
    append(wire, topic, b"a")
    request = fetch_request(topic, {0: 0}, max_wait_ms=100, min_bytes=1_000_000)
    assert values_of(partitions_of(wire.ask(request, FETCH, FetchResponse))[0]) == [b"a"]


def test_a_fetch_that_wants_no_bytes_does_not_wait(wire: WireClient, topic: str) -> None:
    wire.socket.settimeout(20)
    request = fetch_request(topic, {0: 0}, max_wait_ms=60_000, min_bytes=0)
    assert partitions_of(wire.ask(request, FETCH, FetchResponse))[0].error_code == ErrorCode.NONE


def test_many_fetches_that_wait_are_all_woken_by_one_record(
    cluster: DialogueCluster, topic: str
) -> None:
    waiting = [cluster.connect() for _ in range(20)]
    try:
        for wire in waiting:
            wire.post(fetch_request(topic, {0: 0}, max_wait_ms=60_000), FETCH)
        with cluster.connect() as other:
            append(other, topic, b"all")
        for wire in waiting:
            assert values_of(partitions_of(wire.receive(FetchResponse))[0]) == [b"all"]
    finally:
        for wire in waiting:
            wire.close()


def ask_epochs(
    wire: WireClient, topic: str, *, offset: int, current: int = -1, last_fetched: int = -1
) -> PartitionData:
    """A Fetch that says what the client believes of the leader's epoch."""
    partition = FetchPartition(
        fetch_offset=offset,
        current_leader_epoch=current,
        last_fetched_epoch=last_fetched,
        partition_max_bytes=1000,
    )
    request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[partition])])
    return partitions_of(wire.ask(request, FETCH, FetchResponse))[0]


def test_an_epoch_from_the_future_is_unknown(wire: WireClient, topic: str) -> None:
    """B.1: "v9 CurrentLeaderEpoch: (74)/(75 UNKNOWN_LEADER_EPOCH)"."""
    append(wire, topic, b"a")
    (batch,) = batches_of(fetch(wire, topic, 0))
    epoch = read_header(batch).partition_leader_epoch
    assert values_of(ask_epochs(wire, topic, offset=0, current=epoch)) == [b"a"]
    data = ask_epochs(wire, topic, offset=0, current=epoch + 1)
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_log_that_is_too_long_is_told_where_it_diverges(wire: WireClient, topic: str) -> None:
    """B.1: "v12 LastFetchedEpoch gives DivergingEpoch instead of data"."""
    append(wire, topic, b"a", b"b")
    (batch,) = batches_of(fetch(wire, topic, 0))
    epoch = read_header(batch).partition_leader_epoch
    data = ask_epochs(wire, topic, offset=5, last_fetched=epoch)
    assert data.error_code == ErrorCode.NONE
    assert data.diverging_epoch == FetchEpochEndOffset(epoch=epoch, end_offset=2)
    assert bytes_of(data) == b""
    assert ask_epochs(wire, topic, offset=1, last_fetched=epoch).diverging_epoch is None
