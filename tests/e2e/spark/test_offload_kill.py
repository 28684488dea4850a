"""SIGKILL while `offload` runs: afterwards the table has exactly what was acknowledged.

A round starts the job, waits for a file by which the job shows how far it is, and kills: the driver
alone or with all its processes, a Python worker of Spark, a process of the broker, the node. The
job is started again and again; nothing is repaired in between. TEST_SEED chooses points and victims
(it is in the failures), KILL_ROUNDS how many rounds there are.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import psutil
import pyarrow.dataset as ds
import pytest
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.conftest import StartNode
from tests.e2e.spark.offload_job import OffloadJob, job_settings, kill_group, verify
from tests.support.topic_records import TopicRecords

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*"),
]

SEED: Final = int(os.environ.get("TEST_SEED", "14"))
ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", "5"))
ROUND_S: Final = 120.0
TOPIC: Final = "orders"

POINTS: Final = {
    "plan": "_odradek/plans/*.json",
    "task": "_odradek/staging/**/*.parquet",
    "commit begins": "_odradek/commits/*.prepared",
    "file is visible": "kafka_date=*/*.parquet",
    "table is committed, group is not": "_odradek/commits/*.json",
}
"""What the job has reached when a new file of this pattern is there."""
VICTIMS: Final = ("driver", "all of Spark", "Spark's worker", "worker-0", "router-0", "node")


class Ledger:
    """Sends records, and keeps which ones were acknowledged, with their places."""

    def __init__(self, bootstrap: str) -> None:
        self._numbers = count()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self.good: dict[tuple[int, int], int] = {}
        """(partition, offset) to the number in the record."""
        self.bad: set[tuple[int, int]] = set()

    def send(self, records: int) -> None:
        """To all partitions; every fiftieth is no JSON."""
        for _ in range(records):
            number = next(self._numbers)
            is_bad = number % 50 == 7
            value = b"{ %d" % number if is_bad else b'{"number": %d}' % number
            self._producer.produce(
                TOPIC,
                value=value,
                partition=number % 3,
                on_delivery=self._delivered(number, is_bad=is_bad),
            )
        if self._producer.flush(60):
            raise TimeoutError("not all records were acknowledged")

    def _delivered(
        self, number: int, *, is_bad: bool
    ) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if is_bad:
                self.bad.add((partition, offset))
            else:
                self.good[partition, offset] = number

        return note


def rows_in(kind: str, job: OffloadJob) -> list[tuple[int, int, int]]:
    """(partition, offset, number) of each row, read without a line of ours."""
    columns = ["kafka_partition", "kafka_offset", "number"]
    if kind == "parquet":
        found = ds.dataset(job.table, partitioning="hive").to_table(columns=columns)
    elif kind == "delta":
        found = DeltaTable(job.table).to_pyarrow_table(columns=columns)
    else:
        catalog = load_catalog("odradek", type="sql", uri=f"sqlite:///{job.table}/catalog.db")
        found = catalog.load_table(("odradek", "archive")).scan().to_arrow()
    return [(row[columns[0]], row[columns[1]], row[columns[2]]) for row in found.to_pylist()]


def files(table: Path, pattern: str) -> set[tuple[str, int]]:
    """Names and times: a plan that runs again is written again."""
    found = set()
    for path in table.glob(pattern):
        try:
            found.add((str(path), path.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return found


def wait_for_point(job: OffloadJob, point: str, process: subprocess.Popen[bytes]) -> None:
    """Until a new file is there, or the process has ended. Without any pause: what is waited for
    is there for milliseconds."""
    known = files(job.table, POINTS[point])
    deadline = time.monotonic() + ROUND_S
    while files(job.table, POINTS[point]) <= known and process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job did not come to the point: {point}")


def kill(victim: str, process: subprocess.Popen[bytes], node: EmbeddedBroker) -> None:
    if victim == "driver":
        process.kill()
    elif victim == "all of Spark":
        kill_group(process)
    elif victim == "Spark's worker":
        for each in psutil.Process(process.pid).children(recursive=True):
            if "python" in each.name() and each.pid != process.pid:
                each.send_signal(signal.SIGKILL)
    elif victim == "node":
        node.kill()
        node.start()
    else:
        node.kill_process(victim)
        node.wait_until_ready()


def play(job: OffloadJob, node: EmbeddedBroker, point: str, victim: str, log: Path) -> None:
    """One round. What survives its victim comes to the next point, and is killed there."""
    with job.running("--every", "50ms", log=log) as process:
        wait_for_point(job, point, process)
        if process.poll() is not None:
            return
        try:
            kill(victim, process, node)
        except psutil.NoSuchProcess:
            return
        if victim not in ("driver", "all of Spark"):
            wait_for_point(job, "table is committed, group is not", process)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_whatever_is_killed_the_table_has_exactly_what_was_acknowledged(
    kind: str, start_node: StartNode, tmp_path: Path
) -> None:
    node = start_node()
    bootstrap = node.bootstrap_servers
    records = TopicRecords({"bootstrap.servers": bootstrap})
    records.create(TOPIC, 3)
    ledger = Ledger(bootstrap)
    job = OffloadJob(
        job_settings(
            bootstrap,
            tmp_path / "lake",
            format=kind,
            value_format="json",
            value_schema="number BIGINT",
            rows_per_trigger="400",
        )
    )
    chance = random.Random(f"{SEED} {kind}")
    # Each point and each victim once, before any comes twice.
    points = [*POINTS] * (ROUNDS // len(POINTS) + 1)
    victims = [*VICTIMS] * (ROUNDS // len(VICTIMS) + 1)
    chance.shuffle(points)
    chance.shuffle(victims)
    rounds = [*zip(points, victims, strict=False)][:ROUNDS]
    log = tmp_path / "log"
    for number, (point, victim) in enumerate(rounds):
        print(f"round {number}: {victim} at {point}")  # noqa: T201
        ledger.send(1500)
        records.abort("of-test", TOPIC, [b'{"number": -1}'] * 20)
        play(job, node, point, victim, log)
    last = job.once()
    assert last.exit_code == 0, f"{SEED=} {rounds}: {last.errors}"
    rows = rows_in(kind, job)
    places = {(partition, offset): number for partition, offset, number in rows}
    assert len(rows) == len(places), f"{SEED=} {rounds}: doubled rows"
    assert places == ledger.good, f"{SEED=} {rounds}"
    # Dead letters, too: by the proof that people use.
    report = verify(job)
    assert str(len(ledger.bad)) in str(report), f"{SEED=} {rounds}: {report}"
