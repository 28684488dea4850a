"""Plays a transcript of Kafka's command line tools to a cluster, and compares what they print with
what the transcript says (see `tests.support.transcripts`).

`CONFORMANCE_BOOTSTRAP=HOST:PORT TRANSCRIPTS_RECORD=FOLDER` writes what that cluster prints into
that folder, and compares nothing: so the files were made, with a Kafka 4.3.1 whose controllers and
brokers are combined.
"""

import difflib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer

from odradek.protocol.types import uuid_to_text
from tests.conformance.dialogue import DialogueCluster, append, batch_of, produce, unique
from tests.conformance.members import wait_for_coordinator
from tests.conformance.test_wire_share_groups import joined
from tests.conformance.test_wire_streams import send_heartbeat, settled
from tests.support.java import run_java_tool
from tests.support.kafka_tools import TOOLS, TRANSCRIPTS
from tests.support.streams_playbook import subtopology, topology
from tests.support.transcripts import (
    Transcript,
    TranscriptStep,
    is_same,
    merged,
    normalised,
    substituted,
)
from tests.support.waiting import wait_until

GIVEN = os.environ.get("CONFORMANCE_BOOTSTRAP", "")
"""Brokers of Kafka, as in conftest.py."""
RECORD = os.environ.get("TRANSCRIPTS_RECORD", "")
TIMEOUT_S = 60.0
SETTLED_WITHIN_S = 20.0
"""For `$?`: Kafka answers before its brokers know of a change."""


class TranscriptRun:
    """Where a transcript is played: the cluster, its names, and clients that stay."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        node_ids: Iterable[int],
        *,
        cluster: DialogueCluster | None = None,
        properties: Path | None = None,
        tells_nodes: bool = False,
    ) -> None:
        """With `properties` for --command-config. `tells_nodes`: which node it is is compared.
        Without a `cluster` there are tools only."""
        self.bootstrap = bootstrap
        self.folder = folder
        self.names = {"folder": str(folder)}
        self.nodes = {f"n{index}": str(node) for index, node in enumerate(sorted(node_ids), 1)}
        """Names of nodes and their ids: `<n1>` is the lowest."""
        self.clients = ExitStack()
        self.printed = ""
        """What the last tool printed."""
        self._cluster = cluster
        self._properties = properties
        self._ids = {value: f"<{key}>" for key, value in self.nodes.items()}
        self._tells_nodes = tells_nodes

    @property
    def cluster(self) -> DialogueCluster:
        """For what no tool does."""
        assert self._cluster is not None, "with tools only"
        return self._cluster

    def do(self, step: TranscriptStep) -> list[str]:
        """Do it; what it printed, as transcripts have it."""
        for name in re.findall(r"<([\w.-]+)>", step.text + "".join(step.stdin + step.expected)):
            if step.kind != ">" and name not in self.nodes and name in step.text:
                self.names.setdefault(name, unique(name))
        names = {**self.names, **self.nodes}
        if step.kind == ">":
            path = self.folder / step.text
            path.write_text("".join(f"{substituted(each, names)}\n" for each in step.expected))
            self.names[step.text] = str(path)
            return step.expected
        name, *arguments = step.words(names)
        if step.kind == "*":
            ACTIONS[name](self, *arguments)
            return step.expected
        return self._run(step, name, arguments)

    def _run(self, step: TranscriptStep, name: str, arguments: list[str]) -> list[str]:
        tool = TOOLS[name]
        common = [tool.server, self.bootstrap]
        if self._properties is not None:
            common += [tool.config, str(self._properties)]
        if tool.server_is_last:
            arguments += common
        elif tool.server not in arguments:
            arguments = common + arguments
        done = run_java_tool(
            tool.main,
            *arguments,
            directory=self.folder,
            stdin="".join(f"{substituted(line, self.names)}\n" for line in step.stdin),
            timeout_s=TIMEOUT_S,
        )
        self.printed = text = f"{done.stdout}\n{done.stderr}"
        ids = self._ids if self._tells_nodes else None
        lines = step.reduced(normalised(text, self.names, ids))
        return lines + ([f"[exit {done.returncode}]"] if done.returncode else [])


# -- what no tool does ----------------------------------------------------------------------------


def make_topic(run: TranscriptRun, name: str, partitions: str = "1", *configs: str) -> None:
    """A topic that can be used on all nodes."""
    given = dict(each.split("=", 1) for each in configs)
    run.cluster.new_topic(int(partitions), given, name=name)


def append_records(run: TranscriptRun, topic: str, partition: str, *values: str) -> None:
    with run.cluster.connect() as wire:
        append(wire, topic, *[value.encode() for value in values], partition=int(partition))


def join(run: TranscriptRun, group: str, topic: str, protocol: str = "classic") -> None:
    """A member of a consumer group that has read all records and committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "client.id": "reader",
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    run.clients.callback(consumer.close)
    consumer.subscribe([topic])

    def has_read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
        assigned = consumer.assignment()
        return bool(assigned) and all(
            max(place.offset, 0) == consumer.get_watermark_offsets(place, TIMEOUT_S)[1]
            for place in consumer.position(assigned)
        )

    wait_until(has_read, timeout_s=TIMEOUT_S, what=f"a member of {group} has read everything")


