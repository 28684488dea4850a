"""Compares Odradek with Apache Kafka: the same load in turns on one machine, a page of ratios.

    python -m bench.side_by_side --kafka-jars FOLDER

The folder contains the jars of Kafka's broker (kafka_2.13-*.jar and its dependencies). Run it on a
quiet machine: both brokers run all the time, and one is idle while the other is loaded.
"""

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from bench import brokers, processes, promises, real_clients, report
from bench.brokers import Broker
from bench.cases import (
    CLIENT_CASES,
    DELETED_S,
    RAW_CASES,
    Bench,
    BenchmarkCase,
    Result,
    raw_produce,
)
from bench.options import (
    REPOSITORY,
    log_progress,
    with_kafka_jars,
    with_page,
    with_rounds,
    with_warm_up,
)
from bench.page_cache import PageCache

PAGE = REPOSITORY / "docs" / "benchmarks.md"
QUIET_LOAD_PER_CORE = 0.75
IDLE_S = 5.0
FOOTPRINT_ROWS = (
    "start to first answered Metadata",
    "memory when idle (PSS)",
    "processor when idle",
)


@click.command()
@with_kafka_jars
@with_rounds
@click.option("--seconds", default=4.0, show_default=True, help="Of each produce case.")
@with_warm_up
@click.option("--only", help="Only cases whose name contains this.")
@with_page(PAGE)
def main(
    kafka_jars: Path, rounds: int, seconds: float, warm_up: float, only: str | None, page: Path
) -> None:
    """Measure Odradek beside Kafka and write a page of ratios."""
    load_average = _load_average()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-bench-")))
        bench = Bench(directory, seconds=seconds)
        known = (*_cases(bench, kafka_jars), *real_clients.cases(kafka_jars, directory))
        cases = [case for case in known if only is None or only in case.name]
        log_progress("starting both brokers")
        # Kafka compiles its code for a while after its first answer: what starts then has one
        # processor less.
        odradek = stack.enter_context(brokers.odradek(REPOSITORY, directory / "odradek"))
        kafka = stack.enter_context(brokers.kafka(kafka_jars, directory / "kafka"))
        both = kafka, odradek
        time.sleep(IDLE_S)
        footprints = {broker.name: _footprint(broker) for broker in both}
        for broker in both:
            _warm_up(broker, directory, warm_up)
        cache = None
        if any(case.writes_much for case in cases):
            cache = PageCache(directory / "cached")
        results: dict[tuple[str, str], list[Result]] = {}
        for number in range(rounds):
            for case in cases:
                # The order alternates, so that neither always runs after the other.
                for broker in both if number % 2 == 0 else reversed(both):
                    if cache is not None and case.writes_much:
                        # After the files of the case before are deleted.
                        time.sleep(2 * DELETED_S)
                        cache.fill()
                    result = case.run(broker, bench)
                    results.setdefault((case.name, broker.name), []).append(result)
                    log_progress(
                        f"round {number + 1}: {broker.name:8} {case.name}: "
                        f"{result.value:.3f} {case.unit}, {result.cpu_us_per_record:.2f} us/record"
                    )
        text = report.render(
            [
                report.Comparison(
                    case=case,
                    kafka=results[case.name, kafka.name],
                    odradek=results[case.name, odradek.name],
                )
                for case in cases
            ],
            kafka=kafka,
            odradek=odradek,
            machine={**processes.machine(), "python": sys.version.split()[0]},
            footprints=footprints,
            command=_command(rounds, seconds, warm_up, only),
            load_average=load_average,
        )
    page.write_text(text)
    log_progress(f"written to {page}")
    footprint = (odradek.start_seconds, *footprints[odradek.name])
    measured = dict(zip(FOOTPRINT_ROWS, footprint, strict=True))
    for case in cases:
        both_results = results[case.name, kafka.name], results[case.name, odradek.name]
        measured[case.name] = report.ratio(case, *both_results)
        cpu_ratio = report.cpu_ratio(*both_results)
        if cpu_ratio is not None:
            measured[promises.cpu_row(case.name)] = cpu_ratio
    promises.check(measured)


def _load_average() -> float:
    """The load average, with a warning if it is too high for a benchmark."""
    load_average = os.getloadavg()[0]
    if load_average > QUIET_LOAD_PER_CORE * len(os.sched_getaffinity(0)):
        log_progress(f"load average {load_average:.1f}: the figures of this run are not reliable")
    return load_average


def _cases(bench: Bench, kafka_jars: Path) -> tuple[BenchmarkCase, ...]:
    if bench.load is None:
        log_progress("no C compiler: the raw cases and those of consumers are left out")
        return CLIENT_CASES
    return (*RAW_CASES, *real_clients.consumers(kafka_jars), *CLIENT_CASES)


def _warm_up(broker: Broker, directory: Path, seconds: float) -> None:
    """Load a broker for a while, until the JVM has compiled its hot code."""
    if not seconds:
        return
    log_progress(f"warming {broker.name} for {seconds:.0f} s")
    bench = Bench(directory, seconds=seconds / 2)
    for case in (
        raw_produce(size=100, per_batch=1, in_flight=5, partitions=1),
        raw_produce(size=1024, per_batch=16, in_flight=5, partitions=1),
    ):
        if bench.load is not None:
            case.run(broker, bench)


def _footprint(broker: Broker) -> tuple[float, float]:
    before = processes.cpu_seconds(broker.pid)
    time.sleep(IDLE_S)
    share = (processes.cpu_seconds(broker.pid) - before) / IDLE_S * 100
    return processes.memory_mib(broker.pid), share


def _command(rounds: int, seconds: float, warm_up: float, only: str | None) -> str:
    options = f"--rounds {rounds} --seconds {seconds:g} --warm-up {warm_up:g}"
    if only is not None:
        options += f' --only "{only}"'
    return f"make bench ARGS='{options}'"


if __name__ == "__main__":
    main()
