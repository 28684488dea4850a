"""Client quotas: a producer and a consumer of 1 MB/s, and a producer without a quota beside them.

    python -m bench.quotas [--bootstrap HOST:PORT]

Without an address a node of Odradek is started; with one, the same is measured of another broker.
The rates are of record values over 30 s, from the first record on and 15 s later: the window of a
quota, 11 samples of a second, may be used up at once at its beginning.
"""

import os
import statistics
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.options import log_progress
from odradek.node.blocking_client import BlockingClient
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)

LIMIT = 1_000_000
VALUE_BYTES = 10_000
FREE_RATE = 5_000_000
"""Bytes per second of the producer without a quota."""
ALONE_S = 10.0
WINDOW_S = 30.0
LATER_S = 15.0
TOLERANCE = 0.10
TIMEOUT_S = 30.0
PRODUCER_ID, CONSUMER_ID, FREE_ID = "limited-producer", "limited-consumer", "free-producer"


class ByteCount:
    """Bytes over time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._bytes: list[int] = []

    def add(self, count: int) -> None:
        self._times.append(time.monotonic())
        self._bytes.append(count)

    def rate(self, start_s: float, end_s: float) -> float:
        """Bytes per second between two times, counted from the first bytes."""
        first = self._times[0]
        begin, end = (bisect_left(self._times, first + at) for at in (start_s, end_s))
        return sum(self._bytes[begin:end]) / (end_s - start_s)


class Load(threading.Thread):
    """One client that works until `finish`."""

    def __init__(self, bootstrap: str, topic: str, client_id: str) -> None:
        super().__init__(daemon=True)
        self.bytes = ByteCount()
        self._settings = {"bootstrap.servers": bootstrap, "client.id": client_id}
        self._topic = topic
        self._ending = threading.Event()

    def finish(self) -> None:
        self._ending.set()
        self.join(2 * TIMEOUT_S)


class ProducerLoad(Load):
    """Produces at `rate` bytes per second, or as much as the broker takes. The latencies of
    acknowledgements are in `latencies`, in seconds."""

    def __init__(self, bootstrap: str, topic: str, client_id: str, rate: int | None) -> None:
        super().__init__(bootstrap, topic, client_id)
        self._rate = rate
        self.latencies: list[float] = []

    def run(self) -> None:
        settings = {**self._settings, "queue.buffering.max.messages": 2_000, "batch.size": 100_000}
        producer = Producer(settings)
        value = os.urandom(VALUE_BYTES)
        began, sent = time.monotonic(), 0
        while not self._ending.is_set():
            is_due = self._rate is None or sent < (time.monotonic() - began) * self._rate
            if is_due and len(producer) < 1_000:
                producer.produce(self._topic, value, on_delivery=self._delivered)
                sent += VALUE_BYTES
                producer.poll(0)
            else:
                producer.poll(0.002)
        producer.purge()
        producer.flush(TIMEOUT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.bytes.add(VALUE_BYTES)
            self.latencies.append(message.latency() or 0.0)


class ConsumerLoad(Load):
    """Reads the topic from its beginning."""

    def run(self) -> None:
        # What librdkafka fetches ahead is not counted before it is consumed: keep it small.
        settings = {**self._settings, "group.id": "bench", "queued.max.messages.kbytes": 1_000}
        consumer = Consumer({**settings, "fetch.message.max.bytes": 200_000})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._ending.is_set():
            for message in consumer.consume(100, 0.05):
                if message.error() is None:
                    self.bytes.add(len(message.value() or b""))
        consumer.close()


@click.command(help=__doc__)
@click.option("--bootstrap", help="Measure this broker.")
def main(bootstrap: str | None) -> None:
    with _broker(bootstrap) as servers:
        is_kept = _measure(servers)
    if not is_kept:
        raise click.ClickException("a rate is not within 10 % of its quota")


@contextmanager
def _broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        yield broker.bootstrap_servers


def _measure(servers: str) -> bool:
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [f"bench-{name}-{time.time_ns()}" for name in ("limited", "full", "free")]
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        created.result(TIMEOUT_S)
    limited, full, free = topics
    log_progress("fills the consumer's topic")
    _fill(servers, full)
    for client_id, key in (
        (PRODUCER_ID, "producer_byte_rate"),
        (CONSUMER_ID, "consumer_byte_rate"),
    ):
        _set_quota(servers, client_id, key)

    log_progress("the producer without a quota alone")
    alone = ProducerLoad(servers, free, FREE_ID, FREE_RATE)
    alone.start()
    time.sleep(ALONE_S)
    alone.finish()

    log_progress("all three")
    producer = ProducerLoad(servers, limited, PRODUCER_ID, None)
    consumer = ConsumerLoad(servers, full, CONSUMER_ID)
    beside = ProducerLoad(servers, free, FREE_ID, FREE_RATE)
    loads: list[Load] = [producer, consumer, beside]
    for load in loads:
        load.start()
    time.sleep(LATER_S + WINDOW_S + 2.0)
    for load in loads:
        load.finish()
    is_kept = True
    for name, load in (("producer", producer), ("consumer", consumer)):
        for start_s in (0.0, LATER_S):
            rate = load.bytes.rate(start_s, start_s + WINDOW_S)
            is_kept &= abs(rate - LIMIT) <= TOLERANCE * LIMIT
            click.echo(
                f"{name} of {LIMIT / 1e6:g} MB/s, 30 s from second {start_s:g} on:"
                f" {rate / 1e6:.3f} MB/s"
            )
    for name, load, seconds in (("alone", alone, ALONE_S - 1), ("beside them", beside, WINDOW_S)):
        p50, p99 = statistics.median(load.latencies), _percentile(load.latencies, 0.99)
        click.echo(
            f"producer without a quota, {name}: {load.bytes.rate(0, seconds) / 1e6:.3f} MB/s,"
            f" acknowledged after {p50 * 1e3:.1f} ms (p50), {p99 * 1e3:.1f} ms (p99)"
        )
    return is_kept


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _fill(servers: str, topic: str) -> None:
    """Twice of what the consumer may read."""
    producer = Producer({"bootstrap.servers": servers, "batch.size": 100_000})
    value = os.urandom(VALUE_BYTES)
    for _ in range(int(2 * LIMIT * (LATER_S + WINDOW_S) / VALUE_BYTES)):
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def _set_quota(servers: str, client_id: str, key: str) -> None:
    host, _, port = servers.partition(",")[0].rpartition(":")
    entity = [EntityData(entity_type="client-id", entity_name=client_id)]
    entry = AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key=key, value=LIMIT)])
    with BlockingClient(host, int(port), timeout_s=TIMEOUT_S) as client:
        (result,) = client.ask(AlterClientQuotasRequest(entries=[entry])).entries
        assert not result.error_code, result.error_message


if __name__ == "__main__":
    main()
