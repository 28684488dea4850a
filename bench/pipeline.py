"""The data pipeline: `format("odradek")` beside Spark's stock connector, and topics into tables.

    python -m bench.pipeline [--rounds 5] [--cores 2] [--records-of 1000000 1000] ...

One node is started and filled. Both sources read the same topics into Spark's noop sink, in the
same Spark and in turns, after one round that does not count. Then `odradek pipe offload` moves the
topic with the largest records into a Parquet and a Delta table, `odradek pipe verify` proves them,
and pyarrow and deltalake count them. Writes a page; exits with 1 if a ratio falls short of what
bench/promises.py promises. Needs the extras `spark` and `delta`, Java, and the connector's jars.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import processes, promises
from bench.brokers import Broker, odradek
from bench.options import REPOSITORY, log_progress, with_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS, STOCK = "odradek", "kafka"
PARTITIONS: Final = 6
NOISE_BYTES: Final = 64 << 20
LOADS: Final = ((1_000_000, 1_000), (3_000_000, 100))
INTRODUCTION: Final = """\
# Benchmarks of the data pipeline

Written by `make bench-pipeline`; do not edit it by hand. One node of Odradek, on the machine on
which Spark runs. A ratio above 1 is in favour of `format("odradek")`; figures are medians of
{rounds} rounds in one Spark, in turns, after one round that does not count. CPU is that of the
driver, the JVM, the Python workers and the broker together. Compare ratios: absolute figures depend
on the machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRun:
    """One reading of a whole topic."""

    seconds: float
    spark_cpu_s: float
    """Of the driver, the JVM and the Python workers."""
    broker_cpu_s: float
    """Of all processes of the node."""

    @property
    def cpu_s(self) -> float:
        """Of all together."""
        return self.spark_cpu_s + self.broker_cpu_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """One topic in one table."""

    table_format: str
    offload_s: float
    """With the start of Spark."""
    verify_s: float
    rows: int
    """As others read the table."""
    files_mib: float


def fill(broker: Broker, topic: str, records: int, size: int) -> None:
    """Send the records, round-robin over the partitions; their values do not compress."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    noise = os.urandom(NOISE_BYTES)
    for number in range(records):
        start = number * size % (NOISE_BYTES - size)
        while True:
            try:
                producer.produce(
                    topic, noise[start : start + size], b"%d" % number, number % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    if left := producer.flush(120):
        raise click.ClickException(f"{left} records were not acknowledged")


def read_once(spark: "SparkSession", broker: Broker, topic: str, word: str) -> SourceRun:
    """Read the topic into the sink that takes everything and keeps nothing."""
    frame = spark.read.format(word).options(
        **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    )
    own, node = processes.cpu_seconds(os.getpid()), processes.cpu_seconds(broker.pid)
    began = time.monotonic()
    frame.load().write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - began
    broker_cpu_s = processes.cpu_seconds(broker.pid) - node
    # The node is a child of this process.
    spark_cpu_s = processes.cpu_seconds(os.getpid()) - own - broker_cpu_s
    return SourceRun(seconds=seconds, spark_cpu_s=spark_cpu_s, broker_cpu_s=broker_cpu_s)


def read_in_turns(
    spark: "SparkSession", broker: Broker, topic: str, rounds: int
) -> dict[str, list[SourceRun]]:
    """Both sources; the first round, in which the JVM compiles, is left out."""
    runs: dict[str, list[SourceRun]] = {OURS: [], STOCK: []}
    for number in range(rounds + 1):
        for word in (OURS, STOCK) if number % 2 else (STOCK, OURS):
            run = read_once(spark, broker, topic, word)
            log_progress(
                f"{topic}, round {number}: {word} {run.seconds:.2f} s, {run.cpu_s:.2f} CPU s"
            )
            if number:
                runs[word].append(run)
    return runs


def check_rows(spark: "SparkSession", broker: Broker, topic: str, records: int) -> None:
    """Stop if one of the two does not read all records."""
    for word in (OURS, STOCK):
        frame = spark.read.format(word).options(
            **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        )
        if (rows := frame.load().count()) != records:
            raise click.ClickException(f"{word} read {rows} of {records} records")


def make_table(
    broker: Broker, topic: str, table_format: str, folder: Path, cores: int, records: int
) -> TableRun:
    """Offload, verify, and count with a library that knows nothing of Spark."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    table = folder / table_format
    job = ["--name", f"bench-{table_format}", "-b", broker.bootstrap, "--topics", topic]
    job += ["--table", str(table), "--format", table_format]
    times = {}
    for command in (["offload", *job, "--once", "--master", f"local[{cores}]"], ["verify", *job]):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "odradek", "pipe", *command],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        times[command[0]] = time.monotonic() - began
        if done.returncode:
            raise click.ClickException(f"{command[0]}: {done.stdout}{done.stderr[-2000:]}")
    found = DeltaTable(table).to_pyarrow_dataset() if table_format == "delta" else ds.dataset(table)
    if (rows := found.count_rows()) != records:
        raise click.ClickException(f"{table_format}: {rows} of {records} rows")
    size = sum(path.stat().st_size for path in table.rglob("*.parquet"))
    shutil.rmtree(table)
    log_progress(f"{table_format}: {times['offload']:.1f} s, verified in {times['verify']:.1f} s")
    return TableRun(
        table_format=table_format,
        offload_s=times["offload"],
        verify_s=times["verify"],
        rows=rows,
        files_mib=size / (1 << 20),
    )


