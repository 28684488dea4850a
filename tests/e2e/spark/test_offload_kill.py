"""SIGKILL while `offload` runs: afterwards the table has exactly what was acknowledged.

A round sends records, waits for a file by which the job shows how far it is, and kills: the driver
alone or with all its processes, a Python worker of Spark, a process of the broker, the node; of
three nodes the leader or a coordinator. A job that ends starts again in the next round; nothing is
repaired in between, and what outlives its driver goes on beside the next one. TEST_SEED chooses
points and victims (it is in the failures), KILL_ROUNDS how many rounds there are.
"""

import os
import random
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.e2e.cluster import running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.e2e.spark.broker_victims import BrokerVictims, NodesByRole, PartsOfNode, Roles
from tests.e2e.spark.offload_job import OffloadJob, job_settings, kill_group, verify
from tests.e2e.spark.sent_records import PARTITIONS, SentRecords
from tests.support.committed_records import committed_records
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*")

SEED: Final = int(os.environ.get("TEST_SEED", "14"))
ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", "5"))
ROUND_S: Final = 240.0
STARTS_MAX: Final = 3
"""In a round: what was killed before may end a job that is about to start."""
TOPIC: Final = "orders"
LETTERS: Final = "archive.dlq"
ROWS_PER_TRIGGER: Final = 400
COMMITTED: Final = "table is committed, group is not"
POINTS: Final = {
    "plan": "_odradek/plans/*.json",
    "task": "_odradek/staging/**/*.parquet",
    "commit begins": "_odradek/commits/*.prepared",
    "file is visible": "kafka_date=*/*.parquet",
    COMMITTED: "_odradek/commits/*.json",
}
"""What the job has reached when a new file of this pattern is there."""
OF_SPARK: Final = ("driver", "all of Spark", "Spark's worker")


class Round(NamedTuple):
    """`victim` is killed when the job has come to `point` after `commits` commits."""

    point: str
    commits: int
    victim: str


FEW: Final = [Round(COMMITTED, 1, "driver"), Round("task", 0, "node")]


def drawn_rounds(kind: str, of_brokers: tuple[str, ...]) -> list[Round]:
    """Each point and each victim once, before any comes twice."""
    chance = random.Random(f"{SEED} {kind}")
    points, names = [*POINTS], [*OF_SPARK, *of_brokers]
    found = []
    for number in range(ROUNDS):
        if number % len(points) == 0:
            chance.shuffle(points)
        if number % len(names) == 0:
            chance.shuffle(names)
        point, victim = points[number % len(points)], names[number % len(names)]
        found.append(Round(point, chance.randrange(3), victim))
    return found


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


def letters_in(bootstrap: str) -> list[tuple[int, int]]:
    """The places that the dead letters name, read without a line of ours."""
    found = []
    for record in committed_records(bootstrap, LETTERS):
        headers = dict(record.headers)
        partition, offset = (headers[f"__dlq.errors.{name}"] for name in ("partition", "offset"))
        assert partition is not None
        assert offset is not None
        found.append((int(partition), int(offset)))
    return found


def files(table: Path, pattern: str) -> set[tuple[str, int]]:
    """Names and times: a plan that runs again is written again."""
    found = set()
    # Files and folders may be gone before they are looked at.
    with suppress(FileNotFoundError):
        for path in table.glob(pattern):
            found.add((str(path), path.stat().st_mtime_ns))
    return found


class RunningOffload:
    """`offload --every`, started when it does not run. Whatever is left of it ends with `stop`."""

    def __init__(self, job: OffloadJob, log: Path) -> None:
        self._job = job
        self._log = log
        self._starts = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def log(self) -> str:
        """The end of it."""
        return self._log.read_text()[-2000:]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if not self.is_running:
            running = self._job.running("--every", "50ms", log=self._log)
            self._process = self._starts.enter_context(running)
            self.starts += 1

    def kill(self, victim: str) -> None:
        assert self._process is not None
        if victim == "driver":
            self._process.kill()
            self._process.wait()
        elif victim == "all of Spark":
            kill_group(self._process)
        else:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(self._process.pid).children(recursive=True):
                    if "python" in each.name():
                        each.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        self._starts.close()

    def wait_for(self, pattern: str, commits: int, sent: SentRecords) -> bool:
        """True when a file is new after so many commits, False if the process has ended. It gets
        records, and more after each commit. Without any pause: what is waited for is there for
        milliseconds."""
        known = files(self._job.table, pattern)
        committed = files(self._job.table, POINTS[COMMITTED])
        sent.send(2 * ROWS_PER_TRIGGER)
        deadline = time.monotonic() + ROUND_S
        while self.is_running:
            new = files(self._job.table, POINTS[COMMITTED]) - committed
            now = files(self._job.table, pattern)
            if commits <= 0 and not now <= known:
                return True
            if new:
                commits -= len(new)
                committed |= new
                known = now
                sent.send(ROWS_PER_TRIGGER)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new {pattern}: {self.log()}")
        return False


