"""Cases of `make bench` with real clients on the same processors: one record a request,
transactions of Kafka's Java producer, and consumers.

What a load generator in C sees is not what a client sees that shares the machine with the broker.
Kafka's own client needs its jars, franz-go a Go toolchain; a client that cannot be had is left out
and said so.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.brokers import Broker
from bench.cases import (
    Bench,
    BenchmarkCase,
    Result,
    TopicContent,
    odradek_bench,
    partitions_text,
)
from bench.options import log_progress

RECORDS: Final = 20_000
"""Of one run with one record a request. Half as many are mostly Java compiling its code."""
_RECORD_BYTES: Final = 100
TRANSACTIONAL_RECORDS: Final = 300_000
_TRANSACTIONAL_RECORD_BYTES: Final = 1024
TRANSACTIONS_MS: Final = 100
_CONSUMER_FIELDS: Final = 10
"""Of ConsumerPerformance: start, end, MB, MB/s, records, records/s, time of the rebalance, time of
the fetches, and MB/s and records/s in that."""
_GO_SOURCE: Final = Path(__file__).with_name("franz_go")
_BUILD_S: Final = 600.0
_JAVA_RESULT: Final = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec.*?([\d.]+) ms 50th.*?([\d.]+) ms 99th", re.MULTILINE
)

_READ: Final = (
    TopicContent(partitions=1, per_batch=250, records_max=500_000),
    TopicContent(partitions=6, record_bytes=100, per_batch=2_400, records_max=3_000_000),
)
"""What consumers read: 500 and 300 MB in batches of a quarter of a megabyte, as a producer in bulk
sends them."""

_Command = Callable[[Broker, str, int], Sequence[str]]
"""The command that produces to a topic of a broker, with so many requests in flight."""


def case_name(client: str, in_flight: int) -> str:
    """The name of a row."""
    return f"{client}, 1 record a request, {in_flight} in flight"


LIBRDKAFKA: Final = "librdkafka"
JAVA: Final = "Kafka's Java producer"
FRANZ_GO: Final = "franz-go"
JAVA_CONSUMER: Final = "Kafka's Java consumer"
CLIENTS: Final = (JAVA, FRANZ_GO, LIBRDKAFKA)
IN_FLIGHT: Final = (1, 5)
TRANSACTIONS: Final = f"{JAVA}, transactions of {TRANSACTIONS_MS} ms"


def cases(kafka_jars: Path, directory: Path) -> list[BenchmarkCase]:
    """A case for each client that can be had, at 1 and 5 requests in flight."""
    commands: dict[str, _Command] = {JAVA: _java(kafka_jars)}
    franz = build_franz_go(directory)
    if franz is None:
        log_progress("no franz-go: its cases are left out")
    else:
        commands[FRANZ_GO] = _franz_go(franz)
    commands[LIBRDKAFKA] = _librdkafka
    single_records = [
        _case(client, in_flight, commands[client])
        for client in CLIENTS
        if client in commands
        for in_flight in IN_FLIGHT
    ]
    return [*single_records, _transactions(kafka_jars)]


def consume_name(client: str, content: TopicContent) -> str:
    """The name of a row."""
    size = "1 KiB" if content.record_bytes == 1024 else f"{content.record_bytes} B"
    return f"{client}, consume {size}, {partitions_text(content.partitions)}"


CONSUMER_ROWS: Final = tuple(
    consume_name(client, content) for client in (LIBRDKAFKA, JAVA_CONSUMER) for content in _READ
)


def consumers(jars: Path) -> list[BenchmarkCase]:
    """The cases of consumers. load.c fills their topics."""
    return [
        _consumer(client, content, command, read)
        for client, command, read in (
            (LIBRDKAFKA, _librdkafka_consumer, None),
            (JAVA_CONSUMER, _java_consumer(jars), told_by_java_consumer),
        )
        for content in _READ
    ]


def _consumer(
    client: str,
    content: TopicContent,
    command: Callable[[Broker, str, int], Sequence[str]],
    read: Callable[[str], Mapping[str, float]] | None,
) -> BenchmarkCase:
    return BenchmarkCase(
        name=consume_name(client, content),
        unit="MB/s",
        is_lower_better=False,
        run=lambda broker, bench: bench.measure_consume(
            broker,
            content,
            "mb_per_second",
            lambda topic, records, _seconds: command(broker, topic, records),
            read,
        ),
    )


def _librdkafka_consumer(broker: Broker, topic: str, records: int) -> Sequence[str]:
    return odradek_bench("consume", broker, topic, "--records", str(records))


def _java_consumer(jars: Path) -> Callable[[Broker, str, int], Sequence[str]]:
    """Kafka's ConsumerPerformance."""

    def command(broker: Broker, topic: str, records: int) -> Sequence[str]:
        options = ["--topic", topic, "--num-records", str(records), "--hide-header"]
        tool = _java_tool(jars, "ConsumerPerformance")
        return [*tool, "--bootstrap-server", broker.bootstrap, *options]

    return command


