"""The measured cases: one load against one broker, and the CPU time that it takes there.

Raw cases use `load.c`, which is built on first use. It prepares one batch and counts responses, so
that the broker is the bottleneck. The other cases use librdkafka through `odradek bench`, where the
client is often the bottleneck.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench import processes
from bench.brokers import Broker

SOURCE = Path(__file__).with_name("load.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. `value` is the compared figure, in the unit of the case."""

    value: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us_per_record: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Which figure of a run is compared."""

    name: str
    unit: str
    is_lower_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkCase(Figure):
    """A load, and the figure of it that is compared."""

    run: Callable[[Broker, "Bench"], Result]
    writes_much: bool = False
    """Whether the page cache is filled before (page_cache.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContent:
    """What consumers read: as many records as are produced in the time of a case, up to
    `records_max`."""

    partitions: int
    record_bytes: int = 1024
    per_batch: int = 64
    records_max: int = sys.maxsize


class Bench:
    """The built load generator, and the duration of a case."""

    def __init__(self, directory: Path, *, seconds: float) -> None:
        self.seconds = seconds
        self.load = self._build(directory)

    def _build(self, directory: Path) -> Path | None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return None
        program = directory / "load"
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        return program

    def measure(
        self,
        broker: Broker,
        figure: str,
        partitions: int,
        command: Callable[[str], Sequence[str]],
        read: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> Result:
        """Run a load on a new topic. `figure` is the compared field of what it prints: JSON, or
        what `read` makes of it."""
        with_topic = new_topic(partitions)
        admin = _admin(broker)
        make_topic(admin, with_topic)
        try:
            return self._run(broker, figure, command(with_topic.topic), read)
        finally:
            admin.delete_topics([with_topic.topic])[with_topic.topic].result(60)

    def measure_consume(
        self,
        broker: Broker,
        content: TopicContent,
        figure: str,
        command: Callable[[str, int, float], Sequence[str]],
        read: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> Result:
        """Fill a topic, read it once to warm up, then read it again and measure. `command` is that
        of a consumer of a topic, records, and seconds, if it reads again and again."""
        assert self.load is not None
        topic = new_topic(content.partitions)
        admin = _admin(broker)
        make_topic(admin, topic)
        try:
            host = [str(self.load), "produce", "127.0.0.1", str(broker.port), topic.topic]
            load = [content.partitions, content.record_bytes, content.per_batch, 5, -1]
            fill = [*host, *map(str, load), str(self.seconds)]
            filled = subprocess.run(fill, capture_output=True, text=True, check=True)
            records = min(json.loads(filled.stdout)["records"], content.records_max)
            subprocess.run(command(topic.topic, records, 0), capture_output=True, check=True)
            return self._run(broker, figure, command(topic.topic, records, self.seconds), read)
        finally:
            admin.delete_topics([topic.topic])[topic.topic].result(60)

    def _run(
        self,
        broker: Broker,
        figure: str,
        command: Sequence[str],
        read: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> Result:
        before = processes.cpu_seconds(broker.pid)
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "PYTHONPATH": str(SOURCE.parents[1])},
        )
        used = processes.cpu_seconds(broker.pid) - before
        if ran.returncode:
            raise RuntimeError(f"{broker.name}: {' '.join(command)}: {ran.stderr[-500:]}")
        told = json.loads(ran.stdout) if read is None else read(ran.stdout)
        row = told[0] if isinstance(told, list) else told
        return Result(
            value=row[figure],
            p50_ms=row.get("p50_ms"),
            p99_ms=row.get("p99_ms"),
            cpu_us_per_record=used / row["records"] * 1e6,
        )


DELETED_S: Final = 1.0


def new_topic(partitions: int) -> NewTopic:
    """A topic of any name. What is deleted is gone DELETED_S later, and not in the middle of a
    later case, whose CPU time that would be."""
    config = {"file.delete.delay.ms": str(int(1000 * DELETED_S))}
    return NewTopic(f"bench-{uuid4().hex[:8]}", partitions, config=config)


def _admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def make_topic(admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic and wait until the leaders of all its partitions accept requests."""
    admin.create_topics([topic], operation_timeout=30)[topic.topic].result(60)
    asked = {
        TopicPartition(topic.topic, partition): OffsetSpec.latest()
        for partition in range(topic.num_partitions)
    }
    deadline = time.monotonic() + 30
    while True:
        try:
            # Metadata names leaders a moment before they accept requests.
            for found in admin.list_offsets(asked, request_timeout=10).values():
                found.result(30)
            return
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic.topic} has no leaders") from error
            time.sleep(0.05)


def partitions_text(partitions: int) -> str:
    """`1 partition`."""
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def raw_produce(*, size: int, per_batch: int, in_flight: int, partitions: int) -> BenchmarkCase:
    """Produce with acks=all through load.c."""

    def run(broker: Broker, bench: Bench) -> Result:
        figure = "requests_per_second" if per_batch == 1 else "mb_per_second"
        load = str(bench.load)

        def command(topic: str) -> list[str]:
            host = [load, "produce", "127.0.0.1", str(broker.port), topic]
            numbers = (partitions, size, per_batch, in_flight, -1)
            return [*host, *map(str, numbers), str(bench.seconds)]

        return bench.measure(broker, figure, partitions, command)

    what = "1 record" if per_batch == 1 else f"{per_batch} records"
    where = partitions_text(partitions)
    return BenchmarkCase(
        name=f"produce {size} B, {what} a request, {in_flight} in flight, {where}",
        unit="requests/s" if per_batch == 1 else "MB/s",
        is_lower_better=False,
        run=run,
        writes_much=per_batch > 1,
    )


def raw_consume(*, partitions: int, fetch_bytes: int) -> BenchmarkCase:
    """Consume batches of 64 records of 1 KiB through load.c, from the page cache."""

    def run(broker: Broker, bench: Bench) -> Result:
        def command(topic: str, records: int, seconds: float) -> list[str]:
            host = [str(bench.load), "consume", "127.0.0.1", str(broker.port), topic]
            return [*host, *map(str, (partitions, fetch_bytes, records, seconds))]

        content = TopicContent(partitions=partitions)
        return bench.measure_consume(broker, content, "mb_per_second", command)

    return BenchmarkCase(
        name=f"consume 1 KiB, {fetch_bytes >> 20} MiB a fetch, {partitions_text(partitions)}",
        unit="MB/s",
        is_lower_better=False,
        run=run,
    )


def raw_round_trip(*, acks: int) -> BenchmarkCase:
    """From a produce request to the response of the fetch that waits for it, through load.c."""

    def run(broker: Broker, bench: Bench) -> Result:
        load = str(bench.load)

        def command(topic: str) -> list[str]:
            host = [load, "roundtrip", "127.0.0.1", str(broker.port), topic]
            return [*host, "100", str(int(600 * bench.seconds)), str(acks)]

        return bench.measure(broker, "p50_ms", 1, command)

    return BenchmarkCase(
        name=f"produce to consume, acks={'all' if acks < 0 else acks}, median",
        unit="ms",
        is_lower_better=True,
        run=run,
    )


def odradek_bench(test: str, broker: Broker, topic: str, *options: str) -> list[str]:
    """The command of a benchmark of the command line, on an existing topic."""
    base = [sys.executable, "-m", "odradek", "bench", test, "--output", "json"]
    return [*base, "--bootstrap", broker.bootstrap, "--topic", topic, *options]


def librdkafka(test: str, *options: str, figure: str, unit: str) -> BenchmarkCase:
    """A benchmark of `odradek bench` (librdkafka from Python)."""

    def run(broker: Broker, bench: Bench) -> Result:
        def command(topic: str) -> list[str]:
            return odradek_bench(test, broker, topic, *options)

        return bench.measure(broker, figure, 1, command)

    return BenchmarkCase(
        name=f"librdkafka {test} {' '.join(options)}".strip(),
        unit=unit,
        is_lower_better=unit == "ms",
        run=run,
    )


RAW_CASES = (
    raw_produce(size=100, per_batch=1, in_flight=1, partitions=1),
    raw_produce(size=100, per_batch=1, in_flight=5, partitions=1),
    raw_produce(size=100, per_batch=1, in_flight=20, partitions=6),
    raw_produce(size=1024, per_batch=16, in_flight=5, partitions=1),
    raw_produce(size=1024, per_batch=64, in_flight=5, partitions=6),
    raw_produce(size=1024, per_batch=250, in_flight=5, partitions=1),
    raw_produce(size=1024, per_batch=900, in_flight=5, partitions=1),
    raw_consume(partitions=1, fetch_bytes=1 << 20),
    raw_consume(partitions=6, fetch_bytes=1 << 20),
    raw_round_trip(acks=1),
    raw_round_trip(acks=-1),
)
CLIENT_CASES = (
    librdkafka("produce", "--records", "300000", figure="mb_per_second", unit="MB/s"),
    librdkafka("end-to-end", "--records", "2000", figure="p50_ms", unit="ms"),
)
