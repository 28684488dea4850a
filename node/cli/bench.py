"""`odradek bench`: throughput and latency of a cluster, measured through librdkafka.

Works against any bootstrap address. The load generator is Python over librdkafka, on the same
machine as the broker more often than not: figures compare brokers, they are no broker's limit.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import uuid4

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection, reason, with_connection
from odradek.node.cli.output import Json, Output, with_output
from odradek.node.cli.parameters import size
from odradek.node.cli.topic import create_topic, delete_topic

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import KafkaError, Message

R = TypeVar("R")

# One record in so many reports its latency: a callback for each would measure Python.
SAMPLE_EVERY = 64
COLUMNS = [
    "test",
    "records",
    "seconds",
    "records_per_second",
    "mb_per_second",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "client_cpu_seconds",
]


class BenchOptions(NamedTuple):
    """What every benchmark is told. Without a topic there is a new one for its time."""

    topic: str | None
    partitions: int
    size: int
    acks: str
    compression: str

    @property
    def properties(self) -> dict[str, str | int | float]:
        """A producer's."""
        return {"acks": self.acks, "compression.type": self.compression}


def with_bench_options(command: Callable[..., R]) -> Callable[..., R]:
    """The options that every benchmark takes, as its `load`."""

    @wraps(command)
    def loaded(**options: object) -> R:
        values = [options.pop(name) for name in BenchOptions._fields]
        load = BenchOptions(*values)  # type: ignore[arg-type]  # click has made them what they are
        return command(load=load, **options)

    whole = loaded
    for option in (
        click.option("--topic", help="Default: a new one, deleted afterwards."),
        click.option(
            "--partitions", "-p", default=1, show_default=True, type=click.IntRange(min=1)
        ),
        click.option(
            "--size", "-s", default="1KiB", show_default=True, type=size, help="Of a value."
        ),
        click.option(
            "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True
        ),
        click.option(
            "--compression",
            "-z",
            type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
            default="none",
            show_default=True,
        ),
    ):
        whole = option(whole)
    return with_connection(with_output(whole))


@click.group()
def bench() -> None:
    """Measure a cluster: produce, consume, end to end."""


