"""SIGKILL of the share coordinator's node under load, on three nodes.

Writers stand in for partition leaders: each writes the acknowledgements of one share partition,
without a pause. An answered write is durable: after SIGKILL of the share coordinator's router, of
its worker and of its whole node, every answered acknowledgement is read again, and no write was
fenced. The outage of the share partitions is printed.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import pytest

from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.coordinator.share.requests import ShareKey
from odradek.coordinator.share.state_batches import RecordState
from odradek.node.router.handlers.groups import KEY_TYPE_SHARE
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.share_state import (
    InitializeShareGroupStatePartitionData,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    ReadShareGroupStatePartitionData,
    ReadShareGroupStatePartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateData,
    ShareGroupStateResponse,
    StateBatch,
    WriteShareGroupStatePartitionData,
    WriteShareGroupStateRequest,
    WriteStateData,
)
from odradek.protocol.types import Uuid
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

pytestmark = pytest.mark.slow

PARTITIONS = 6
TOPIC = "orders"
GROUP = "shippers"
VICTIMS = ("router-0", "worker-0", "node")
WAIT_S = 30.0
BEHIND = 40
"""The start offset is this many acknowledgements behind."""
LOOK_AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
Answer = TypeVar("Answer")


class Leader:
    """Writes the acknowledgement of every second record of its share partition, one after
    another, and repeats each until it is answered."""

    def __init__(self, cluster: Cluster, topic_id: Uuid, partition: int) -> None:
        self._cluster = cluster
        self.key = ShareKey(GROUP, topic_id, partition)
        self._wire: WireClient | None = None
        self.answered = 0
        """The number of answered acknowledgements."""

    def coordinator(self) -> tuple[int, str] | None:
        """The share coordinator and its address, from any running node."""
        request = FindCoordinatorRequest(key_type=KEY_TYPE_SHARE, coordinator_keys=[self.key.text])
        for node in self._cluster.nodes.values():
            with (
                suppress(OSError, ClosedByPeer),
                WireClient(node.bootstrap_servers, timeout_s=2.0) as wire,
            ):
                [found] = wire.ask(request, 6, FindCoordinatorResponse).coordinators
                if not found.error_code:
                    return found.node_id, f"{found.host}:{found.port}"
        return None

    def node_id(self) -> int:
        found = wait_until(self.coordinator, timeout_s=WAIT_S)
        assert found is not None
        return found[0]

    def initialize(self) -> None:
        data = InitializeShareGroupStatePartitionData(
            partition=self.key.partition, state_epoch=1, start_offset=0
        )
        topic = InitializeStateData(topic_id=self.key.topic_id, partitions=[data])
        request = InitializeShareGroupStateRequest(group_id=GROUP, topics=[topic])
        response = self._ask(request, 0, ShareGroupStateResponse)
        assert not response.results[0].partitions[0].error_code

    def write_until(self, is_enough: Event) -> None:
        while not is_enough.is_set():
            self.write()

    def write(self) -> None:
        at = self.answered
        data = WriteShareGroupStatePartitionData(
            partition=self.key.partition,
            state_epoch=1,
            leader_epoch=0,
            start_offset=max(2 * (at - BEHIND), 0),
            state_batches=[
                StateBatch(
                    first_offset=2 * at,
                    last_offset=2 * at,
                    delivery_state=RecordState.ACKNOWLEDGED,
                    delivery_count=1,
                )
            ],
        )
        topic = WriteStateData(topic_id=self.key.topic_id, partitions=[data])
        request = WriteShareGroupStateRequest(group_id=GROUP, topics=[topic])
        response = self._ask(request, 1, ShareGroupStateResponse)
        result = response.results[0].partitions[0]
        assert not result.error_code, result.error_message
        self.answered += 1

    def read(self) -> ReadShareGroupStatePartitionResult:
        data = ReadShareGroupStatePartitionData(partition=self.key.partition, leader_epoch=0)
        topic = ReadStateData(topic_id=self.key.topic_id, partitions=[data])
        request = ReadShareGroupStateRequest(group_id=GROUP, topics=[topic])
        return self._ask(request, 0, ReadShareGroupStateResponse).results[0].partitions[0]

    def check(self) -> None:
        """Check that the state has all answered acknowledgements and no others."""
        found = self.read()
        assert not found.error_code, found.error_message
        last = self.answered - 1
        start_offset = max(2 * (last - BEHIND), 0)
        assert found.start_offset == start_offset
        offsets = [
            (batch.first_offset, batch.last_offset, batch.delivery_state)
            for batch in found.state_batches
        ]
        assert offsets == [
            (offset, offset, RecordState.ACKNOWLEDGED)
            for offset in range(start_offset, 2 * last + 1, 2)
        ]

    def _ask(self, request: object, version: int, response: type[Answer]) -> Answer:
        answer = wait_until(
            partial(self._try, request, version, response),
            timeout_s=WAIT_S,
            what=f"{type(request).__name__} of {self.key.partition} is answered",
        )
        assert answer is not None
        return answer

    def _try(self, request: object, version: int, response: type[Answer]) -> Answer | None:
        try:
            if self._wire is None:
                found = self.coordinator()
                if found is None:
                    return None
                self._wire = WireClient(found[1], timeout_s=2.0)
            answer = self._wire.ask(request, version, response)
        except (OSError, ClosedByPeer):
            self.close()
            return None
        results = getattr(answer, "results")[0].partitions  # noqa: B009 - all of them have it
        if results[0].error_code in LOOK_AGAIN:
            self.close()
            return None
        return answer

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    settings = {"share.coordinator.state.topic.num.partitions": str(PARTITIONS)}
    with running_cluster(tmp_path, settings=settings) as nodes:
        yield nodes


def kill(nodes: Cluster, node_id: int, victim: str) -> None:
    if victim == "node":
        nodes[node_id].kill()
    else:
        nodes[node_id].kill_process(victim)


def heal(nodes: Cluster, node_id: int) -> None:
    if not nodes[node_id].is_running:
        nodes[node_id].start()
    nodes[node_id].wait_until_ready()
    nodes.wait_until_whole(SHARE_GROUP_STATE)


def all_are_further(leaders: list[Leader], answered: list[int], count: int) -> bool:
    return all(
        leader.answered >= before + count for leader, before in zip(leaders, answered, strict=True)
    )


def outage_s(nodes: Cluster, leaders: list[Leader], node_id: int, victim: str) -> float:
    """Kill it; returns the seconds until every writer has an answer again."""
    answered = [leader.answered for leader in leaders]
    wait_until(partial(all_are_further, leaders, answered, 20), timeout_s=WAIT_S, what="all write")
    killed_at = time.monotonic()
    kill(nodes, node_id, victim)
    # A response may have been in flight; a second one comes from the new coordinator.
    answered = [leader.answered for leader in leaders]
    wait_until(
        partial(all_are_further, leaders, answered, 2), timeout_s=WAIT_S, what="all are answered"
    )
    return time.monotonic() - killed_at


def test_what_was_answered_outlives_who_answered_it(nodes: Cluster, report: Report) -> None:
    nodes.create_at(TOPIC, [[0, 1, 2]] * PARTITIONS)
    topic_id = nodes.topic_id(TOPIC)
    leaders = [Leader(nodes, topic_id, partition) for partition in range(PARTITIONS)]
    for leader in leaders:
        leader.initialize()
    took: list[str] = []
    for victim in VICTIMS:
        nodes.wait_until_whole(SHARE_GROUP_STATE)
        node_id = leaders[0].node_id()
        kept_there = [leader for leader in leaders if leader.node_id() == node_id]
        is_enough = Event()
        with ThreadPoolExecutor(len(leaders)) as pool:
            writing = [pool.submit(leader.write_until, is_enough) for leader in leaders]
            try:
                took.append(f"{victim} {outage_s(nodes, kept_there, node_id, victim):.2f}")
                heal(nodes, node_id)
            finally:
                is_enough.set()
            for written in writing:
                written.result()
        for leader in leaders:
            leader.check()
    written_count = sum(leader.answered for leader in leaders)
    for leader in leaders:
        leader.close()
    report(
        f"{written_count} writes; seconds from the kill until all share-partitions that were kept"
        f" there are written again: {', '.join(took)}"
    )
