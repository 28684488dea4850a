"""A power loss takes records that consumers have read: they learn of the truncation (KIP-320)."""

import shutil
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.storage.catalog import Catalog
from tests.e2e.conftest import StartNode
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "ledger"
FETCH_VERSION = 12
EPOCH_VERSION = 4


def produce(node: EmbeddedBroker, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(TOPIC, value=value.encode(), partition=0)
    assert producer.flush(30) == 0


def restore_after_power_loss(node: EmbeddedBroker) -> None:
    """Put the stores back into the state of `synced`, as if the machine had lost the rest."""
    shutil.rmtree(node.data / "stores")
    (node.directory / "synced").rename(node.data / "stores")
    for store in (node.data / "stores").iterdir():
        with Catalog(store, map_bytes=1 << 30).change() as change:
            change.put_property("clean", "0")
            change.put_property("boot_id", "another")


def leader_epoch(node: EmbeddedBroker) -> int:
    """The current leader epoch."""
    (topic,) = node.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])).topics
    return topic.partitions[0].leader_epoch


def end_for(node: EmbeddedBroker, epoch: int) -> EpochEndOffset:
    """The end offset of a leader epoch."""
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[partition])]
    )
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(request, EPOCH_VERSION, OffsetForLeaderEpochResponse)
    return answer.topics[0].partitions[0]


def fetch(node: EmbeddedBroker, offset: int, *, current: int, last: int) -> PartitionData:
    """Fetch at an offset, as a client in the leader epoch `current` whose last record was of the
    epoch `last`."""
    partition = FetchPartition(
        partition=0,
        current_leader_epoch=current,
        fetch_offset=offset,
        last_fetched_epoch=last,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[partition])])
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(request, FETCH_VERSION, FetchResponse)
    return answer.responses[0].partitions[0]


@pytest.mark.slow
def test_a_consumer_learns_that_what_it_read_was_lost_and_its_offsets_were_used_again(
    start_node: StartNode,
) -> None:
    node = start_node()
    node.create_topic(TOPIC)
    produce(node, [f"kept-{n}" for n in range(10)])
    node.stop()
    shutil.copytree(node.data / "stores", node.directory / "synced")
    node.start()
    produce(node, [f"lost-{n}" for n in range(10)])
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "group.id": "unused",
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    read: list[str] = []

    def read_one() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            read.append((message.value() or b"").decode())
        return len(read) == 20

    wait_until(read_one, what="the consumer has read everything")
    epoch_read = leader_epoch(node)

    node.kill()
    restore_after_power_loss(node)
    node.start()
    produce(node, [f"new-{n}" for n in range(15)])

    lost_from = end_for(node, epoch_read)
    assert lost_from.end_offset == 10
    epoch_now = leader_epoch(node)
    assert epoch_now > epoch_read
    answer = fetch(node, 20, current=epoch_read, last=epoch_read)
    assert ErrorCode(answer.error_code) is ErrorCode.FENCED_LEADER_EPOCH
    answer = fetch(node, 20, current=epoch_now, last=epoch_read)
    assert answer.diverging_epoch is not None
    assert answer.diverging_epoch.end_offset == 10

    def truncation() -> KafkaError | None:
        message = consumer.poll(0.1)
        return message.error() if message is not None else None

    error = wait_until(truncation, what="the consumer is told")
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET, error
    assert "log truncation detected at offset 20" in error.str()
    assert "broker end offset is 10" in error.str()
    consumer.close()