@bench.command("produce")
@click.option("--records", "-n", default=500_000, show_default=True, type=click.IntRange(min=1))
@click.option("--batch-size", default="256KiB", show_default=True, type=size)
@click.option("--linger-ms", default=5.0, show_default=True, type=click.FloatRange(min=0))
@with_bench_options
def bench_produce(
    records: int,
    batch_size: int,
    linger_ms: float,
    load: BenchOptions,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Produce as fast as possible."""
    properties = {**load.properties, "batch.size": batch_size, "linger.ms": linger_ms}
    with _topic(connection, load) as name:
        row = _measure_produce(connection, name, records, load.size, properties, output)
    output.rows([row], COLUMNS)


@bench.command("consume")
@click.option("--records", "-n", default=500_000, show_default=True, type=click.IntRange(min=1))
@with_bench_options
def bench_consume(
    records: int,
    load: BenchOptions,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Consume as fast as possible; a new topic is filled first."""
    properties = {**load.properties, "batch.size": 256 << 10, "linger.ms": 5.0}
    with _topic(connection, load) as name:
        if load.topic is None:
            _measure_produce(connection, name, records, load.size, properties, output)
        row = _measure_consume(connection, name, records, output)
    output.rows([row], COLUMNS)


@bench.command("end-to-end")
@click.option("--records", "-n", default=2000, show_default=True, type=click.IntRange(min=1))
@with_bench_options
def bench_end_to_end(
    records: int,
    load: BenchOptions,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Time from produce to consume, one record at a time."""
    properties = {**load.properties, "linger.ms": 0.0}
    with _topic(connection, load) as name:
        row = _measure_end_to_end(connection, name, records, load.size, properties, output)
    output.rows([row], COLUMNS)


@contextmanager
def _topic(connection: ClusterConnection, load: BenchOptions) -> Iterator[str]:
    """The topic to load: the one given, or a new one for the time of the test."""
    if load.topic is not None:
        yield load.topic
        return
    name = f"odradek-bench-{uuid4().hex[:8]}"
    with ClusterClient(connection) as client:
        create_topic(client, name, load.partitions)
    try:
        yield name
    finally:
        with ClusterClient(connection) as client:
            delete_topic(client, name)


def _record_count(connection: ClusterConnection, topic: str) -> int:
    """The sum of the partitions' end offsets."""
    with ClusterClient(connection) as client:
        ends = offsets.list_offsets(client, offsets.partitions_of(client, [topic]), offsets.LATEST)
    return sum(ends.values())


def _measure_produce(
    connection: ClusterConnection,
    topic: str,
    records: int,
    size: int,
    properties: dict[str, str | int | float],
    output: Output,
) -> dict[str, Json]:
    before = _record_count(connection, topic)
    # Bounds on librdkafka's queue and so on the client's memory.
    producer = connection.producer(
        {
            **properties,
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

    value = os.urandom(size)
    produce, poll = producer.produce, producer.poll
    with _stopwatch("produce") as row, output.progress(f"produce {topic}", records) as advance:
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
        left = producer.flush(connection.timeout_s)
    if left or failures:
        raise click.ClickException(
            f"records were not delivered: {failures[0] if failures else f'{left} are left'}"
        )
    # Only samples report back, so the log itself says whether everything arrived.
    written = _record_count(connection, topic) - before
    if written < records and properties["acks"] != "0":
        raise click.ClickException(f"only {written} of {records} records are in {topic}")
    return _finish(row, records, records * size, latencies_ms)


def _measure_consume(
    connection: ClusterConnection, topic: str, records: int, output: Output
) -> dict[str, Json]:
    from confluent_kafka import TopicPartition

    with ClusterClient(connection) as client:
        partition_ids = offsets.partitions_of(client, [topic])
        starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
        ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    wanted = min(records, sum(ends.values()) - sum(starts.values()))
    if not wanted:
        raise click.ClickException(f"topic {topic!r} is empty")
    consumer = connection.consumer(
        {
            "group.id": "odradek-bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": False,
            "queued.min.messages": 1_000_000,
        }
    )
    count = size = 0
    deadline = time.monotonic() + connection.timeout_s
    try:
        with _stopwatch("consume") as row, output.progress(f"consume {topic}", wanted) as advance:
            consumer.assign(
                [
                    TopicPartition(name, number, starts[name, number])
                    for name, number in partition_ids
                ]
            )
            while count < wanted:
                batch = consumer.consume(min(10_000, wanted - count), 0.5)
                for message in batch:
                    error = message.error()
                    if error is not None:
                        raise click.ClickException(reason(error))
                    size += len(message.value() or b"")
                count += len(batch)
                advance(len(batch))
                if batch:
                    deadline = time.monotonic() + connection.timeout_s
                elif time.monotonic() > deadline:
                    raise click.ClickException(f"got {count} of {wanted} records, then nothing")
    finally:
        consumer.close()
    return _finish(row, count, size, [])


def _measure_end_to_end(
    connection: ClusterConnection,
    topic: str,
    records: int,
    size: int,
    properties: dict[str, str | int | float],
    output: Output,
) -> dict[str, Json]:
    from confluent_kafka import TopicPartition

    producer = connection.producer(properties)
    consumer = connection.consumer(
        {"group.id": "odradek-bench", "enable.auto.commit": False, "fetch.wait.max.ms": 500}
    )
    with ClusterClient(connection) as client:
        partition_ids = offsets.partitions_of(client, [topic])
        ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    consumer.assign(
        [TopicPartition(name, number, ends[name, number]) for name, number in partition_ids]
    )
    latencies_ms: list[float] = []
    try:
        # The first record pays for connections and leader look-ups: it is not counted.
        _round_trip(producer.produce, producer.poll, consumer.poll, topic, b"w" * size, connection)
        with _stopwatch("end-to-end") as row, output.progress("end to end", records) as advance:
            for number in range(records):
                value = number.to_bytes(8, "big") + b"x" * max(0, size - 8)
                latencies_ms.append(
                    _round_trip(
                        producer.produce, producer.poll, consumer.poll, topic, value, connection
                    )
                )
                advance(1)
    finally:
        consumer.close()
    return _finish(row, records, records * size, latencies_ms)


def _round_trip(
    produce: Callable[[str, bytes], None],
    serve: Callable[[float], int],
    poll: Callable[[float], Message | None],
    topic: str,
    value: bytes,
    connection: ClusterConnection,
) -> float:
    """Milliseconds from produce() to the record's return."""
    began = time.perf_counter()
    produce(topic, value)
    while True:
        message = poll(connection.timeout_s)
        if message is None:
            raise click.ClickException("a record did not come back in time")
        error = message.error()
        if error is not None:
            raise click.ClickException(reason(error))
        if message.value() == value:
            serve(0)
            return (time.perf_counter() - began) * 1000


@contextmanager
def _stopwatch(test: str) -> Iterator[dict[str, Json]]:
    """A row that has the wall and the processor time of the block when it ends."""
    row: dict[str, Json] = {"test": test}
    began, used = time.perf_counter(), time.process_time()
    yield row
    row["seconds"] = round(time.perf_counter() - began, 3)
    row["client_cpu_seconds"] = round(time.process_time() - used, 3)


def _finish(
    row: dict[str, Json], records: int, size: int, latencies_ms: list[float]
) -> dict[str, Json]:
    seconds = row["seconds"]
    assert isinstance(seconds, float)
    seconds = max(seconds, 0.001)
    row |= {
        "records": records,
        "records_per_second": round(records / seconds),
        "mb_per_second": round(size / seconds / 1e6, 2),
        "p50_ms": None,
        "p99_ms": None,
        "max_ms": None,
    }
    if latencies_ms:
        cuts = (
            statistics.quantiles(latencies_ms, n=100, method="inclusive")
            if len(latencies_ms) > 1
            else latencies_ms * 99
        )
        row |= {
            "p50_ms": round(cuts[49], 3),
            "p99_ms": round(cuts[98], 3),
            "max_ms": round(max(latencies_ms), 3),
        }
    return row
