"""What a read_committed consumer sees of a topic."""

from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.support.waiting import LIVENESS_S, wait_until


class CommittedRecord(NamedTuple):
    """A record of which the transaction is committed, or that had none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, str | bytes | None]]


def committed_records(
    bootstrap_servers: str, topic: str, *, timeout_s: float = LIVENESS_S
) -> list[CommittedRecord]:
    """All records up to the last stable offsets, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "committed-records",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        found: list[CommittedRecord] = []
        ended: set[int] = set()

        def has_read_all() -> bool:
            for message in consumer.consume(1_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(_record_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
            return len(ended) == len(partitions)

        wait_until(has_read_all, timeout_s=timeout_s, what=f"the end of {topic}")
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def _record_of(message: Message) -> CommittedRecord:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers = message.headers()
    return CommittedRecord(
        partition,
        offset,
        message.key(),
        message.value(),
        message.timestamp()[1],
        headers if isinstance(headers, list) else [],
    )
