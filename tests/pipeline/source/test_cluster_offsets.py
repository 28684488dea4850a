"""Offsets of a real broker, asked for as the options say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.source.cluster_offsets import ClusterOffsets, open_cluster
from odradek.pipeline.source.options import source_options
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
NOON_MS = 1_767_268_800_000


@contextmanager
def cluster_offsets(broker: EmbeddedBroker, **options: str) -> Iterator[ClusterOffsets]:
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    found = source_options({**servers, **options}, is_stream=False)
    with open_cluster(found) as cluster:
        yield ClusterOffsets(cluster, found)


def bounds(broker: EmbeddedBroker, topic: str, **options: str) -> list[tuple[int, int]]:
    """[start, end) of each partition of the topic."""
    with cluster_offsets(broker, subscribe=topic, **options) as offsets:
        start, end = offsets.starting().offsets, offsets.ending().offsets
    assert start.keys() == end.keys()
    return [(start[name], end[name]) for name in sorted(end)]


def refusal_of(broker: EmbeddedBroker, topic: str, **options: str) -> str:
    with pytest.raises(PipelineError) as refused:
        bounds(broker, topic, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def json_of(topic: str, value: int) -> str:
    return f'{{"{topic}":{{"0":{value}}}}}'


def test_the_whole_log_is_read_by_default(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"a", b"b", b"c"])
    records.delete_before(topic, 0, 1)
    records.add_partitions(topic, 2)
    assert bounds(kafka_broker, topic) == [(1, 3), (0, 0)]


def test_bounds_by_offset_and_by_time(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    times = [NOON_MS + hour * HOUR_MS for hour in range(5)]
    records.send(topic, [b"x"] * 5, timestamps=times)

    def found(**options: str) -> tuple[int, int]:
        (bound,) = bounds(kafka_broker, topic, **options)
        return bound

    assert found(startingOffsets=json_of(topic, 2), endingOffsets=json_of(topic, 4)) == (2, 4)
    assert found(startingOffsets=json_of(topic, -2), endingOffsets=json_of(topic, -1)) == (0, 5)
    assert found(startingTimestamp=str(times[2]), endingTimestamp=str(times[3])) == (2, 3)
    assert found(startingTimestamp=str(times[1] + 1)) == (2, 5)
    by_partition = {
        "startingOffsetsByTimestamp": json_of(topic, times[1]),
        "endingOffsetsByTimestamp": json_of(topic, times[4] + 1),
    }
    assert found(**by_partition) == (1, 5)


def test_a_starting_time_after_all_records_is_an_error_or_the_end(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"], timestamps=[NOON_MS])
    late = {"startingTimestamp": str(NOON_MS + 1)}
    assert f"{topic}-0 has no record at or after" in refusal_of(kafka_broker, topic, **late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert bounds(kafka_broker, topic, **late, **strategy) == [(1, 1)]


def test_an_offset_outside_of_the_log_is_an_error_or_moved_into_it(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 5)
    records.delete_before(topic, 0, 2)
    outside = {"startingOffsets": json_of(topic, 1), "endingOffsets": json_of(topic, 9)}
    assert f"startingOffsets asks for offset 1 of {topic}-0, whose log has [2, 5)" in refusal_of(
        kafka_broker, topic, **outside
    )
    assert "endingOffsets asks for offset 9" in refusal_of(
        kafka_broker, topic, endingOffsets=outside["endingOffsets"]
    )
    assert bounds(kafka_broker, topic, failOnDataLoss="false", **outside) == [(2, 5)]


def test_read_committed_ends_at_the_last_stable_offset(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 3)
    transaction = records.open_transaction(topic, topic, [b"y"] * 4)
    committed = {"kafka.isolation.level": "read_committed"}
    assert bounds(kafka_broker, topic) == [(0, 7)]
    assert bounds(kafka_broker, topic, **committed) == [(0, 3)]
    transaction.commit_transaction()
    # The markers are written after the answer.
    wait_until(lambda: bounds(kafka_broker, topic, **committed) == [(0, 8)])


def test_what_is_named_has_to_be_there(kafka_broker: EmbeddedBroker, topic: str) -> None:
    assert "payments of subscribe=payments does not exist at" in refusal_of(
        kafka_broker, "payments"
    )
    assigned = f'{{"{topic}":[0,7]}}'
    with (
        cluster_offsets(kafka_broker, assign=assigned) as offsets,
        pytest.raises(PipelineError, match=rf"{topic}-7 of assign=.* does not exist"),
    ):
        offsets.starting()
    with cluster_offsets(kafka_broker, subscribePattern="no-such-.*") as offsets:
        assert not offsets.starting().offsets


def test_offsets_have_to_name_all_partitions(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.add_partitions(topic, 2)
    assert f"{topic}-1 is missing" in refusal_of(
        kafka_broker, topic, startingOffsets=json_of(topic, 0)
    )
    strange = f'{{"{topic}":{{"0":1,"1":1,"2":1}}}}'
    assert f"{topic}-2 is not read" in refusal_of(
        kafka_broker, topic, endingOffsetsByTimestamp=strange
    )


def test_where_a_time_begins_in_a_range(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 5, timestamps=[NOON_MS + n for n in (0, 5, 2, 9, 1)])
    name = PartitionName(topic, 0)
    ranges = {name: PartitionRange(topic, "", 0, 0, 4)}
    with cluster_offsets(kafka_broker, subscribe=topic) as offsets:
        assert offsets.at_time(ranges, NOON_MS + 2) == {name: 1}
        assert offsets.at_time(ranges, NOON_MS + 6) == {name: 3}
        assert offsets.at_time(ranges, NOON_MS + 10) == {name: 4}


def test_bytes_are_estimated_from_the_next_records(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x" * 1_000] * 100 + [b"y" * 10] * 10)
    name = PartitionName(topic, 0)
    with cluster_offsets(kafka_broker, subscribe=topic) as offsets:
        latest = offsets.latest(is_complete=True)
        at_start = offsets.bytes_per_offset({name: 0}, latest)
        at_end = offsets.bytes_per_offset({name: 100}, latest)
        assert offsets.bytes_per_offset({name: 110}, latest) == {}
    assert 800 < at_start[name] < 1_100
    assert 10 <= at_end[name] < 40


def test_a_cluster_that_is_not_there_is_named() -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "orders",
        "kafka.default.api.timeout.ms": "300",
    }
    found = source_options(options, is_stream=False)
    with open_cluster(found) as cluster, pytest.raises(PipelineError, match=r"127\.0\.0\.1:1"):
        ClusterOffsets(cluster, found).starting()
