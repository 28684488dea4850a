"""Processes are killed during a reconciliation of a consumer group (KIP-848).

Members are real consumers, and one has just joined when SIGKILL comes. All state of a group is in
its log: members keep their id and epoch, no member is fenced, and the group becomes stable.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.share import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "orders"
NOT_THERE = "returns"
GROUP = "shippers"
PARTITIONS = 8
WAIT_S = 60.0
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class Member:
    """A consumer that counts how often it lost partitions (on_lost)."""

    def __init__(self, node: EmbeddedBroker) -> None:
        self.lost_count = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                # librdkafka's messages about broken connections are expected here.
                "log_level": 0,
            }
        )
        self.consumer.subscribe([TOPIC], on_lost=self._on_lost)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost_count += 1

    @property
    def owned(self) -> list[int]:
        return [each.partition for each in self.consumer.assignment()]


def poll_until(condition: Callable[[], bool], members: list[Member], what: str) -> float:
    """Poll all members until the condition holds; returns the seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + WAIT_S, f"not in time: {what}"
        for member in members:
            member.consumer.poll(0.02)
    return time.monotonic() - started


def is_shared(members: list[Member]) -> bool:
    owned = [member.owned for member in members]
    whole = Counter(range(PARTITIONS))
    return all(owned) and Counter(each for part in owned for each in part) == whole


def described(node: EmbeddedBroker) -> ConsumerGroupDescribedGroup:
    with WireClient(node.bootstrap_servers) as wire:
        request = ConsumerGroupDescribeRequest(group_ids=[GROUP])
        [group] = wire.ask(request, 1, ConsumerGroupDescribeResponse).groups
    return group


def member_ids(node: EmbeddedBroker) -> set[str]:
    return {member.member_id for member in described(node).members}


@pytest.mark.slow
def test_members_stay_members_when_processes_are_killed_while_one_joins(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    members = [Member(node)]
    poll_until(lambda: is_shared(members), members, "one has all")
    took: list[str] = []
    for name in ("router-0", "worker-0", "supervisor"):
        before = member_ids(node)
        members.append(Member(node))
        # The newest member is in the group and has no partitions yet.
        poll_until(lambda: len(member_ids(node)) == len(members), members, "it has joined")
        if name == "supervisor":
            # The whole node. After its restart it must load metadata before it knows the topic.
            node.kill()
            node.start()
        else:
            node.kill_process(name)
            node.wait_until_ready()
        seconds = poll_until(lambda: is_shared(members), members, "all have their share")
        took.append(f"{name} {seconds:.2f}")
        assert before < member_ids(node)
    assert [member.lost_count for member in members] == [0] * len(members), node.log()[-4000:]
    for member in members:
        member.consumer.close()
    report(f"seconds until all had their share after a kill: {', '.join(took)}")


class Raw:
    """A member of a consumer group that speaks the wire protocol and sends the given heartbeats."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}

    def send_heartbeat(self, node: EmbeddedBroker, topics: list[str] | None = None) -> int:
        """One heartbeat that the group's shard answers; returns the error code."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if self.epoch == 0 else -1,
            subscribed_topic_names=topics,
            topic_partitions=[
                TopicIdPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in self.owned.items()
            ],
        )
        answer = served(node, request, 1, ConsumerGroupHeartbeatResponse)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                told = answer.assignment.topic_partitions
                self.owned = {each.topic_id: sorted(each.partitions) for each in told}
        return answer.error_code


Answer = TypeVar("Answer", ConsumerGroupHeartbeatResponse, ShareGroupHeartbeatResponse)


def served(
    node: EmbeddedBroker, request: object, version: int, answer_type: type[Answer]
) -> Answer:
    """The response of a coordinator that has loaded the group."""

    def ask() -> list[Answer]:
        with WireClient(node.bootstrap_servers) as wire:
            wire.ask(FindCoordinatorRequest(key=GROUP), 3, FindCoordinatorResponse)
            answer = wire.ask(request, version, answer_type)
        return [] if answer.error_code in NOT_YET else [answer]

    return wait_until(ask, timeout_s=WAIT_S, what="the group's coordinator answers")[0]


@pytest.mark.slow
def test_a_stable_group_is_the_same_when_its_node_was_killed_and_is_back(
    start_node: StartNode,
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    members = [Raw("a"), Raw("b")]
    for member in members:
        assert member.send_heartbeat(node, [TOPIC]) == ErrorCode.NONE

    def is_stable() -> bool:
        for member in members:
            if code := member.send_heartbeat(node):
                pytest.fail(f"{member.member_id} is told {ErrorCode(code).name}")
        return described(node).group_state == "Stable"

    wait_until(is_stable, timeout_s=WAIT_S, what="both have their share")
    before, owned = described(node), [dict(member.owned) for member in members]
    assert all(owned)
    node.kill()
    node.start()
    for member in members:
        assert member.send_heartbeat(node) == ErrorCode.NONE
    assert described(node) == before
    node.kill()
    node.start()
    # The first heartbeat at the new coordinator changes the group. No member loses partitions by
    # that.
    assert members[0].send_heartbeat(node, [TOPIC, NOT_THERE]) == ErrorCode.NONE
    wait_until(is_stable, timeout_s=WAIT_S, what="all are at the new epoch")
    assert described(node).group_epoch == before.group_epoch + 1
    assert [member.owned for member in members] == owned


@pytest.mark.slow
def test_a_stable_share_group_is_the_same_when_its_node_was_killed_and_is_back(
    start_node: StartNode,
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    epoch, given = 0, 0

    def send_heartbeat() -> None:
        nonlocal epoch, given
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="sharer",
            member_epoch=epoch,
            subscribed_topic_names=None if epoch else [TOPIC],
        )
        answer = served(node, request, 1, ShareGroupHeartbeatResponse)
        assert answer.error_code == ErrorCode.NONE
        epoch = answer.member_epoch
        if answer.assignment is not None:
            given = sum(len(each.partitions) for each in answer.assignment.topic_partitions)

    def has_all() -> bool:
        send_heartbeat()
        return given == PARTITIONS

    wait_until(has_all, timeout_s=WAIT_S, what="the member has every partition")

    def shown() -> object:
        with WireClient(node.bootstrap_servers) as wire:
            request = ShareGroupDescribeRequest(group_ids=[GROUP])
            return wire.ask(request, 1, ShareGroupDescribeResponse).groups

    before = shown()
    node.kill()
    node.start()
    send_heartbeat()
    assert shown() == before
