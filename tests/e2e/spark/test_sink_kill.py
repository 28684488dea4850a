"""SIGKILL while a stream copies a topic: afterwards its copy has what was acknowledged, once.

A round sends records, waits until the sink is at a chosen moment, and kills there: the driver alone
or with all its processes, a Python worker of Spark, a process of the broker, the node; of three
nodes the leader or a coordinator. A stream that ends starts again in the next round. TEST_SEED
chooses moments and victims (it is in the failures), KILL_ROUNDS how many rounds there are.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pyarrow.dataset as ds
import pytest

from tests.e2e.cluster import running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.e2e.spark.broker_victims import BrokerVictims, NodesByRole, PartsOfNode, Roles
from tests.e2e.spark.offload_job import (
    ROOT,
    OffloadJob,
    environment,
    job_settings,
    kill_group,
    verify,
)
from tests.e2e.spark.paused_stream import (
    ALL,
    COMMITTED,
    PREFIX,
    ROWS_PER_BATCH,
    SENT,
    StreamOptions,
)
from tests.e2e.spark.sent_records import PARTITIONS, SentRecords
from tests.support.committed_records import committed_records
from tests.support.topic_records import TopicRecords

SEED: Final = int(os.environ.get("TEST_SEED", "14"))
ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", "5"))
ROUND_S: Final = 240.0
STARTS_MAX: Final = 3
"""In a round: what was killed before may end a stream that is about to start."""
SOURCE: Final = "orders"
COPY: Final = "copies"
SPARK_COMMITTED: Final = "Spark has committed"
MOMENTS: Final = (SENT, COMMITTED, ALL, SPARK_COMMITTED)
OF_SPARK: Final = ("driver", "all of Spark", "Spark's worker")


class Round(NamedTuple):
    """`victim` is killed at `moment` of the batch that follows so many commits of Spark."""

    moment: str
    commits: int
    victim: str


FEW: Final = [Round(ALL, 1, "driver"), Round(SENT.format(0), 0, "worker-0")]


def drawn_rounds(of_brokers: tuple[str, ...]) -> list[Round]:
    """Each moment and each victim once, before any comes twice."""
    chance = random.Random(f"{SEED} sink")
    moments, names = [*MOMENTS], [*OF_SPARK, *of_brokers]
    found = []
    for number in range(ROUNDS):
        if number % len(moments) == 0:
            chance.shuffle(moments)
        if number % len(names) == 0:
            chance.shuffle(names)
        moment = moments[number % len(moments)].format(chance.randrange(PARTITIONS))
        found.append(Round(moment, chance.randrange(3), names[number % len(names)]))
    return found


class RunningStream:
    """The stream, started when it does not run. Whatever is left of it ends with `stop`."""

    def __init__(self, options: StreamOptions, sent: SentRecords, log: Path) -> None:
        self._options = options
        self._sent = sent
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        Path(options.moments).mkdir()

    def log(self) -> str:
        """The end of it."""
        return self._log.read_text()[-3000:]

    @property
    def starts(self) -> int:
        return len(self._processes)

    @property
    def is_running(self) -> bool:
        return bool(self._processes) and self._processes[-1].poll() is None

    def start(self, *, is_last: bool = False) -> subprocess.Popen[bytes]:
        if not self.is_running:
            options = asdict(replace(self._options, is_last=is_last))
            command = [sys.executable, "-m", "tests.e2e.spark.paused_stream", json.dumps(options)]
            with self._log.open("ab") as output:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=environment(),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        return self._processes[-1]

    def kill(self, victim: str) -> None:
        process = self._processes[-1]
        if victim == "driver":
            process.kill()
            process.wait()
        elif victim == "all of Spark":
            kill_group(process)
        else:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    if "python" in each.name():
                        each.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        for each in self._processes:
            kill_group(each)

    def wait_for_commits(self, wanted: int) -> bool:
        """True when Spark has committed so many batches more, False if the process has ended. It
        gets records, and more after each commit."""
        known = self._commits()
        self._sent.send(2 * ROWS_PER_BATCH)
        deadline = time.monotonic() + ROUND_S
        while wanted > 0 and self.is_running:
            new = self._commits() - known
            if new:
                known |= new
                wanted -= len(new)
                self._sent.send(ROWS_PER_BATCH)
            self._check(deadline, "commits")
        return wanted <= 0

    def reach(self, moment: str) -> bool:
        """True when the sink stands there, False if the process has ended."""
        if moment == SPARK_COMMITTED:
            return self.wait_for_commits(1)
        asked = Path(self._options.moments, moment)
        asked.touch()
        known = self._commits()
        self._sent.send(ROWS_PER_BATCH)
        deadline = time.monotonic() + ROUND_S
        while self.is_running and not asked.with_suffix(".reached").exists():
            new = self._commits() - known
            if new:
                # This batch had no rows for the task.
                known |= new
                self._sent.send(ROWS_PER_BATCH)
            self._check(deadline, moment)
        return asked.with_suffix(".reached").exists()

    def go_on(self) -> None:
        """From wherever it stands."""
        for each in Path(self._options.moments).iterdir():
            each.unlink()

    def _check(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what}: {self.log()}")

    def _commits(self) -> set[str]:
        folder = Path(self._options.checkpoint, "commits")
        return {each.name for each in folder.glob("[0-9]*")}


def play(stream: RunningStream, brokers: BrokerVictims, sent: SentRecords, kill: Round) -> None:
    """One round. What survives its victim has to commit again before the round ends."""
    for _ in range(STARTS_MAX):
        stream.start()
        if stream.wait_for_commits(kill.commits) and stream.reach(kill.moment):
            break
    else:
        raise AssertionError(f"the stream ends before {kill}: {stream.log()}")
    if kill.victim in OF_SPARK:
        stream.kill(kill.victim)
        stream.go_on()
    else:
        brokers.kill(kill.victim)
        stream.go_on()
        sent.send(ROWS_PER_BATCH)
        if brokers.goes_on_without:
            # The other two nodes go on without it.
            stream.wait_for_commits(1)
        brokers.recover()
        stream.wait_for_commits(1)
    sent.wait_for_all()


def run_matrix(rounds: list[Round], brokers: BrokerVictims, folder: Path, report: Report) -> None:
    """The rounds, and the comparison."""
    began = time.monotonic()
    bootstrap = brokers.bootstrap_servers
    records = TopicRecords({"bootstrap.servers": bootstrap})
    sent = SentRecords(bootstrap, SOURCE)
    stream = RunningStream(
        StreamOptions(
            bootstrap_servers=bootstrap,
            source=SOURCE,
            topic=COPY,
            checkpoint=str(folder / "checkpoint"),
            moments=str(folder / "moments"),
        ),
        sent,
        folder / "log",
    )
    said = f"{SEED=} {rounds}"
    try:
        for number, each in enumerate(rounds):
            print(f"sink {number}: {each} at {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201
            records.abort("of-test", SOURCE, [b"aborted"] * 20)
            play(stream, brokers, sent, each)
        starts = stream.starts
        stream.stop()
        last = stream.start(is_last=True)
        assert last.wait(ROUND_S) == 0, f"{said}: {stream.log()}"
    finally:
        stream.stop()
    copied = committed_records(bootstrap, COPY)
    for partition in range(PARTITIONS):
        places = sorted(place for place in sent.values if place[0] == partition)
        values = [each.value for each in copied if each.partition == partition]
        assert values == [sent.values[place] for place in places], said
    job = OffloadJob(job_settings(bootstrap, folder / "lake", topics=COPY))
    offloaded = job.once()
    assert offloaded.exit_code == 0, f"{said}: {offloaded.errors}"
    proof = verify(job)
    assert proof["is_proven"], f"{said}: {proof}"
    assert sum(each["rows"] for each in proof["partitions"]) == len(sent.values), said
    rows = ds.dataset(job.table, partitioning="hive").to_table(columns=["kafka_value"])
    assert sorted(rows["kafka_value"].to_pylist()) == sorted(sent.values.values()), said
    report(
        f"{len(rounds)} rounds with seed {SEED}, {len(copied)} records, {starts} starts of the"
        f" stream: {time.monotonic() - began:.0f} s"
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_few", [True, False])
def test_whatever_is_killed_the_copy_has_exactly_what_was_acknowledged(
    is_few: bool, start_node: StartNode, tmp_path: Path, report: Report
) -> None:
    node = start_node()
    records = TopicRecords({"bootstrap.servers": node.bootstrap_servers})
    records.create(SOURCE, PARTITIONS)
    records.create(COPY, PARTITIONS)
    brokers = PartsOfNode(node)
    run_matrix(FEW if is_few else drawn_rounds(brokers.names), brokers, tmp_path, report)


@pytest.mark.slow
def test_whichever_of_three_nodes_is_killed_the_copy_has_exactly_what_was_acknowledged(
    tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path / "nodes") as nodes:
        for topic in (SOURCE, COPY):
            nodes[0].create_topic(
                topic,
                partitions=PARTITIONS,
                configs={"min.insync.replicas": "2", "retention.ms": "-1"},
            )
        roles = Roles(COPY, f"{PREFIX}-0", f"{PREFIX}-0")
        brokers = NodesByRole(nodes, roles)
        run_matrix(drawn_rounds(brokers.names), brokers, tmp_path, report)
