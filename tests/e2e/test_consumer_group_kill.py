"""Processes are killed in the midst of a reconciliation of the consumer protocol (KIP-848).

Real consumers, of which one has just joined when SIGKILL comes. Everything a group is stands in
its log: whoever was a member goes on being it, nobody is told to begin anew, and the group comes
to rest.
"""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from node.embedded import EmbeddedBroker
from protocol.messages.groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tests.e2e.conftest import Report, StartNode
from tests.support.wire import WireClient

TOPIC = "orders"
GROUP = "shippers"
PARTITIONS = 8
WAIT_S = 60.0


class Member:
    """A consumer that counts how often it was told that what it owned is not its own any more."""

    def __init__(self, node: EmbeddedBroker) -> None:
        self.lost_count = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                # What librdkafka says of broken connections is what the test is about.
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
    """Let the members work until it is so; how long that took."""
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


def member_ids(node: EmbeddedBroker) -> set[str]:
    with WireClient(node.bootstrap_servers) as wire:
        request = ConsumerGroupDescribeRequest(group_ids=[GROUP])
        [group] = wire.ask(request, 1, ConsumerGroupDescribeResponse).groups
    return {member.member_id for member in group.members}


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
        # The newest is in the group, and has not got its share yet.
        poll_until(lambda: len(member_ids(node)) == len(members), members, "it has joined")
        if name == "supervisor":
            # The whole node, which must read its metadata again before it knows the topic.
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
