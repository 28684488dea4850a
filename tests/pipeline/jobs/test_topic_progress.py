"""Where a job stands in its topics, against a real broker."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import OffsetsLost, PipelineError, TopicRecreated
from odradek.pipeline.jobs.job_options import JobOptions, job_options
from odradek.pipeline.jobs.offload_plan import PartitionProgress
from odradek.pipeline.jobs.topic_progress import topic_progress, without_lost
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import JobCommit, TopicEnds
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex[:8]}"


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        yield cluster


def options(**settings: str) -> JobOptions:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return job_options({"name": "archive", "table": "unused", **named})


def commit(topic: str, topic_id: str, ends: dict[int, int]) -> JobCommit:
    at = TopicEnds(topic_id, dict.fromkeys(ends, 0), ends)
    return JobCommit("archive", 1, {topic: at}, 0, 0, 0, 1)


def bounds(found: dict[PartitionName, PartitionProgress]) -> dict[int, tuple[int, int]]:
    return {name.partition: (at.position, at.end) for name, at in found.items()}


def id_of(cluster: KafkaCluster, topic: str) -> str:
    return cluster.topics([topic])[topic].topic_id


def test_a_new_table_begins_where_the_job_says(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic, 2)
    records.send(topic, [b"a", b"b", b"c"], timestamps=[1000, 2000, 3000])
    for start, position in (
        ("earliest", 0),
        ("latest", 3),
        ("1970-01-01T00:00:02Z", 1),
        ("2200-01-01", 3),
    ):
        found = topic_progress(cluster, options(topics=topic, start=start), None)
        assert bounds(found) == {0: (position, 3), 1: (0, 0)}, start


def test_a_table_goes_on_where_it_ends_and_new_partitions_begin_at_their_first_record(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic)
    records.send(topic, [b"a", b"b", b"c"])
    records.add_partitions(topic, 2)
    records.send(topic, [b"d"], partition=1)
    last = commit(topic, id_of(cluster, topic), {0: 2})
    found = topic_progress(cluster, options(topics=topic, start="latest"), last)
    assert bounds(found) == {0: (2, 3), 1: (0, 1)}


def test_an_open_transaction_holds_the_end_back(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic)
    records.send(topic, [b"a"])
    producer = records.open_transaction(f"of-{topic}", topic, [b"b", b"c"])
    assert bounds(topic_progress(cluster, options(topics=topic), None)) == {0: (0, 1)}
    producer.abort_transaction(30)
    # Markers are written after the answer.
    wait_until(lambda: bounds(topic_progress(cluster, options(topics=topic), None)) == {0: (0, 4)})


def test_deleted_records_stop_the_job_unless_it_may_go_on(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic)
    records.send(topic, [b"a", b"b", b"c", b"d"])
    records.delete_before(topic, 0, 3)
    last = commit(topic, id_of(cluster, topic), {0: 1})
    ranges = (PartitionRange(topic, "", 0, 1, 2), PartitionRange(topic, "", 0, 2, 4))
    fails = options(topics=topic)
    with pytest.raises(OffsetsLost, match=f"{topic}-0: offsets 1 to 2 were deleted"):
        topic_progress(cluster, fails, last)
    with pytest.raises(OffsetsLost, match=r"set fail.on.data.loss to false"):
        without_lost(cluster, fails, ranges)
    goes_on = options(topics=topic, fail_on_data_loss="false")
    assert bounds(topic_progress(cluster, goes_on, last)) == {0: (3, 4)}
    kept = without_lost(cluster, goes_on, ranges)
    assert [(each.start, each.end) for each in kept] == [(2, 2), (3, 4)]


def test_a_recreated_topic_is_another_topic(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic)
    last = commit(topic, id_of(cluster, topic), {0: 0})
    records.recreate(topic)
    records.send(topic, [b"a", b"b"])
    with pytest.raises(TopicRecreated, match=f"{topic} was deleted and created again"):
        topic_progress(cluster, options(topics=topic), last)


def test_a_log_that_ends_below_the_table_is_another_log(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    records.create(topic)
    records.send(topic, [b"a"])
    last = commit(topic, id_of(cluster, topic), {0: 7})
    with pytest.raises(PipelineError, match="ends at offset 1, and the table has its records up"):
        topic_progress(cluster, options(topics=topic), last)


def test_a_pattern_takes_whole_names_and_not_the_jobs_own_dead_letters(
    cluster: KafkaCluster, records: TopicRecords, topic: str
) -> None:
    for name in (topic, f"{topic}.dlq", f"un{topic}"):
        records.create(name)
    wanted = options(topics_pattern=f"{topic}.*", dead_letter_topic=f"{topic}.dlq")
    found = topic_progress(cluster, wanted, None)
    assert {name.topic for name in found} == {topic}
    with pytest.raises(PipelineError, match=r"no topic on .* matches absent-"):
        topic_progress(cluster, options(topics_pattern=f"absent-{topic}"), None)


def test_a_missing_topic_is_named(cluster: KafkaCluster) -> None:
    with pytest.raises(PipelineError, match="topic absent does not exist on 127"):
        topic_progress(cluster, options(topics="absent"), None)
