"""`odradek bench`: throughput and latency of a cluster, measured through librdkafka.

Works against any bootstrap address. The load generator is Python over librdkafka, often on the same
machine as the broker: figures compare brokers and are not the limit of a broker.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.connection import reason
from odradek.node.cli.output import Output, Row
from odradek.node.cli.parameters import acks_option, compression_option, size
from odradek.node.cli.topic import create_topic, delete_topic

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import Consumer, KafkaError, Message, Producer

# One record in so many reports its latency: a callback for each would measure Python.
SAMPLE_EVERY = 64


class Benchmark(NamedTuple):
    """What to measure, with `records` records of `size` bytes."""

    client: ClusterClient
    output: Output
    topic: str
    is_new_topic: bool
    records: int
    size: int
    properties: Mapping[str, str]
    """Of the producer."""


def with_bench_options(measure: Callable[..., Row]) -> Callable[..., None]:
    """Make a click command of a function that takes a Benchmark, and the options of its own, and
    returns a row. Without --topic there is a new topic while it runs."""

    @compression_option
    @acks_option
    @click.option(
        "--size",
        "-s",
        default="1KiB",
        show_default=True,
        type=size,
        metavar="BYTES",
        help="Of a value.",
    )
    @click.option("--partitions", "-p", default=1, show_default=True, type=click.IntRange(min=1))
    @click.option("--topic", help="Default: a new one, deleted afterwards.")
    @wraps(measure)
    def run(
        *,
        topic: str | None,
        partitions: int,
        records: int,
        size: int,
        acks: str,
        compression: str,
        client: ClusterClient,
        output: Output,
        **options: object,
    ) -> None:
        client.time_each_answer()
        properties = {"acks": acks, "compression.type": compression}
        name = topic or f"odradek-bench-{uuid4().hex[:8]}"
        load = Benchmark(client, output, name, topic is None, records, size, properties)
        if topic is None:
            create_topic(client, name, partitions)
        try:
            row = measure(load, **options)
        finally:
            if topic is None:
                delete_topic(client, name)
        output.rows([row])

    return with_client(run)


@click.group()
def bench() -> None:
    """Measure a cluster: produce, consume, end to end."""


@bench.command("produce")
@click.option("--records", "-n", default=500_000, show_default=True, type=click.IntRange(min=1))
@click.option("--batch-size", default="256KiB", show_default=True, type=size, metavar="BYTES")
@click.option("--linger-ms", default=5.0, show_default=True, type=click.FloatRange(min=0))
@with_bench_options
def bench_produce(load: Benchmark, batch_size: int, linger_ms: float) -> Row:
    """Produce as fast as possible."""
    return _measure_produce(load, batch_size, linger_ms)


@bench.command("consume")
@click.option("--records", "-n", default=500_000, show_default=True, type=click.IntRange(min=1))
@with_bench_options
def bench_consume(load: Benchmark) -> Row:
    """Consume as fast as possible; a new topic is filled first."""
    if load.is_new_topic:
        _measure_produce(load, 256 << 10, 5.0)
    client, output = load.client, load.output
    partition_ids = offsets.partitions_of(client, [load.topic])
    starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    wanted = min(load.records, sum(ends.values()) - sum(starts.values()))
    if not wanted:
        raise click.ClickException(f"topic {load.topic!r} is empty")
    properties: dict[str, int | str] = {
        "auto.offset.reset": "earliest",
        "check.crcs": False,
        "queued.min.messages": 1_000_000,
        # Else it asks for nothing for a whole second whenever 64 MiB wait for this loop.
        "fetch.queue.backoff.ms": 1,
    }
    count = byte_count = 0
    deadline = time.monotonic() + client.timeout_s
    with (
        _consumer(load, properties) as consumer,
        _stopwatch() as times,
        output.progress(f"consume {load.topic}", wanted) as advance,
    ):
        _assign(consumer, starts)
        while count < wanted:
            batch = consumer.consume(min(10_000, wanted - count), 0.5)
            for message in batch:
                byte_count += len(_value(message) or b"")
            count += len(batch)
            advance(len(batch))
            if batch:
                deadline = time.monotonic() + client.timeout_s
            elif time.monotonic() > deadline:
                raise click.ClickException(f"got {count} of {wanted} records, then nothing")
    return _row("consume", times, count, byte_count, [])


@bench.command("end-to-end")
@click.option("--records", "-n", default=2000, show_default=True, type=click.IntRange(min=1))
@with_bench_options
def bench_end_to_end(load: Benchmark) -> Row:
    """Time from produce to consume, one record at a time."""
    client, output, size = load.client, load.output, load.size
    producer = client.connection.producer({**load.properties, "linger.ms": 0.0})
    partition_ids = offsets.partitions_of(client, [load.topic])
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    latencies_ms: list[float] = []
    with _consumer(load, {"fetch.wait.max.ms": 500}) as consumer:
        _assign(consumer, ends)
        # The first record includes connections and leader look-ups: it is not counted.
        _round_trip(producer, consumer, load, b"w" * size)
        with _stopwatch() as times, output.progress("end to end", load.records) as advance:
            for number in range(load.records):
                value = number.to_bytes(8, "big") + b"x" * max(0, size - 8)
                latencies_ms.append(_round_trip(producer, consumer, load, value))
                advance(1)
    return _row("end-to-end", times, load.records, load.records * size, latencies_ms)


def _record_count(load: Benchmark) -> int:
    """The sum of the partitions' end offsets."""
    partition_ids = offsets.partitions_of(load.client, [load.topic])
    return sum(offsets.list_offsets(load.client, partition_ids, offsets.LATEST).values())


