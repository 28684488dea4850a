"""Processes are killed while members join a share group (KIP-932).

All state of a share group is in its log, and effects outside of its shard are repeated after a
load: members keep their membership, every member gets its partitions, and the share state of every
partition exists. On several nodes the group's coordinator, the share coordinator and the partition
leaders are on different nodes.
"""

import time
from pathlib import Path
from typing import TypeVar

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.conformance.dialogue import batch_of, produce
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

Answer = TypeVar("Answer")

TOPIC = "orders"
GROUP = "packers"
PARTITIONS = 6
WAIT_S = 60.0
MOVING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Member:
    """A member that repeats its heartbeat until it is answered, as client libraries do."""

    def __init__(self, node: EmbeddedBroker, name: str) -> None:
        self._node = node
        self.name = name
        self.epoch = 0
        self.owned: set[int] = set()

    def send_heartbeat(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            subscribed_topic_names=[TOPIC] if self.epoch == 0 else None,
        )

        def ask() -> ShareGroupHeartbeatResponse | None:
            try:
                with WireClient(self._node.bootstrap_servers) as wire:
                    wire.ask(FindCoordinatorRequest(key=GROUP), 3, FindCoordinatorResponse)
                    response = wire.ask(request, 1, ShareGroupHeartbeatResponse)
            except (OSError, ClosedByPeer):
                return None
            return None if response.error_code in MOVING else response

        response = wait_until(ask, timeout_s=WAIT_S, what=f"{self.name} is answered")
        assert response is not None
        # In particular not UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH.
        assert response.error_code == ErrorCode.NONE, (self.name, response)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {
                index
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }


def settle(members: list[Member]) -> float:
    """Send heartbeats until all partitions are assigned in even shares; returns the seconds."""
    started = time.monotonic()
    error: AssertionError | None = None

    def is_settled() -> bool:
        nonlocal error
        sizes = [len(member.owned) for member in members]
        read = set().union(*(member.owned for member in members))
        if len(read) == PARTITIONS == sum(sizes) and max(sizes) - min(sizes) <= 1:
            return True
        try:
            for member in members:
                member.send_heartbeat()
        except AssertionError as refused:
            # wait_until treats it as "not yet".
            error = refused
        return error is not None

    wait_until(is_settled, timeout_s=WAIT_S, what="all partitions are read, equally")
    if error is not None:
        raise error
    return time.monotonic() - started


def states(node: EmbeddedBroker) -> dict[int, int]:
    """The error code of each partition's share state."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    with WireClient(node.bootstrap_servers) as wire:
        [group] = wire.ask(request, 1, DescribeShareGroupOffsetsResponse).groups
    return {
        partition.partition_index: partition.error_code
        for topic in group.topics
        for partition in topic.partitions
    }


def test_members_of_a_share_group_stay_members_when_processes_are_killed(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    members = [Member(node, "m0")]
    # The group's first member: the initialization of share states is in flight.
    members[0].send_heartbeat()
    took = []
    for name in ("router-0", "worker-0"):
        node.kill_process(name)
        node.wait_until_ready()
        took.append(f"{name} {settle(members):.2f}")
        members.append(Member(node, f"m{len(members)}"))
        members[-1].send_heartbeat()
    node.kill()
    node.start()
    took.append(f"node {settle(members):.2f}")
    assert states(node) == dict.fromkeys(range(PARTITIONS), ErrorCode.NONE)
    report(f"seconds until all partitions were read after a kill: {', '.join(took)}")


def ask(nodes: Cluster, request: object, version: int, response: type[Answer]) -> Answer:
    """The response of the group's coordinator."""

    def found() -> Coordinator | None:
        where = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        with WireClient(nodes[0].bootstrap_servers) as wire:
            [coordinator] = wire.ask(where, 4, FindCoordinatorResponse).coordinators
        return None if coordinator.error_code else coordinator

    coordinator = wait_until(found, timeout_s=WAIT_S, what="the group has a coordinator")
    assert coordinator is not None
    with WireClient(f"{coordinator.host}:{coordinator.port}") as wire:
        return wire.ask(request, version, response)


def test_a_group_stands_on_one_node_and_its_states_and_partitions_on_others(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as nodes:
        nodes.create_at(TOPIC, [[0], [1], [2]])
        for index in range(3):
            with WireClient(nodes[index].bootstrap_servers) as wire:
                batch = batch_of(*[b"v"] * (index + 1))
                assert produce(wire, TOPIC, batch, partition=index).error_code == ErrorCode.NONE
        offsets = [PartitionOffset(partition_index=index, offset=index) for index in range(3)]
        topic = TopicOffsets(name=TOPIC, partitions=offsets)
        request = AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[topic])

        def are_set() -> bool:
            answer = ask(nodes, request, 0, AlterShareGroupOffsetsResponse)
            assert answer.error_code in (ErrorCode.NONE, *MOVING)
            return not answer.error_code and not any(
                partition.error_code for partition in answer.responses[0].partitions
            )

        wait_until(are_set, timeout_s=WAIT_S, what="the offsets are set")
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=None)
        describe = DescribeShareGroupOffsetsRequest(groups=[asked])
        [group] = ask(nodes, describe, 1, DescribeShareGroupOffsetsResponse).groups
        [told] = group.topics
        # One record is left in each partition.
        assert {
            (each.partition_index, each.start_offset, each.lag, each.error_code)
            for each in told.partitions
        } == {(index, index, 1, ErrorCode.NONE) for index in range(3)}
