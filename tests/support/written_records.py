"""Records for tests that look at partitions, times and headers: written as a test says."""

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from tests.support.waiting import LIVENESS_S

NOW_MS = round(time.time() * 1000)
"""Older records are not safe from retention, whose first check is 30 s after a broker's start."""


class WrittenRecord(NamedTuple):
    """A record before it has an offset."""

    partition: int
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = NOW_MS
    headers: Sequence[tuple[str, str | bytes | None]] = ()


def write_records(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[WrittenRecord],
    *,
    transactional_id: str | None = None,
    aborts: bool = False,
) -> None:
    """Returns when all are acknowledged; in one transaction if there is an id."""
    properties: dict[str, object] = {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "log_level": 0,
    }
    if transactional_id is not None:
        properties["transactional.id"] = transactional_id
    producer = Producer(properties)
    if transactional_id is not None:
        producer.init_transactions(LIVENESS_S)
        producer.begin_transaction()
    failures: list[str] = []
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    assert producer.flush(LIVENESS_S) == 0
    assert failures == []
    if transactional_id is not None:
        if aborts:
            producer.abort_transaction(LIVENESS_S)
        else:
            producer.commit_transaction(LIVENESS_S)


def write_values(
    bootstrap_servers: str, topic: str, values: Iterable[bytes], partition: int = 0
) -> None:
    """Plain values in one partition."""
    write_records(bootstrap_servers, topic, (WrittenRecord(partition, value) for value in values))
