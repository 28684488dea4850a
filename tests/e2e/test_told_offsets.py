"""An end offset that was told once is never taken back, though workers are killed again and again.

A probe asks for ends and high watermarks all the time while a producer writes. An answer must not
be older than any answer that came before its request, in the same leader epoch or a later one."""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.e2e.checker import ObservedHistory
from tests.e2e.cluster import running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.e2e.load import Writer
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

TOPIC = "orders"
PARTITIONS = 4
KILLS = 6
WAIT_S = 60.0
LATEST = -1
LIST_OFFSETS_VERSION = 7
FETCH_VERSION = 12
RETRIABLE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
"""What Kafka answers while a leader is not there."""


class OffsetProbe(threading.Thread):
    """Asks all nodes in turn. `told` are the highest answers by kind and partition."""

    def __init__(self, nodes: Sequence[EmbeddedBroker]) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self._stopped = threading.Event()
        self._epochs: Counter[int] = Counter()
        self.told: dict[tuple[str, int], int] = {}
        self.complaints: list[str] = []
        self.answer_count = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            for at, node in enumerate(self._nodes):
                try:
                    with WireClient(node.bootstrap_servers) as wire:
                        for _ in range(20):
                            self._list_offsets(wire, isolation_level=0)
                            self._list_offsets(wire, isolation_level=1)
                            self._fetch(wire, at)
                except (OSError, ClosedByPeer):
                    continue

    def stop(self) -> None:
        self._stopped.set()
        self.join(WAIT_S)
        assert not self.is_alive()

    def _list_offsets(self, wire: WireClient, *, isolation_level: int) -> None:
        asked = [
            ListOffsetsPartition(
                partition_index=n, current_leader_epoch=self._epochs[n] or -1, timestamp=LATEST
            )
            for n in range(PARTITIONS)
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)],
        )
        answer = wire.ask(request, LIST_OFFSETS_VERSION, ListOffsetsResponse)
        kind = "end for read_committed" if isolation_level else "end"
        for partition in answer.topics[0].partitions:
            number = partition.partition_index
            if self._is_answer(partition.error_code):
                self._note(kind, number, partition.offset)
                self._epochs[number] = max(self._epochs[number], partition.leader_epoch)

    def _fetch(self, wire: WireClient, at: int) -> None:
        asked = [
            FetchPartition(
                partition=n,
                current_leader_epoch=self._epochs[n] or -1,
                fetch_offset=0,
                partition_max_bytes=1,
            )
            for n in range(PARTITIONS)
        ]
        request = FetchRequest(max_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=asked)])
        answer = wire.ask(request, FETCH_VERSION, FetchResponse)
        for partition in answer.responses[0].partitions:
            if self._is_answer(partition.error_code):
                number = partition.partition_index
                # A follower may be behind the leader, not behind itself.
                self._note(f"high watermark of node {at}", number, partition.high_watermark)
                self._note(f"stable offset of node {at}", number, partition.last_stable_offset)

    def _is_answer(self, code: int) -> bool:
        if code and ErrorCode(code) not in RETRIABLE:
            self.complaints.append(ErrorCode(code).name)
        return not code

    def _note(self, kind: str, number: int, offset: int) -> None:
        self.answer_count += 1
        before = self.told.get((kind, number), -1)
        if offset < before:
            self.complaints.append(f"{kind}, partition {number}: {before}, then {offset}")
        self.told[kind, number] = max(before, offset)


@contextmanager
def probed(nodes: Sequence[EmbeddedBroker], bootstrap: str) -> Iterator[tuple[OffsetProbe, Writer]]:
    """A probe and a producer at work; at the end nobody may have seen an offset go back."""
    history = ObservedHistory()
    writer = Writer(bootstrap, TOPIC, PARTITIONS, history)
    probe = OffsetProbe(nodes)
    writer.start()
    wait_until(lambda: writer.next_number > 200, timeout_s=WAIT_S)
    probe.start()
    yield probe, writer
    writer.stop()
    probe.stop()
    assert probe.complaints == []
    assert history.complaints == []


def wait_for_progress(probe: OffsetProbe, writer: Writer) -> None:
    """Until records that are written from now on are told in every partition."""
    target = writer.next_number + 100
    before = dict(probe.told)
    wait_until(
        lambda: (
            writer.next_number > target
            and all(probe.told[key] > offset for key, offset in before.items())
        ),
        timeout_s=WAIT_S,
        what="the ends of all partitions move",
    )


@pytest.mark.slow
def test_ends_never_go_back_when_the_worker_is_killed(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    with probed([node], node.bootstrap_servers) as (probe, writer):
        for _ in range(KILLS):
            wait_for_progress(probe, writer)
            node.kill_worker()
            node.wait_until_ready()
        wait_for_progress(probe, writer)
    report(f"{probe.answer_count} answers")


@pytest.mark.slow
def test_ends_never_go_back_when_workers_of_three_nodes_are_killed(
    tmp_path: Path, report: Report
) -> None:
    dice = random.Random(11)
    with running_cluster(tmp_path) as nodes:
        replicas = [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(PARTITIONS)]
        nodes.create_at(TOPIC, replicas, {"min.insync.replicas": "2"})
        with probed(list(nodes.nodes.values()), nodes.bootstrap_servers) as (probe, writer):
            for _ in range(KILLS):
                wait_for_progress(probe, writer)
                node = nodes[dice.randrange(3)]
                node.kill_worker()
                node.wait_until_ready()
            wait_for_progress(probe, writer)
    report(f"{probe.answer_count} answers")
