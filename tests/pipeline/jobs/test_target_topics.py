"""Topics that a copy writes to."""

import pytest
from confluent_kafka import Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.target_topics import (
    TopicAdmin,
    check_empty,
    partition_ends,
    wait_until_stable,
)
from odradek.pipeline.kafka_types import LATEST, PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.ports import free_port
from tests.support.written_records import write_values


def admin_of(broker: EmbeddedBroker) -> TopicAdmin:
    return TopicAdmin({"bootstrap.servers": broker.bootstrap_servers}, timeout_s=30)


def count_of(broker: EmbeddedBroker, topic: str) -> int:
    with KafkaCluster(broker.bootstrap_servers) as cluster:
        return len(cluster.topics([topic])[topic].partition_ids)


def test_a_missing_topic_is_made_with_partitions_and_configs(kafka_broker: EmbeddedBroker) -> None:
    admin = admin_of(kafka_broker)
    configs = {"cleanup.policy": "compact", "retention.ms": "1000"}
    admin.ensure("target-new", 3, None, configs=configs)
    assert count_of(kafka_broker, "target-new") == 3
    found = admin.configs(["target-new"])["target-new"]
    assert found.items() >= {**configs, "message.timestamp.type": "CreateTime"}.items()
    # Somebody else may have been quicker.
    admin.ensure("target-new", 3, None)


def test_a_topic_with_fewer_partitions_is_refused_or_grows(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("target-small", partitions=2)
    admin = admin_of(kafka_broker)
    admin.ensure("target-small", 2, 2)
    with pytest.raises(PipelineError, match="has 2 partitions and the source 3: add partitions"):
        admin.ensure("target-small", 3, 2)
    admin.ensure("target-small", 3, 2, grow=True)
    assert count_of(kafka_broker, "target-small") == 3


def test_a_topic_that_would_replace_timestamps_is_refused(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("target-times", configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(PipelineError, match=r"LogAppendTime and would replace .* to CreateTime"):
        admin_of(kafka_broker).ensure("target-times", 1, 1)


def test_what_the_cluster_refuses_is_told(kafka_broker: EmbeddedBroker) -> None:
    with pytest.raises(PipelineError, match="cannot create topic target-bad at 127"):
        admin_of(kafka_broker).ensure("target-bad", 1, None, configs={"retention.ms": "x"})


def test_only_an_empty_topic_is_empty(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("target-full", partitions=2)
    both = [PartitionName("target-full", each) for each in range(2)]
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        check_empty(cluster, both)
        write_values(kafka_broker.bootstrap_servers, "target-full", [b"a", b"b"], partition=1)
        assert partition_ends(cluster, both) == {both[0]: 0, both[1]: 2}
        check_empty(cluster, both[:1])
        with pytest.raises(PipelineError, match=r"target-full-1 has offsets 0 to 1; .*--append"):
            check_empty(cluster, both)


def test_groups_are_listed(kafka_broker: EmbeddedBroker) -> None:
    assert isinstance(admin_of(kafka_broker).groups(), list)
    address = f"127.0.0.1:{free_port()}"
    nobody = TopicAdmin({"bootstrap.servers": address, "log_level": "0"}, timeout_s=1)
    with pytest.raises(PipelineError, match=f"cannot list groups at {address}"):
        nobody.groups()


def test_an_open_transaction_is_waited_for(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("target-open")
    address = kafka_broker.bootstrap_servers
    here = PartitionName("target-open", 0)
    producer = Producer({"bootstrap.servers": address, "transactional.id": "target-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("target-open", b"a")
    producer.flush(30)
    with KafkaCluster(address, timeout_s=0.2) as hurried:
        with pytest.raises(
            PipelineError, match=r"target-open-0 at .* has an open transaction at 0"
        ):
            wait_until_stable(hurried, here)
        producer.commit_transaction(30)
    with KafkaCluster(address) as cluster:
        wait_until_stable(cluster, here)
        found = cluster.list_offsets({here: LATEST}, read_committed=True)
        assert found[here].offset == 2


@pytest.mark.parametrize(
    ("configs", "limit"),
    [
        ({"retention.ms": "1000"}, 1000),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, 1000),
        ({}, 7 * 86_400_000),
    ],
)
def test_a_topic_says_how_old_its_records_may_become(
    kafka_broker: EmbeddedBroker, configs: dict[str, str], limit: int | None
) -> None:
    topic = f"target-old-{'-'.join(configs.values()).replace(',', '-')}"
    kafka_broker.create_topic(topic, configs=configs)
    assert admin_of(kafka_broker).retention_ms(topic) == limit