def _measure_produce(load: Benchmark, batch_size: int, linger_ms: float) -> Row:
    topic, records = load.topic, load.records
    before = _record_count(load)
    producer = load.client.connection.producer(
        {
            **load.properties,
            "batch.size": batch_size,
            "linger.ms": linger_ms,
            # Bounds on librdkafka's queue and so on the client's memory.
            "queue.buffering.max.kbytes": 131072,
            "queue.buffering.max.messages": 1000000,
        }
    )
    latencies_ms: list[float] = []
    failures: list[str] = []

    def on_sample(error: KafkaError | None, message: Message) -> None:
        latency = message.latency()
        if error is not None:
            failures.append(reason(error))
        elif latency is not None:
            latencies_ms.append(latency * 1000)

    value = os.urandom(load.size)
    produce, poll = producer.produce, producer.poll
    with _stopwatch() as times, load.output.progress(f"produce {topic}", records) as advance:
        for number in range(records):
            is_sample = number % SAMPLE_EVERY == 0
            while True:
                try:
                    if is_sample:
                        produce(topic, value, on_delivery=on_sample)
                    else:
                        produce(topic, value)
                    break
                except BufferError:
                    poll(0.01)
            if number % 10_000 == 9_999:
                poll(0)
                advance(10_000)
        left = producer.flush(load.client.timeout_s)
    if left or failures:
        raise click.ClickException(
            f"records were not delivered: {failures[0] if failures else f'{left} are left'}"
        )
    # Only samples report back, so the end offsets say whether everything was written.
    written = _record_count(load) - before
    if written < records and load.properties["acks"] != "0":
        raise click.ClickException(f"only {written} of {records} records are in {topic}")
    return _row("produce", times, records, records * load.size, latencies_ms)


@contextmanager
def _consumer(load: Benchmark, properties: Mapping[str, int | str]) -> Iterator[Consumer]:
    consumer = load.client.connection.consumer(
        {"group.id": "odradek-bench", "enable.auto.commit": False, **properties}
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _assign(consumer: Consumer, positions: Mapping[offsets.PartitionId, int]) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign(
        [TopicPartition(name, number, offset) for (name, number), offset in positions.items()]
    )


def _value(message: Message) -> bytes | None:
    """The value of a record; ClickException if the message is an error."""
    error = message.error()
    if error is not None:
        raise click.ClickException(reason(error))
    return message.value()


def _round_trip(producer: Producer, consumer: Consumer, load: Benchmark, value: bytes) -> float:
    """Milliseconds from produce() until the record is consumed."""
    began = time.perf_counter()
    producer.produce(load.topic, value)
    while True:
        message = consumer.poll(load.client.timeout_s)
        if message is None:
            raise click.ClickException("a record was not consumed in time")
        if _value(message) == value:
            producer.poll(0)
            return (time.perf_counter() - began) * 1000


@contextmanager
def _stopwatch() -> Iterator[dict[str, float]]:
    """Wall time and processor time of the block, in seconds, when it has ended."""
    times: dict[str, float] = {}
    began, used = time.perf_counter(), time.process_time()
    yield times
    times["wall"] = round(time.perf_counter() - began, 3)
    times["processor"] = round(time.process_time() - used, 3)


def _row(
    test: str,
    times: Mapping[str, float],
    record_count: int,
    byte_count: int,
    latencies_ms: list[float],
) -> Row:
    seconds = max(times["wall"], 0.001)
    cuts: list[float] = latencies_ms * 99
    if len(latencies_ms) > 1:
        cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {
        "test": test,
        "records": record_count,
        "seconds": times["wall"],
        "records_per_second": round(record_count / seconds),
        "mb_per_second": round(byte_count / seconds / 1e6, 2),
        "p50_ms": round(cuts[49], 3) if cuts else None,
        "p99_ms": round(cuts[98], 3) if cuts else None,
        "max_ms": round(max(latencies_ms), 3) if cuts else None,
        "client_cpu_seconds": times["processor"],
    }
