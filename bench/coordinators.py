"""The coordinators of Odradek and of Apache Kafka: transactions, rebalances, share groups.

    python -m bench.coordinators --kafka-jars FOLDER

Clients are librdkafka, and Kafka's own for share groups. Both brokers run all the time, and one is
idle while the other is loaded. Both run transactions as a warm-up before the first round.
"""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import brokers, processes, promises, report
from bench.brokers import Broker
from bench.cases import Figure, Result, make_topic
from bench.members import GroupMembers
from bench.options import (
    REPOSITORY,
    log_progress,
    with_kafka_jars,
    with_page,
    with_rounds,
    with_warm_up,
)

PAGE = REPOSITORY / "docs" / "benchmarks-coordinators.md"
MEMBERS = 20
PRODUCERS = 8
SHARED_RECORDS = 100_000
_TIMEOUT_S = 60.0
_Results = list[tuple[Figure, Result]]


def _seconds(name: str) -> Figure:
    return Figure(name=name, unit="s", is_lower_better=True)


REBALANCES = {
    protocol: (
        _seconds(f"{MEMBERS} members join, {title}"),
        _seconds(f"one more joins, {title}"),
        _seconds(f"one of {MEMBERS + 1} leaves, {title}"),
    )
    for protocol, title in (("classic", "classic protocol"), ("consumer", "KIP-848"))
}
SHARED = Figure(
    name=f"a share group reads {SHARED_RECORDS:,} records of 1 KiB, 6 partitions",
    unit="MB/s",
    is_lower_better=False,
)


@click.command()
@with_kafka_jars
@with_rounds
@click.option("--seconds", default=5.0, show_default=True, help="Of each case of transactions.")
@with_warm_up
@click.option("--only", help="Only cases whose name contains this.")
@with_page(PAGE)
def main(
    kafka_jars: Path, rounds: int, seconds: float, warm_up: float, only: str | None, page: Path
) -> None:
    """Measure Odradek's coordinators beside Kafka's and write a page of ratios."""
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-bench-")))
        log_progress("starting both brokers")
        both = (
            stack.enter_context(brokers.kafka(kafka_jars, directory / "kafka")),
            stack.enter_context(brokers.odradek(REPOSITORY, directory / "odradek")),
        )
        for broker in both if warm_up else ():
            log_progress(f"warming {broker.name} for {warm_up:.0f} s")
            measure_transactions(broker, warm_up, records=1, producers=1)
        results: dict[tuple[Figure, str], list[Result]] = {}
        cases = [case for name, case in _cases(kafka_jars, seconds).items() if (only or "") in name]
        for number in range(rounds):
            for case in cases:
                for broker in both if number % 2 == 0 else reversed(both):
                    for figure, result in case(broker):
                        results.setdefault((figure, broker.name), []).append(result)
                        log_progress(
                            f"{broker.name:8} {figure.name}: {result.value:.3f} {figure.unit}"
                        )
        kafka, odradek = both
        options = f"--rounds {rounds} --seconds {seconds:g} --warm-up {warm_up:g}"
        text = report.render_page(
            report.COORDINATORS_INTRODUCTION.format(warm_up=warm_up),
            [
                report.Comparison(
                    case=figure,
                    kafka=results[figure, kafka.name],
                    odradek=results[figure, odradek.name],
                )
                for figure in dict.fromkeys(figure for figure, _ in results)
            ],
            versions={kafka.name: kafka.version, odradek.name: odradek.version},
            machine=processes.machine(),
            command=f"make bench-coordinators ARGS='{options}'",
            load_average=load_average,
        )
    page.write_text(text)
    log_progress(f"written to {page}")
    promises.check(
        {
            figure.name: report.ratio(
                figure, results[figure, kafka.name], results[figure, odradek.name]
            )
            for figure in dict.fromkeys(figure for figure, _ in results)
        }
    )


def _cases(jars: Path, seconds: float) -> dict[str, Callable[[Broker], _Results]]:
    """The cases by name (option --only)."""
    return {
        "transactions of 1": lambda broker: measure_transactions(
            broker, seconds, records=1, producers=1
        ),
        "transactions of 100": lambda broker: measure_transactions(
            broker, seconds, records=100, producers=1
        ),
        "transactions of 1, several": lambda broker: measure_transactions(
            broker, seconds, records=1, producers=PRODUCERS
        ),
        "rebalance classic": lambda broker: measure_rebalances(broker, "classic"),
        "rebalance consumer": lambda broker: measure_rebalances(broker, "consumer"),
        "share": lambda broker: measure_share_group(broker, jars),
    }