def _median(runs: Sequence[SourceRun], value: Callable[[SourceRun], float]) -> float:
    return statistics.median(value(run) for run in runs)


def row_names(load: tuple[int, int]) -> tuple[str, str]:
    """Of a load's rows a second, and of its CPU."""
    name = f"Spark reads {load[0]:,} records of {load[1]} B"
    return f"{name}: rows/s", f"{name}: CPU"


def ratios(load: tuple[int, int], runs: dict[str, list[SourceRun]]) -> dict[str, float]:
    """The stock connector's medians relative to ours, by the names of the promises."""
    speed, cpu = row_names(load)
    return {
        speed: _median(runs[STOCK], lambda run: run.seconds)
        / _median(runs[OURS], lambda run: run.seconds),
        cpu: _median(runs[STOCK], lambda run: run.cpu_s)
        / _median(runs[OURS], lambda run: run.cpu_s),
    }


def render(
    sources: dict[tuple[int, int], dict[str, list[SourceRun]]],
    tables: Sequence[TableRun],
    *,
    facts: dict[str, str],
    rounds: int,
) -> str:
    """The page."""
    lines = [INTRODUCTION.format(rounds=rounds), "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "## Spark's source, into the noop sink", ""]
    lines += [
        "| Records | Unit | stock connector | odradek | Ratio |",
        "| --- | --- | --: | --: | --: |",
    ]
    for load, runs in sources.items():
        (rows, cpu), what = ratios(load, runs).values(), f"{load[0]:,} of {load[1]:,} B"
        speeds = [load[0] / _median(runs[word], lambda run: run.seconds) for word in (STOCK, OURS)]
        lines.append(f"| {what} | rows/s | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {rows:.2f} |")
        for part, value, shown in (
            ("CPU s in all", lambda run: run.cpu_s, f"{cpu:.2f}"),
            ("CPU s of Spark", lambda run: run.spark_cpu_s, ""),
            ("CPU s of the broker", lambda run: run.broker_cpu_s, ""),
        ):
            theirs, ours = (_median(runs[word], value) for word in (STOCK, OURS))
            lines.append(f"| {what} | {part} | {theirs:.2f} | {ours:.2f} | {shown} |")
    lines += ["", "## A topic becomes a table", ""]
    lines += [
        "Raw values that do not compress; `offload --once` with the start of Spark, then `verify`,",
        "which must find every record.",
        "",
    ]
    lines += ["| Table | Rows | MiB | offload | verify |", "| --- | --: | --: | --: | --: |"]
    lines += [
        f"| {run.table_format} | {run.rows:,} | {run.files_mib:,.0f} | {run.offload_s:.1f} s"
        f" | {run.verify_s:.1f} s |"
        for run in tables
    ]
    return "\n".join([*lines, ""])


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--cores", default=2, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--records-of",
    "loads",
    type=(int, int),
    multiple=True,
    default=LOADS,
    metavar="RECORDS BYTES",
    help="So many records of so many bytes; may be given several times.",
)
@click.option(
    "--connector-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SPARK_KAFKA_JARS",
    required=True,
    help="The folder with the stock connector's four jars; also $SPARK_KAFKA_JARS.",
)
@with_page(REPOSITORY / "docs" / "benchmarks-pipeline.md")
def main(
    rounds: int, cores: int, loads: tuple[tuple[int, int], ...], connector_jars: Path, page: Path
) -> None:
    """Measure Spark's two sources and the way into tables; see the module's text."""
    from pyspark.sql import SparkSession

    # Spark looks for pyspark_odradek on the path: in an installation it is in site-packages.
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    load_average = os.getloadavg()[0]
    sources = {}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with odradek(REPOSITORY, folder / "odradek") as broker:
            spark = (
                SparkSession.builder.master(f"local[{cores}]")
                .config("spark.jars", ",".join(map(str, sorted(connector_jars.glob("*.jar")))))
                .config("spark.ui.enabled", "false")
                .config("spark.log.level", "ERROR")
                .getOrCreate()
            )
            for records, size in loads:
                topic = f"records-of-{size}"
                fill(broker, topic, records, size)
                check_rows(spark, broker, topic, records)
                sources[records, size] = read_in_turns(spark, broker, topic, rounds)
            facts = {
                **processes.machine(),
                "load average before": f"{load_average:.1f}",
                "Spark": f"{spark.version}, local[{cores}], {PARTITIONS} partitions",
                "Odradek": broker.version,
                "command": "make bench-pipeline",
            }
            spark.stop()
            records, size = max(loads, key=lambda load: load[1])
            tables = [
                make_table(broker, f"records-of-{size}", each, folder, cores, records)
                for each in ("parquet", "delta")
            ]
    page.write_text(render(sources, tables, facts=facts, rounds=rounds))
    log_progress(f"wrote {page}")
    promises.check(
        {
            name: value
            for load, runs in sources.items()
            for name, value in ratios(load, runs).items()
        }
    )


if __name__ == "__main__":
    main()
