"""Clients of every kind in groups of every kind, for an hour, on three nodes under the nemesis.

confluent-kafka, Kafka's own clients in Java, franz-go, aiokafka and kafka-python read one topic, in
classic groups (eager, cooperative, static), consumer, share and streams groups; some copy it in
transactions. Banks move money in transactions and are audited. Meanwhile the nemesis injects one
fault after another (tests/e2e/nemesis.py); after each of them every group must go on.

At the end nothing that was acknowledged is lost, every group has read every record, and nothing was
copied twice. Memory and descriptors of the processes have not grown (tests/e2e/growth.py).

A run of the tests injects a few faults only, and cannot say much of growth. `make soak MINUTES=60
SEED=n` runs for longer; it shows its progress.
"""

import gc
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli
from tests.e2e import bank
from tests.e2e.checker import Log
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import Report
from tests.e2e.growth import GrowthWatch, growth_of
from tests.e2e.nemesis import (
    CLOCK_FAULTS,
    FAULTS,
    PARTITIONS,
    TOPIC,
    FaultyCluster,
    faulty_cluster,
)
from tests.e2e.soak_clients import (
    GO_COPIES,
    JAVA_COPIES,
    JAVA_READERS,
    SESSION_TIMEOUT_MS,
    CheckedGroup,
    ClientProgram,
    CopyGroup,
    LibraryMember,
    ReadingGroup,
    SoakGroup,
    go_program,
    java_program,
)
from tests.support.franz_go import NoFranzGo, build_program
from tests.support.streams_application import why_no_streams
from tests.support.waiting import wait_until

MINUTES: Final = float(os.environ.get("SOAK_MINUTES", "0"))
SEED: Final = int(os.environ.get("TEST_SEED", "0"))
CHOSEN: Final = os.environ.get("NEMESIS_FAULTS", "").split(",")
SHORT_FAULTS: Final = ("kill_leader", "leader_without_controller", "kill_processes")
"""The faults of a run of the tests."""
PACE_S: Final = 0.15
"""Pause of each of two writers between bursts: the history of an hour has to fit into memory."""
BANKS: Final = 2
GOES_ON_S: Final = 180.0
"""Timeout for a group to go on after a fault. A client may wait for a frozen node for half a minute
and for its session to expire, and the last group of a slow machine waits for all others."""
GROWTH_S: Final = 300.0
"""A shorter run tells how processes begin, not whether they grow: figures only."""
INTERNAL: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # A coordinator that loads a group restarts its sessions. Members that were replaced while it
    # was away must end before it moves again, or they keep partitions as long as there are faults.
    **{
        f"group.{kind}.{key}": str(SESSION_TIMEOUT_MS)
        for kind in ("consumer", "share", "streams")
        for key in ("session.timeout.ms", "min.session.timeout.ms")
    },
}
CONFLUENT: Final = {
    "confluent-static": [
        {
            "partition.assignment.strategy": "cooperative-sticky",
            "group.instance.id": f"confluent-static-{number}",
        }
        for number in range(2)
    ],
    "confluent-consumer": [{"group.protocol": "consumer"}] * 2,
}
LIBRARIES: Final = {"aiokafka": True, "kafka-python": False}
"""Whether a library is for asyncio."""


class Soak:
    """The clients beside the workload of a `FaultyCluster`, and what they have done."""

    def __init__(self, field: FaultyCluster, folder: Path, stack: ExitStack) -> None:
        self._field = field
        self._topic = TOPIC
        self._bootstrap = field.workload.bootstrap
        self._members: list[CheckedGroup | LibraryMember] = []
        self._programs: list[ClientProgram] = []
        self._copies: list[CopyGroup] = []
        self.groups: list[SoakGroup] = []
        self.left_out: list[str] = []
        """The clients that cannot run here, with the reason."""
        self.banks = [bank.Bank(self._bootstrap, number) for number in range(BANKS)]
        self._auditor = bank.BankAuditor(self._bootstrap, 0)
        self._prepare_confluent_and_python()
        self._prepare_java(folder, stack)
        self._prepare_go(folder, stack)

    def _prepare_confluent_and_python(self) -> None:
        history = self._field.workload.history
        for name, members in CONFLUENT.items():
            checked = CheckedGroup(name, self._bootstrap, self._topic, members, history)
            self.groups.append(checked)
            self._members.append(checked)
        for name, is_async in LIBRARIES.items():
            group = ReadingGroup(name)
            self.groups.append(group)
            self._members += (
                LibraryMember(group, self._bootstrap, self._topic, is_async=is_async)
                for _ in range(2)
            )

    def _prepare_java(self, folder: Path, stack: ExitStack) -> None:
        if why_no_streams():
            self.left_out.append(f"Java: {why_no_streams()}")
            return
        groups: dict[str, ReadingGroup | CopyGroup] = {n: ReadingGroup(n) for n in JAVA_READERS}
        groups |= self._copies_of(JAVA_COPIES)
        self.groups += groups.values()
        program = java_program(folder / "java", self._bootstrap, self._topic, groups)
        stack.callback(program.kill)
        self._programs.append(program)

    def _prepare_go(self, folder: Path, stack: ExitStack) -> None:
        try:
            binary = build_program(folder)
        except NoFranzGo as why:
            self.left_out.append(f"franz-go: {why}")
            return
        groups = self._copies_of(GO_COPIES)
        self.groups += groups.values()
        program = go_program(folder / "go", binary, self._bootstrap, self._topic, groups)
        stack.callback(program.kill)
        self._programs.append(program)

    def _copies_of(self, names: tuple[str, ...]) -> dict[str, ReadingGroup | CopyGroup]:
        copies = [CopyGroup(name, self._bootstrap, PARTITIONS) for name in names]
        self._copies += copies
        return {copy.name: copy for copy in copies}

    def start(self) -> None:
        """Start all clients; returns when every group reads."""
        for client in (*self._copies, *self._members, *self.banks, self._auditor):
            client.start()
        self.wait_until_all_go_on()

    def wait_until_all_go_on(self) -> None:
        """Wait until every group has read new records and every bank has moved money."""
        marks = {group.name: group.read_count() for group in self.groups}

        def waiting() -> list[str]:
            return [g.name for g in self.groups if g.read_count() <= marks[g.name]]

        bank.progress(self.banks, 1)
        try:
            wait_until(lambda: not waiting(), timeout_s=GOES_ON_S, what="every group goes on")
        except AssertionError as error:
            error.add_note(f"these do not: {', '.join(waiting())}")
            raise

    def end(self) -> list[str]:
        """Stop the writers, let every group read the rest, stop all clients, and compare."""
        for writer in self._field.workload.writers:
            writer.stop()
        log = self._field.workload.log()
        found = self._wait_until_all_is_read(log)
        # Copies that come twice would come now at the latest: the groups have left.
        for client in (*self._programs, *self._members, *self._copies):
            client.stop()
        for each in self.banks:
            each.stop()
        read = self._auditor.finish(bank.ends_of(self._bootstrap, self.banks))
        bank.audit(self._bootstrap, self.banks, read)
        return found + [sentence for group in self.groups for sentence in group.found(log)]

    def _wait_until_all_is_read(self, log: Log) -> list[str]:
        def unread() -> dict[str, int]:
            return {g.name: count for g in self.groups if (count := g.unread(log))}

        try:
            wait_until(lambda: not unread(), timeout_s=GOES_ON_S, what="every group reads the rest")
        except AssertionError as error:
            return [f"{error}: {unread()} are left"]
        return []

    def __str__(self) -> str:
        groups = (
            f"{group.name} {group.read_count()}"
            + (f" ({group.restart_count} restarts)" if group.restart_count else "")
            for group in self.groups
        )
        return f"{', '.join(groups)}; banks: {bank.as_text(self.banks)}"