def transactions_name(records: int, producers: int) -> str:
    """The name of the row for transactions of `records` records."""
    what = "1 record" if records == 1 else f"{records} records"
    who = "one producer" if producers == 1 else f"{producers} producers"
    return f"transactions of {what}, {who}"


def measure_transactions(
    broker: Broker, seconds: float, *, records: int, producers: int
) -> _Results:
    """Every producer commits transactions of `records` records, one after another."""
    figure = Figure(
        name=transactions_name(records, producers), unit="transactions/s", is_lower_better=False
    )
    with _topic(broker, 1) as topic:
        clients = [
            Producer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "transactional.id": f"{topic}-{number}",
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            for number in range(producers)
        ]
        counts = [0] * producers
        for client in clients:
            client.init_transactions(_TIMEOUT_S)
        used = processes.cpu_seconds(broker.pid)
        began = time.monotonic()

        def commit(number: int) -> None:
            client = clients[number]
            while time.monotonic() - began < seconds:
                client.begin_transaction()
                for _ in range(records):
                    client.produce(topic, b"x" * 100)
                client.commit_transaction(_TIMEOUT_S)
                counts[number] += 1

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        used = processes.cpu_seconds(broker.pid) - used
    done = sum(counts)
    return [
        (
            figure,
            Result(
                value=done / took,
                p50_ms=None,
                p99_ms=None,
                cpu_us_per_record=used / (done * records) * 1e6,
            ),
        )
    ]


def measure_rebalances(broker: Broker, protocol: str) -> _Results:
    """Several members join at once, then one more joins, then one leaves."""
    partition_count = 2 * MEMBERS + 2
    with (
        _topic(broker, partition_count) as topic,
        GroupMembers(broker.bootstrap, topic, partition_count, protocol) as members,
    ):
        times = (members.join(MEMBERS), members.join(), members.leave())
    return [
        (figure, Result(value=value, p50_ms=None, p99_ms=None, cpu_us_per_record=None))
        for figure, value in zip(REBALANCES[protocol], times, strict=True)
    ]


def measure_share_group(broker: Broker, jars: Path) -> _Results:
    """Kafka's share consumer performance tool, over records that are in the log already."""
    with _topic(broker, 6) as topic:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "batch.size": 262_144, "linger.ms": 5}
        )
        for _ in range(SHARED_RECORDS):
            while True:
                try:
                    producer.produce(topic, b"x" * 1024)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush(_TIMEOUT_S)
        group = f"{topic}-sharers"
        where = ["--bootstrap-server", broker.bootstrap]
        entity = ["--entity-type", "groups", "--entity-name", group]
        earliest = ["--alter", *entity, "--add-config", "share.auto.offset.reset=earliest"]
        _java(jars, "kafka.admin.ConfigCommand", *where, *earliest)
        used = processes.cpu_seconds(broker.pid)
        count = ["--num-records", str(SHARED_RECORDS), "--timeout", "30000", "--hide-header"]
        measurement = "org.apache.kafka.tools.ShareConsumerPerformance"
        told = _java(jars, measurement, *where, "--topic", topic, "--group", group, *count)
        used = processes.cpu_seconds(broker.pid) - used
    fields = [field.strip() for field in told.strip().splitlines()[-1].split(",")]
    if int(fields[5]) < SHARED_RECORDS:
        raise RuntimeError(f"{broker.name}: the share group has read {fields[5]} records only")
    result = Result(
        value=float(fields[3]),
        p50_ms=None,
        p99_ms=None,
        cpu_us_per_record=used / SHARED_RECORDS * 1e6,
    )
    return [(SHARED, result)]


def _java(jars: Path, *command: str) -> str:
    ran = subprocess.run(
        ["java", "-cp", f"{jars}/*", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if ran.returncode:
        raise RuntimeError(f"{command[0]}: {ran.stderr[-500:]}")
    return ran.stdout


@contextmanager
def _topic(broker: Broker, partitions: int) -> Iterator[str]:
    name = f"bench-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    make_topic(admin, NewTopic(name, partitions))
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(_TIMEOUT_S)


if __name__ == "__main__":
    main()