def join_share(run: TranscriptRun, group: str, topic: str) -> None:
    """A member of a share group with one partition, which stays for its session."""
    cluster = run.cluster
    wait_for_coordinator(cluster, group)
    with cluster.connect() as wire:
        joined(wire, group, topic, count=1)


def join_streams(run: TranscriptRun, group: str, topic: str) -> None:
    """A member of a streams group that has tasks."""
    cluster = run.cluster
    wait_for_coordinator(cluster, group)
    with cluster.connect() as wire:
        settled(wire, group, topology(subtopology("0", topic)))


def leave_streams(run: TranscriptRun, group: str) -> None:
    """The member of the streams group leaves."""
    with run.cluster.connect() as wire:
        send_heartbeat(wire, group, epoch=-1)


def append_megabytes(run: TranscriptRun, topic: str, partition: str, count: str) -> None:
    """So many batches of 1 MB, each larger than half of what a replica fetches at once. The topic
    may be a new one, whose leader does not know it yet."""
    batch = batch_of(bytes(1_000_000))
    with run.cluster.connect() as wire:
        for _ in range(int(count)):
            wait_until(
                lambda: not produce(wire, topic, batch, partition=int(partition)).error_code,
                what=f"a batch is written to {topic}",
            )


def begin(run: TranscriptRun, transactional_id: str, topic: str) -> None:
    """A transaction that stays open, with one record."""
    producer = Producer(
        {
            "bootstrap.servers": run.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, "held")
    assert producer.flush(TIMEOUT_S) == 0
    run.clients.callback(producer.purge)


def leave(run: TranscriptRun) -> None:
    """All members of consumer groups leave."""
    run.clients.close()


def name_what_was_found(run: TranscriptRun, name: str, regex: str) -> None:
    """`<name>` is from now on what the group of this regular expression matches in what the last
    tool printed."""
    found = re.search(regex, run.printed, re.MULTILINE)
    assert found, f"{regex} is not in {run.printed}"
    run.names[name] = found[1]


def name_topic_id(run: TranscriptRun, topic: str, name: str) -> None:
    run.names[name] = uuid_to_text(run.cluster.topic_id(topic))


ACTIONS: Final[Mapping[str, Callable[..., None]]] = {
    "topic": make_topic,
    "append": append_records,
    "append-megabytes": append_megabytes,
    "begin": begin,
    "found": name_what_was_found,
    "join": join,
    "join-share": join_share,
    "join-streams": join_streams,
    "leave": leave,
    "leave-streams": leave_streams,
    "topic-id": name_topic_id,
}


# -- the transcripts ------------------------------------------------------------------------------


def play(path: Path, run: TranscriptRun) -> None:
    """Compare every step, or record all of them."""
    transcript = Transcript.parse(path.read_text())
    with run.clients:
        for step in transcript.steps():
            if RECORD:
                step.expected = merged(step.expected, seen_at_last(run, step))
                continue
            found = difference_at_last(step, run)
            assert not found, found
    if RECORD:
        target = Path(RECORD) / path.relative_to(TRANSCRIPTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(transcript.render())


def difference(step: TranscriptStep, printed: list[str]) -> str:
    """What differs, as diff has it; empty if nothing does."""
    wanted = step.wanted(of_kafka=bool(GIVEN))
    if is_same(wanted, printed):
        return ""
    return "\n".join([step.text, *difflib.unified_diff(wanted, printed, "expected", "printed")])


def difference_at_last(step: TranscriptStep, run: TranscriptRun) -> str:
    """What differs; for `$?` after some time."""
    deadline = time.monotonic() + (SETTLED_WITHIN_S if step.kind == "$?" else 0.0)
    while (found := difference(step, run.do(step))) and time.monotonic() < deadline:
        pass
    return found


def seen_at_last(run: TranscriptRun, step: TranscriptStep) -> list[str]:
    """What it prints; for `$?` when it has printed the same for some time."""
    printed = run.do(step)
    end = time.monotonic() + (1.0 if step.kind == "$?" else 0.0)
    while time.monotonic() < end:
        printed = run.do(step)
    return printed