@contextmanager
def soaking(folder: Path, seed: int) -> Iterator[tuple[FaultyCluster, Soak]]:
    """Three nodes under load by all clients."""

    def prepare(nodes: Cluster) -> None:
        for node in nodes.nodes.values():
            node.settings.update(INTERNAL)

    with (
        ExitStack() as stack,
        faulty_cluster(folder, seed, pace_s=PACE_S, is_steady=True, prepare=prepare) as field,
    ):
        nodes = field.nodes
        for topic, partitions in (
            (bank.TOPIC, bank.PARTITIONS),
            *((name, PARTITIONS) for name in (*JAVA_COPIES, *GO_COPIES)),
        ):
            nodes[0].create_topic(topic, partitions=partitions)
            nodes.wait_until_whole(topic)
        environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
        command = ["config", "set", "group", "java-share", "share.auto.offset.reset=earliest"]
        ran = CliRunner().invoke(cli, command, env=environment)
        assert ran.exit_code == 0, ran.output
        soak = Soak(field, folder, stack)
        soak.start()
        yield field, soak


def show(text: str) -> None:
    """Show the progress; pytest shows it at once with -s."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def faults(chance: random.Random) -> Iterator[str]:
    """The names of the faults: a few, or as many as there is time for."""
    if not MINUTES:
        yield from SHORT_FAULTS
        return
    # A clock that jumps by an hour ends transactions and sessions rightly.
    possible = sorted(FAULTS.keys() - set(CLOCK_FAULTS))
    chosen = [name for name in possible if name in CHOSEN or CHOSEN == [""]]
    until = time.monotonic() + 60 * MINUTES
    while time.monotonic() < until:
        # Each of them once before one comes again.
        for name in chance.sample(chosen, len(chosen)):
            if time.monotonic() >= until:
                return
            yield name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_kind_of_client_for_a_long_time(
    tmp_path: Path, report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    seed = SEED or random.randrange(1, 2**31)
    # aiokafka goes on writing to connections that are lost, and asyncio warns each time.
    caplog.set_level(logging.ERROR, "asyncio")
    # Its log records would hold exceptions, and these the sockets.
    caplog.set_level(logging.CRITICAL + 1, "kafka")
    began = time.monotonic()
    with soaking(tmp_path, seed) as (field, soak):
        for why in soak.left_out:
            show(f"left out: {why}")
        watch = GrowthWatch(field.nodes.nodes)
        watch.start()
        count = 0
        for name in faults(field.random):
            gap_s = field.inject(FAULTS[name])
            soak.wait_until_all_go_on()
            count += 1
            minutes = (time.monotonic() - began) / 60
            show(f"{minutes:5.1f} min: {name}, a producer waited {gap_s:.1f} s; {soak}")
        duration_s = time.monotonic() - watch.began
        watch.stop()
        found = soak.end()
        grown = growth_of(watch.samples, duration_s)
        report(f"{count} faults in {duration_s / 60:.1f} min; {soak}")
        for growth in grown:
            report(str(growth))
        if duration_s >= GROWTH_S:
            found += [f"grown: {growth}" for growth in grown if growth.is_too_large]
    # kafka-python leaves sockets open when a connection fails. They are collected here, where the
    # warnings are ignored.
    del field, soak, watch
    gc.collect()
    assert not found, "\n".join(found)
