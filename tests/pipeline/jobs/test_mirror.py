"""A cluster mirrored to another: records, offsets and groups, with real brokers on both sides."""

from collections.abc import Iterator
from threading import Event

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from odradek.node.embedded import EmbeddedBroker
from odradek.node.secured_broker import SecuredBroker
from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.copy_options import ClusterAccess, MirrorOptions
from odradek.pipeline.jobs.mirror import Mirror, MirrorRound
from odradek.pipeline.jobs.mirrored_offsets import map_topic, runs_in
from odradek.pipeline.jobs.target_topics import TopicAdmin
from odradek.pipeline.jobs.transactional_copy import OffsetRun
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.committed_records import CommittedRecord
from tests.support.settled_topics import settled_records
from tests.support.written_records import WrittenRecord, write_records, write_values

KEEPS = {"retention.ms": "-1"}
"""Some records of these tests are of 1970."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("source")) as broker:
        yield broker


def properties(broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


def mirror_of(
    source: EmbeddedBroker, target: EmbeddedBroker, *topics: str, **more: object
) -> Mirror:
    options = {"name": topics[0], "topics": topics, "rows_per_transaction": 5, **more}
    return Mirror(
        MirrorOptions(
            source=ClusterAccess(bootstrap_servers=source.bootstrap_servers),
            target=ClusterAccess(bootstrap_servers=target.bootstrap_servers),
            **options,  # type: ignore[arg-type]  # of the test
        )
    )


def contents(broker: EmbeddedBroker, topic: str) -> list[CommittedRecord]:
    """Records by partition, without their offsets."""
    return [
        record._replace(offset=-1) for record in settled_records(broker.bootstrap_servers, topic)
    ]


def set_group(broker: EmbeddedBroker, group: str, offsets: dict[PartitionName, int]) -> None:
    listed = [TopicPartition(*name, offset) for name, offset in offsets.items()]
    request = ConsumerGroupTopicPartitions(group, listed)
    admin = AdminClient(dict(properties(broker)))
    admin.alter_consumer_group_offsets([request])[group].result(30)


def group_of(broker: EmbeddedBroker, group: str, *names: PartitionName) -> dict[PartitionName, int]:
    return committed_offsets(properties(broker), group, names, timeout_s=30)


def write_mixed(broker: EmbeddedBroker, topic: str, transactional_id: str) -> None:
    """Plain records, a committed and an aborted transaction, with all that records have."""
    write_records(
        broker.bootstrap_servers,
        topic,
        [
            WrittenRecord(0, b"a", b"k", 5_000, [("h", b"1"), ("h", None)]),
            WrittenRecord(0, None, b"k", 4_000),
            WrittenRecord(1, b"", b"", 1_700_000_000_123, [("ä", b"\xff")]),
        ],
    )
    for aborts in (True, False):
        value = b"aborted" if aborts else b"committed"
        listed = [WrittenRecord(number % 2, value + b"-%d" % number) for number in range(8)]
        write_records(
            broker.bootstrap_servers,
            topic,
            listed,
            transactional_id=transactional_id,
            aborts=aborts,
        )
    settled_records(broker.bootstrap_servers, topic)


def test_committed_records_arrive_as_they_were_and_once(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    configs = {"retention.ms": "-1", "min.insync.replicas": "1"}
    source.create_topic("m-all", partitions=2, configs=configs)
    write_mixed(source, "m-all", "all-1")
    mirror = mirror_of(source, kafka_broker, "m-all")
    first = mirror.run_once()
    assert (first.rows, first.topics) == (11, 1)
    expected = contents(source, "m-all")
    assert len(expected) == 11
    assert contents(kafka_broker, "m-all") == expected
    assert mirror.run_once().transactions == 0
    write_mixed(source, "m-all", "all-1")
    # Another process, for which nothing is known but what the target holds.
    assert mirror_of(source, kafka_broker, "m-all").run_once().rows == 11
    assert contents(kafka_broker, "m-all") == contents(source, "m-all")
    admin = TopicAdmin(properties(kafka_broker), timeout_s=30)
    configured = admin.configs(["m-all"])["m-all"]
    assert (configured["retention.ms"], configured["message.timestamp.type"]) == (
        "-1",
        "CreateTime",
    )


def test_the_map_leads_from_every_record_to_its_copy(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-map", partitions=2, configs=KEEPS)
    write_mixed(source, "m-map", "map-1")
    mirror_of(source, kafka_broker, "m-map").run_once()
    write_mixed(source, "m-map", "map-1")
    mirror_of(source, kafka_broker, "m-map").run_once()
    copies = {
        (record.partition, record.offset): record
        for record in settled_records(kafka_broker.bootstrap_servers, "m-map")
    }
    led = {}
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        for name, run in runs_in(cluster, map_topic("m-map")):
            for step in range(run.records):
                place = (name.partition, run.source_offset + step)
                led[place] = copies[name.partition, run.target_offset + step]
    for record in settled_records(source.bootstrap_servers, "m-map"):
        assert led.pop((record.partition, record.offset))._replace(offset=-1) == record._replace(
            offset=-1
        )
    assert led == {}


def test_offsets_of_groups_are_translated_and_only_go_forward(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-groups", partitions=2, configs=KEEPS)
    write_mixed(source, "m-groups", "groups-1")
    names = [PartitionName("m-groups", each) for each in range(2)]
    with KafkaCluster(source.bootstrap_servers) as cluster:
        ends = cluster.list_offsets(dict.fromkeys(names, -1), read_committed=True)
    set_group(source, "readers", {names[0]: 1, names[1]: ends[names[1]].offset})
    set_group(source, "pipe.other", {names[0]: 1})
    set_group(source, "left-out", {names[0]: 1})
    kafka_broker.create_topic("m-groups", partitions=2, configs=KEEPS)
    set_group(kafka_broker, "ahead", {names[0]: 3})
    set_group(source, "ahead", {names[0]: 0})
    mirror = mirror_of(source, kafka_broker, "m-groups", group_pattern="readers|ahead|pipe.*")
    done = mirror.run_once()
    assert set(done.groups.written) == {"readers"}
    assert done.groups.skipped == {}
    copied = settled_records(kafka_broker.bootstrap_servers, "m-groups")
    last = [record.offset for record in copied if record.partition == 1][-1]
    first = [record.offset for record in copied if record.partition == 0]
    moved = group_of(kafka_broker, "readers", *names)
    assert moved == {names[0]: first[1], names[1]: last + 1}
    assert group_of(kafka_broker, "ahead", *names) == {names[0]: 3}
    assert group_of(kafka_broker, "left-out", *names) == {}
    assert mirror.run_once().groups.written == {}
    # Behind a gap of the source: the aborted transaction and its marker.
    committed = [
        record.offset
        for record in settled_records(source.bootstrap_servers, "m-groups")
        if record.partition == 0
    ]
    set_group(source, "readers", {names[0]: committed[2], names[1]: 0})
    assert mirror.run_once().groups.written == {"readers": {names[0]: first[2]}}


def test_topics_are_chosen_by_a_pattern_get_a_prefix_and_grow(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    for name in ("m-pattern-1", "m-pattern-2", "m-other"):
        source.create_topic(name)
        write_values(source.bootstrap_servers, name, [name.encode()])
    mirror = mirror_of(
        source,
        kafka_broker,
        "m-pattern",
        topics=(),
        topic_pattern="m-pattern.*",
        prefix="east.",
    )
    assert mirror.run_once().rows == 2
    assert [each.value for each in contents(kafka_broker, "east.m-pattern-2")] == [b"m-pattern-2"]
    admin = AdminClient(dict(properties(source)))
    admin.create_partitions([NewPartitions("m-pattern-1", 3)])["m-pattern-1"].result(30)
    write_values(source.bootstrap_servers, "m-pattern-1", [b"grown"], partition=2)
    assert mirror.run_once().rows == 1
    assert contents(kafka_broker, "east.m-pattern-1") == contents(source, "m-pattern-1")


def test_a_cluster_is_mirrored_to_itself_under_a_prefix_only(source: EmbeddedBroker) -> None:
    source.create_topic("m-self")
    write_values(source.bootstrap_servers, "m-self", [b"a"])
    with pytest.raises(PipelineError, match=r"one cluster.*set topics\.prefix"):
        mirror_of(source, source, "m-self").run_once()
    assert mirror_of(source, source, "m-self", prefix="copy.").run_once().rows == 1


def test_a_target_that_holds_something_is_only_appended_to(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    for broker in (source, kafka_broker):
        broker.create_topic("m-full")
        write_values(broker.bootstrap_servers, "m-full", [broker.bootstrap_servers.encode()])
    with pytest.raises(PipelineError, match=r"m-full at .* is not empty"):
        mirror_of(source, kafka_broker, "m-full").run_once()
    assert mirror_of(source, kafka_broker, "m-full", append=True).run_once().rows == 1
    assert len(contents(kafka_broker, "m-full")) == 2


def test_records_that_were_deleted_before_are_told(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-lost")
    write_values(source.bootstrap_servers, "m-lost", [b"0"])
    mirror_of(source, kafka_broker, "m-lost").run_once()
    write_values(source.bootstrap_servers, "m-lost", [b"1", b"2", b"3"])
    admin = AdminClient(dict(properties(source)))
    place = TopicPartition("m-lost", 0, 3)
    admin.delete_records([place])[place].result(30)
    with pytest.raises(PipelineError, match="m-lost-0 has lost the offsets 1 to 2"):
        mirror_of(source, kafka_broker, "m-lost").run_once()
    done = mirror_of(source, kafka_broker, "m-lost", fail_on_data_loss=False).run_once()
    assert done.lost == {PartitionName("m-lost", 0): (1, 3)}
    assert [each.value for each in contents(kafka_broker, "m-lost")] == [b"0", b"3"]


def test_a_topic_that_was_made_again_ends_it(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-again")
    write_values(source.bootstrap_servers, "m-again", [b"0"])
    mirror_of(source, kafka_broker, "m-again").run_once()
    admin = AdminClient(dict(properties(source)))
    admin.delete_topics(["m-again"])["m-again"].result(30)
    source.create_topic("m-again")
    write_values(source.bootstrap_servers, "m-again", [b"1", b"2"])
    with pytest.raises(TopicRecreated, match="m-again was deleted and made again"):
        mirror_of(source, kafka_broker, "m-again").run_once()


def test_a_missing_topic_is_told(source: EmbeddedBroker, kafka_broker: EmbeddedBroker) -> None:
    with pytest.raises(PipelineError, match="topic m-none is not at"):
        mirror_of(source, kafka_broker, "m-none").run_once()


def test_rounds_go_on_until_they_are_stopped(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-every")
    stop = Event()
    rows: list[int] = []

    def tell(done: MirrorRound) -> None:
        rows.append(done.rows)
        write_values(source.bootstrap_servers, "m-every", [b"%d" % len(rows)])
        if len(rows) == 3:
            stop.set()

    mirror_of(source, kafka_broker, "m-every").run_every(0.01, stop, tell, _never)
    assert rows == [0, 1, 1]
    with pytest.raises(PipelineError, match="topic m-nowhere is not at"):
        mirror_of(source, kafka_broker, "m-nowhere").run_every(0.01, Event(), tell, _never)


def test_a_round_that_fails_later_is_told_and_tried_again(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-retry")
    stop = Event()
    told: list[str] = []
    mirror = mirror_of(source, kafka_broker, "m-retry")

    def after_round(_: MirrorRound) -> None:
        if told:
            stop.set()
            return
        admin = AdminClient(dict(properties(source)))
        admin.delete_topics(["m-retry"])["m-retry"].result(30)

    def after_failure(error: PipelineError) -> None:
        told.append(str(error))
        if len(told) == 3:
            stop.set()

    mirror.run_every(0.01, stop, after_round, after_failure)
    assert len(told) == 3
    assert "topic m-retry is not at" in told[0]


def _never(error: PipelineError) -> None:
    raise error


def test_runs_are_as_long_as_they_can_be(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("m-runs")
    write_values(source.bootstrap_servers, "m-runs", [b"%d" % each for each in range(12)])
    mirror_of(source, kafka_broker, "m-runs", rows_per_transaction=1_000).run_once()
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        found = [*runs_in(cluster, map_topic("m-runs"))]
    assert found == [(PartitionName("m-runs", 0), OffsetRun(0, 0, 12))]


def test_both_clusters_may_ask_for_a_login(
    source: EmbeddedBroker, kafka_broker_secured: SecuredBroker
) -> None:
    source.create_topic("m-login")
    write_values(source.bootstrap_servers, "m-login", [b"a"])
    properties = kafka_broker_secured.properties("SCRAM-SHA-256")
    access = ClusterAccess(bootstrap_servers=properties.pop("bootstrap.servers"), kafka=properties)
    there = ClusterAccess(bootstrap_servers=source.bootstrap_servers)
    to = MirrorOptions(name="login", topics=("m-login",), source=there, target=access)
    assert Mirror(to).run_once().rows == 1
    back = MirrorOptions(
        name="back", topics=("m-login",), prefix="back.", source=access, target=there
    )
    assert Mirror(back).run_once().rows == 1
    assert [each.value for each in contents(source, "back.m-login")] == [b"a"]
