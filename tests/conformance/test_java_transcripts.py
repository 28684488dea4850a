"""Subcommands and options of Kafka's command line tools: each must print what it printed with Kafka
4.3.1, when the files in transcripts/ were recorded.

`CONFORMANCE_BOOTSTRAP=HOST:PORT TRANSCRIPTS_RECORD=FOLDER` writes what that cluster prints into
that folder, and compares nothing: so the files were made, with a Kafka whose controllers and
brokers are combined.
"""

import difflib
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer

from odradek.protocol.types import uuid_to_text
from tests.conformance.dialogue import DialogueCluster, append, unique
from tests.conformance.members import wait_for_coordinator
from tests.conformance.routing import Nodes
from tests.conformance.test_wire_share_groups import joined
from tests.conformance.test_wire_streams import send_heartbeat, settled
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.kafka_tools import (
    EVERYWHERE,
    NOT_ASKED_FOR,
    SUBCOMMANDS,
    TOOLS,
    TRANSCRIPTS,
    asked,
)
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

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
    pytest.mark.no_restarts("leaders, epochs and the quorum are in what the tools print"),
]

GIVEN = os.environ.get("CONFORMANCE_BOOTSTRAP", "")
"""Brokers of Kafka, as in conftest.py."""
RECORD = os.environ.get("TRANSCRIPTS_RECORD", "")
TIMEOUT_S = 60.0
SETTLED_WITHIN_S = 20.0
"""For `$?`: Kafka answers before its brokers know of a change."""


class Stage:
    """Where a transcript is played: the cluster, its names, and clients that stay."""

    def __init__(self, cluster: DialogueCluster, folder: Path, node_ids: list[int]) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.folder = folder
        self.names = {"folder": str(folder)}
        self.nodes = {f"n{index}": str(node) for index, node in enumerate(sorted(node_ids), 1)}
        """Names of nodes and their ids: `<n1>` is the lowest."""
        self.clients = ExitStack()

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
        text = f"{done.stdout}\n{done.stderr}"
        lines = step.reduced(normalised(text, self.names))
        return lines + ([f"[exit {done.returncode}]"] if done.returncode else [])


# -- what no tool does ----------------------------------------------------------------------------


def make_topic(stage: Stage, name: str, partitions: str = "1", *configs: str) -> None:
    """A topic that can be used on all nodes."""
    given = dict(each.split("=", 1) for each in configs)
    stage.cluster.new_topic(int(partitions), given, name=name)


def append_records(stage: Stage, topic: str, partition: str, *values: str) -> None:
    with stage.cluster.connect() as wire:
        append(wire, topic, *[value.encode() for value in values], partition=int(partition))


def join(stage: Stage, group: str, topic: str, protocol: str = "classic") -> None:
    """A member of a consumer group that has read all records and committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "client.id": "reader",
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    stage.clients.callback(consumer.close)
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


def join_share(stage: Stage, group: str, topic: str) -> None:
    """A member of a share group with one partition, which stays for its session."""
    cluster = stage.cluster
    wait_for_coordinator(cluster, group)
    with cluster.connect() as wire:
        joined(wire, group, topic, count=1)


def join_streams(stage: Stage, group: str, topic: str) -> None:
    """A member of a streams group that has tasks."""
    cluster = stage.cluster
    wait_for_coordinator(cluster, group)
    with cluster.connect() as wire:
        settled(wire, group, topology(subtopology("0", topic)))


def leave_streams(stage: Stage, group: str) -> None:
    """The member of the streams group leaves."""
    with stage.cluster.connect() as wire:
        send_heartbeat(wire, group, epoch=-1)


def leave(stage: Stage) -> None:
    """All members of consumer groups leave."""
    stage.clients.close()


def name_topic_id(stage: Stage, topic: str, name: str) -> None:
    stage.names[name] = uuid_to_text(stage.cluster.topic_id(topic))


ACTIONS: Final[Mapping[str, Callable[..., None]]] = {
    "topic": make_topic,
    "append": append_records,
    "join": join,
    "join-share": join_share,
    "join-streams": join_streams,
    "leave": leave,
    "leave-streams": leave_streams,
    "topic-id": name_topic_id,
}


# -- the transcripts ------------------------------------------------------------------------------


def play(path: Path, stage: Stage) -> None:
    """Compare every step, or record all of them."""
    transcript = Transcript.parse(path.read_text())
    with stage.clients:
        for step in transcript.steps():
            if RECORD:
                step.expected = merged(step.expected, seen_at_last(stage, step))
                continue
            if step.kind == "$?":
                wait_until(
                    lambda step=step: not difference(step, stage.do(step)),  # type: ignore[misc]
                    timeout_s=SETTLED_WITHIN_S,
                    what=step.text,
                )
                continue
            found = difference(step, stage.do(step))
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


def seen_at_last(stage: Stage, step: TranscriptStep) -> list[str]:
    """What it prints; for `$?` when it has printed the same for some time."""
    printed = stage.do(step)
    end = time.monotonic() + (1.0 if step.kind == "$?" else 0.0)
    while time.monotonic() < end:
        printed = stage.do(step)
    return printed


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_tools_print_what_they_print_with_kafka(
    cluster: DialogueCluster, nodes: Nodes, tmp_path: Path, path: Path
) -> None:
    if len(nodes.addresses) > 1:
        pytest.skip("what is printed of one node")
    play(path, Stage(cluster, tmp_path, list(nodes.ids.values())))


# -- nothing is missing ---------------------------------------------------------------------------


def options_of(help_text: str) -> set[str]:
    """The options at the beginning of lines."""
    found = re.findall(r"^ {0,4}(?:\* )?(?:-\w[^-]*)?(--[a-z][\w.-]+)", help_text, re.MULTILINE)
    return set(found) - EVERYWHERE


@pytest.mark.parametrize("name", TOOLS)
def test_every_option_is_in_a_transcript_or_has_a_reason(name: str, tmp_path: Path) -> None:
    offered: set[str] = set()
    for words in [(), *((each,) for each in SUBCOMMANDS.get(name, ()))]:
        told = run_java_tool(TOOLS[name].main, *words, "--help", directory=tmp_path)
        offered |= options_of(told.stdout + told.stderr) | set(words)
    left_out = {
        option for tools in NOT_ASKED_FOR.values() for option in tools.get(name, "").split()
    }
    assert offered - asked(name) == left_out