def told_by_java_consumer(output: str) -> dict[str, float]:
    """The figures of Kafka's ConsumerPerformance: the last line, without the time that the group
    took. ValueError if there are none."""
    fields = output.strip().rpartition("\n")[2].split(",")
    if len(fields) != _CONSUMER_FIELDS:
        raise ValueError(f"ConsumerPerformance told no result: {output[-500:]}")
    records, mb_per_second, records_per_second = (float(fields[at]) for at in (4, 8, 9))
    return {
        "records": records,
        "mb_per_second": mb_per_second,
        "records_per_second": records_per_second,
    }


def build_franz_go(directory: Path) -> Path | None:
    """The program in franz_go/; None without Go or without its modules."""
    go = shutil.which("go")
    if go is None:
        return None
    program = directory / "franz"
    built = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=_GO_SOURCE,
        capture_output=True,
        check=False,
        timeout=_BUILD_S,
    )
    return None if built.returncode else program


def told_by_java(output: str) -> dict[str, float]:
    """The figures of Kafka's ProducerPerformance. ValueError if there are none."""
    found = _JAVA_RESULT.findall(output)
    if not found:
        raise ValueError(f"ProducerPerformance told no result: {output[-500:]}")
    records, per_second, p50_ms, p99_ms = map(float, found[-1])
    return {
        "records": records,
        "records_per_second": per_second,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
    }


def _case(client: str, in_flight: int, command: _Command) -> BenchmarkCase:
    def run(broker: Broker, bench: Bench) -> Result:
        return bench.measure(
            broker,
            "records_per_second",
            1,
            lambda topic: command(broker, topic, in_flight),
            _figures_of,
        )

    return BenchmarkCase(
        name=case_name(client, in_flight), unit="records/s", is_lower_better=False, run=run
    )


def _transactions(jars: Path) -> BenchmarkCase:
    """As many records as the client can send in batches, in transactions of some time."""

    def command(topic: str, bootstrap: str) -> Sequence[str]:
        properties = {"bootstrap.servers": bootstrap, "acks": "all"}
        tool = _performance_tool(
            jars, topic, TRANSACTIONAL_RECORDS, _TRANSACTIONAL_RECORD_BYTES, properties
        )
        duration = ["--transaction-duration-ms", str(TRANSACTIONS_MS)]
        return [*tool, "--transactional-id", topic, *duration]

    return BenchmarkCase(
        name=TRANSACTIONS,
        unit="records/s",
        is_lower_better=False,
        run=lambda broker, bench: bench.measure(
            broker,
            "records_per_second",
            1,
            lambda topic: command(topic, broker.bootstrap),
            _figures_of,
        ),
    )


def _java_tool(jars: Path, name: str) -> list[str]:
    return ["java", "-Xmx512M", "-cp", f"{jars}/*", f"org.apache.kafka.tools.{name}"]


def _performance_tool(
    jars: Path, topic: str, records: int, record_bytes: int, properties: Mapping[str, str]
) -> list[str]:
    """Kafka's ProducerPerformance, as fast as it can."""
    tool = _java_tool(jars, "ProducerPerformance")
    load = ["--num-records", str(records), "--record-size", str(record_bytes)]
    settings = [f"{name}={value}" for name, value in properties.items()]
    return [*tool, "--topic", topic, *load, "--throughput", "-1", "--producer-props", *settings]


def _figures_of(output: str) -> dict[str, float]:
    if output.startswith("{"):
        told: dict[str, float] = json.loads(output)
        return told
    return told_by_java(output)


def _java(jars: Path) -> _Command:
    def command(broker: Broker, topic: str, in_flight: int) -> Sequence[str]:
        properties = {
            "bootstrap.servers": broker.bootstrap,
            "acks": "all",
            "batch.size": "0",
            "linger.ms": "0",
            "max.in.flight.requests.per.connection": str(in_flight),
        }
        return _performance_tool(jars, topic, RECORDS, _RECORD_BYTES, properties)

    return command


def _librdkafka(broker: Broker, topic: str, in_flight: int) -> Sequence[str]:
    program = [sys.executable, "-m", "bench.one_record"]
    return [*program, broker.bootstrap, topic, str(RECORDS), str(in_flight)]


def _franz_go(program: Path) -> _Command:
    return lambda broker, topic, in_flight: [
        str(program),
        broker.bootstrap,
        topic,
        str(RECORDS),
        str(in_flight),
    ]
