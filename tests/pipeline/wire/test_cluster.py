"""Topics and offsets of a real cluster, and what is told when there is none."""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.node.secured_broker import SecuredBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster, ListedOffset
from odradek.pipeline.wire.partition_reader import read_partition
from odradek.pipeline.wire.primitives import topic_id_text
from odradek.pipeline.wire.security import wire_security
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.ports import free_port
from tests.support.waiting import wait_until

TIME_MS = 1_700_000_000_000


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


def test_topics(cluster: KafkaCluster, kafka_broker: EmbeddedBroker) -> None:
    name = f"cluster-{uuid4().hex}"
    kafka_broker.create_topic(name, partitions=3)
    (view,) = cluster.topics([name, "there-is-none", "no such/topic"]).values()
    answer = kafka_broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
    assert (view.name, view.is_internal, view.partition_ids) == (name, False, (0, 1, 2))
    assert view.topic_id == topic_id_text(bytes(answer.topics[0].topic_id))
    assert cluster.topics()[name] == view
    assert cluster.topics([]) == {}


def test_offsets(cluster: KafkaCluster, kafka_broker: EmbeddedBroker) -> None:
    name = f"cluster-{uuid4().hex}"
    # Of times that are older than Kafka's default of seven days.
    kafka_broker.create_topic(name, partitions=3, configs={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for number in range(10):
        producer.produce(name, b"v", partition=1, timestamp=TIME_MS + 10 * number)
    assert producer.flush(30) == 0
    empty, full = PartitionName(name, 0), PartitionName(name, 1)

    def listed(timestamp_ms: int) -> dict[PartitionName, ListedOffset]:
        wanted = {empty: timestamp_ms, full: timestamp_ms}
        return cluster.list_offsets(wanted, read_committed=True)

    assert {name: found.offset for name, found in listed(EARLIEST).items()} == {empty: 0, full: 0}
    assert {name: found.offset for name, found in listed(LATEST).items()} == {empty: 0, full: 10}
    none = ListedOffset(-1, -1)
    assert listed(TIME_MS + 35) == {empty: none, full: ListedOffset(4, TIME_MS + 40)}
    assert listed(TIME_MS + 91) == {empty: none, full: none}
    assert cluster.list_offsets({}, read_committed=True) == {}


def test_the_latest_offset_is_below_open_transactions_or_above(
    cluster: KafkaCluster, kafka_broker: EmbeddedBroker
) -> None:
    name = PartitionName(f"cluster-{uuid4().hex}", 0)
    kafka_broker.create_topic(name.topic)
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": uuid4().hex}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name.topic, b"v", partition=0)
    assert producer.flush(30) == 0
    for read_committed, end in ((True, 0), (False, 1)):
        found = cluster.list_offsets({name: LATEST}, read_committed=read_committed)
        assert found[name].offset == end
    producer.abort_transaction(30)


def test_a_connection_that_the_broker_closed_is_opened_again(
    cluster: KafkaCluster, kafka_broker: EmbeddedBroker
) -> None:
    before = cluster.topics()
    kafka_broker.restart()
    assert cluster.topics() == before


def test_a_partition_that_does_not_exist(kafka_broker: EmbeddedBroker) -> None:
    with (
        KafkaCluster(kafka_broker.bootstrap_servers, timeout_s=0.5) as cluster,
        pytest.raises(PipelineError, match="No offsets of absent-3 from"),
    ):
        cluster.list_offsets({PartitionName("absent", 3): LATEST}, read_committed=True)


def test_a_topic_that_cannot_be(cluster: KafkaCluster) -> None:
    with pytest.raises(PipelineError, match="refuses topic a/b: INVALID_TOPIC_EXCEPTION"):
        cluster.list_offsets({PartitionName("a/b", 0): LATEST}, read_committed=True)


def test_a_session_that_ends_is_renewed(tmp_path: Path) -> None:
    settings = {"listener.name.clients.connections.max.reauth.ms": "1500"}
    with SecuredBroker(tmp_path, settings=settings) as broker:
        broker.broker.create_topic("orders")
        properties = broker.properties("SCRAM-SHA-512")
        producer = Producer({**properties, "log_level": 0})
        for number in range(20):
            producer.produce("orders", b"%d" % number, partition=0)
            assert producer.flush(30) == 0
        with KafkaCluster(broker.bootstrap_servers, wire_security(properties)) as cluster:
            (node,) = cluster.topics(["orders"])["orders"].partition_ids
            wanted = PartitionRange("orders", "", 0, 0, 20)
            batches = read_partition(cluster, wanted, fetch_max_bytes=1, batch_rows=1)
            found = [len(next(batches))]
            first = cluster.connection(node)
            # One request of the reader is on its way, so its connection outlives the session.
            started = time.monotonic()
            wait_until(lambda: time.monotonic() > started + 1.6, what="the session has ended")
            found += [len(batch) for batch in batches]
            assert sum(found) == 20
            second = cluster.connection(node)
            assert second is not first
            wait_until(lambda: second.is_due_for_renewal, what="the session ends soon")
            assert cluster.connection(node) is not second


def test_a_cluster_that_cannot_be_reached() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        KafkaCluster(address, timeout_s=0.3) as cluster,
        pytest.raises(PipelineError, match=f"No broker of {address} can be reached.*refused"),
    ):
        cluster.topics()


def test_one_reachable_broker_is_enough(kafka_broker: EmbeddedBroker) -> None:
    addresses = f"127.0.0.1:{free_port()}, PLAINTEXT://{kafka_broker.bootstrap_servers}"
    with KafkaCluster(addresses, timeout_s=10) as cluster:
        assert cluster.topics(["absent"]) == {}


@pytest.mark.parametrize("text", ["", "host:port", "host:1,,", "host:"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(PipelineError, match=r"bootstrap\.servers"):
        KafkaCluster(text)


def test_a_password_that_is_wrong_is_not_tried_for_long(
    kafka_broker_secured: SecuredBroker,
) -> None:
    properties = {**kafka_broker_secured.properties("SCRAM-SHA-256"), "sasl.password": "wrong"}
    address = kafka_broker_secured.bootstrap_servers
    with (
        KafkaCluster(address, wire_security(properties), timeout_s=600) as cluster,
        pytest.raises(PipelineError, match="refuses SCRAM-SHA-256"),
    ):
        cluster.topics()
