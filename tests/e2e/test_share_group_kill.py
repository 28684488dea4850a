"""Processes are killed while members of a share group (KIP-932) come in.

Everything a share group is stands in its log, and what its shard has had done elsewhere is done
once more: whoever was a member goes on being it, every member gets its partitions, and the share
state of each partition is there.
"""

import time

from node.embedded import EmbeddedBroker
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.e2e.conftest import Report, StartNode
from tests.support.wire import ClosedByPeer, WireClient

TOPIC = "orders"
GROUP = "packers"
PARTITIONS = 6
WAIT_S = 60.0
PAUSE_S = 0.02
MOVING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Member:
    """A member that beats until it is answered, as client libraries do."""

    def __init__(self, node: EmbeddedBroker, name: str) -> None:
        self._node = node
        self.name = name
        self.epoch = 0
        self.owned: set[int] = set()

    def beat(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            subscribed_topic_names=[TOPIC] if self.epoch == 0 else None,
        )
        started = time.monotonic()
        while True:
            assert time.monotonic() < started + WAIT_S, f"{self.name} is not answered"
            try:
                with WireClient(self._node.bootstrap_servers) as wire:
                    wire.ask(FindCoordinatorRequest(key=GROUP), 3, FindCoordinatorResponse)
                    response = wire.ask(request, 1, ShareGroupHeartbeatResponse)
            except (OSError, ClosedByPeer):
                time.sleep(PAUSE_S)
                continue
            if response.error_code not in MOVING:
                break
            time.sleep(PAUSE_S)
        # Above all not UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH.
        assert response.error_code == ErrorCode.NONE, (self.name, response)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {
                index
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }


def settle(members: list[Member]) -> float:
    """Let them beat until all partitions are read, equally; how long that took."""
    started = time.monotonic()
    while True:
        sizes = [len(member.owned) for member in members]
        read = set().union(*(member.owned for member in members))
        if len(read) == PARTITIONS == sum(sizes) and max(sizes) - min(sizes) <= 1:
            return time.monotonic() - started
        assert time.monotonic() < started + WAIT_S, [member.owned for member in members]
        for member in members:
            member.beat()
        time.sleep(PAUSE_S)


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
    # The group's first member: the states of all partitions are on the way.
    members[0].beat()
    took = []
    for name in ("router-0", "worker-0"):
        node.kill_process(name)
        node.wait_until_ready()
        took.append(f"{name} {settle(members):.2f}")
        members.append(Member(node, f"m{len(members)}"))
        members[-1].beat()
    node.kill()
    node.start()
    took.append(f"node {settle(members):.2f}")
    assert states(node) == dict.fromkeys(range(PARTITIONS), ErrorCode.NONE)
    report(f"seconds until all partitions were read after a kill: {', '.join(took)}")