def play(job: RunningOffload, brokers: BrokerVictims, sent: SentRecords, kill: Round) -> None:
    """One round. What survives its victim has to commit again before the round ends."""
    for _ in range(STARTS_MAX):
        job.start()
        if job.wait_for(POINTS[kill.point], kill.commits, sent):
            break
    else:
        raise AssertionError(f"the job ends before {kill}: {job.log()}")
    if kill.victim in OF_SPARK:
        job.kill(kill.victim)
    else:
        brokers.kill(kill.victim)
        if brokers.goes_on_without:
            # The other two nodes go on without it.
            job.wait_for(POINTS[COMMITTED], 0, sent)
        sent.send(ROWS_PER_TRIGGER)
        brokers.recover()
        job.wait_for(POINTS[COMMITTED], 0, sent)
    sent.wait_for_all()


def run_matrix(
    kind: str, rounds: list[Round], brokers: BrokerVictims, folder: Path, report: Report
) -> None:
    """The rounds, and the comparison."""
    began = time.monotonic()
    bootstrap = brokers.bootstrap_servers
    records = TopicRecords({"bootstrap.servers": bootstrap})
    sent = SentRecords(bootstrap, TOPIC)
    job = OffloadJob(
        job_settings(
            bootstrap,
            folder / "lake",
            format=kind,
            value_format="json",
            value_schema="number BIGINT",
            rows_per_trigger=str(ROWS_PER_TRIGGER),
        )
    )
    running = RunningOffload(job, folder / "log")
    said = f"{SEED=} {rounds}"
    try:
        for number, each in enumerate(rounds):
            print(f"{kind} {number}: {each} at {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201
            records.abort("of-test", TOPIC, [b'{"number": -1}'] * 20)
            play(running, brokers, sent, each)
    finally:
        running.stop()
    last = job.once(rows_per_trigger="20000")
    assert last.exit_code == 0, f"{said}: {last.errors}"
    rows = rows_in(kind, job)
    places = {(partition, offset): number for partition, offset, number in rows}
    assert len(rows) == len(places), f"{said}: doubled rows"
    assert places == sent.good, said
    letters = letters_in(bootstrap)
    assert sorted(letters) == sorted(sent.bad), said
    # The proof that people use says the same.
    proof = verify(job)
    assert proof["is_proven"], f"{said}: {proof}"
    counted = [(each["rows"], each["bad"]) for each in proof["partitions"]]
    assert tuple(map(sum, zip(*counted, strict=True))) == (len(rows), len(letters)), f"{said}"
    report(
        f"{len(rounds)} rounds with seed {SEED}, {len(rows)} rows, {len(letters)} dead letters,"
        f" {running.starts} starts of the job: {time.monotonic() - began:.0f} s"
    )


SLOW: Final = [
    pytest.param(kind, False, marks=pytest.mark.slow, id=kind)
    for kind in ("parquet", "delta", "iceberg")
]


@pytest.mark.parametrize(
    ("kind", "is_few"), [pytest.param("parquet", True, id="parquet-few"), *SLOW]
)
def test_whatever_is_killed_the_table_has_exactly_what_was_acknowledged(
    kind: str, is_few: bool, start_node: StartNode, tmp_path: Path, report: Report
) -> None:
    node = start_node()
    TopicRecords({"bootstrap.servers": node.bootstrap_servers}).create(TOPIC, PARTITIONS)
    brokers = PartsOfNode(node)
    rounds = FEW if is_few else drawn_rounds(kind, brokers.names)
    run_matrix(kind, rounds, brokers, tmp_path, report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_whichever_of_three_nodes_is_killed_the_table_has_exactly_what_was_acknowledged(
    kind: str, tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path / "nodes") as nodes:
        nodes[0].create_topic(
            TOPIC,
            partitions=PARTITIONS,
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )
        roles = Roles(TOPIC, "pipe.archive.dlq", "pipe.archive.dlq")
        brokers = NodesByRole(nodes, roles)
        run_matrix(kind, drawn_rounds(kind, brokers.names), brokers, tmp_path, report)
