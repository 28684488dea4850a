"""Two hundred members of a consumer group share a thousand partitions (KIP-848).

Every member has its own connection. It sends heartbeats at the interval that the broker asks for,
and at once when it has something to acknowledge. The cost is printed.
"""

import selectors
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import pytest

from bench.promises import HEARTBEAT_CPU_US, SLACK
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.types import Uuid
from tests.e2e.conftest import Report, StartNode
from tests.e2e.processes import cpu_seconds, pids_of
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

TOPIC = "orders"
GROUP = "shippers"
MEMBERS = 200
PARTITIONS = 1_000
WAVES = 3
WAVE_MEMBERS = 20
STABLE_S = 2.0
WAIT_S = 60.0
VERSION = 1
NO_COORDINATOR_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
RETRY_MS = 100


class Member:
    """One member: its partitions, its epoch and its connection."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.wire = WireClient(bootstrap)
        self.epoch = 0
        self.owned: dict[Uuid, list[int]] = {}
        self.count = 0
        # Owned partitions are sent when they have changed, as by Kafka's client.
        self._is_told = True

    def send_heartbeat(self) -> None:
        """Send a heartbeat as a client does: all fields to join, then the changed ones."""
        is_join = self.epoch == 0
        owned = [
            TopicIdPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in self.owned.items()
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if is_join else -1,
            subscribed_topic_names=[TOPIC] if is_join else None,
            topic_partitions=None if self._is_told and not is_join else owned,
        )
        self.wire.post(request, VERSION)
        self.count += 1

    def hear(self) -> int:
        """Follow the response; returns when the next heartbeat is due, in milliseconds."""
        answer = self.wire.receive(ConsumerGroupHeartbeatResponse)
        if answer.error_code in NO_COORDINATOR_YET:
            return RETRY_MS
        assert answer.error_code == 0, answer.error_message
        self.epoch = answer.member_epoch
        self._is_told = answer.assignment is None
        if answer.assignment is not None:
            self.owned = {
                topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions
            }
            return 0
        return answer.heartbeat_interval_ms

    def leave(self) -> None:
        """Leave the group, and join again later."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.name, member_epoch=-1
        )
        assert not self.wire.ask(request, VERSION, ConsumerGroupHeartbeatResponse).error_code
        self.epoch, self.owned = 0, {}

    @property
    def partition_count(self) -> int:
        return sum(map(len, self.owned.values()))


class Fleet:
    """Members that keep to the heartbeat intervals of the responses."""

    def __init__(self, node: EmbeddedBroker) -> None:
        self.members = [Member(node.bootstrap_servers, f"member-{n:03}") for n in range(MEMBERS)]
        self._selector = selectors.DefaultSelector()
        for at, member in enumerate(self.members):
            self._selector.register(member.wire.socket, selectors.EVENT_READ, at)
        self._due = [(0.0, at) for at in range(MEMBERS)]
        heapify(self._due)

    def run_until(self, is_over: Callable[[], bool], what: str) -> float:
        """Send heartbeats until the condition holds and all are answered; returns the seconds."""
        began_at = time.monotonic()
        waiting_count = 0
        over_at = None
        while over_at is None or waiting_count:
            now = time.monotonic()
            assert now < began_at + WAIT_S, f"not in time: {what}"
            while over_at is None and self._due and self._due[0][0] <= now:
                self.members[heappop(self._due)[1]].send_heartbeat()
                waiting_count += 1
            pause_s = max(self._due[0][0] - now, 0.0) if self._due and over_at is None else 0.05
            for key, _ in self._selector.select(pause_s):
                interval_ms = self.members[key.data].hear()
                waiting_count -= 1
                heappush(self._due, (time.monotonic() + interval_ms / 1000, key.data))
            if over_at is None and is_over():
                over_at = time.monotonic()
        return over_at - began_at

    def is_shared(self) -> bool:
        """Whether all partitions are assigned, in even shares."""
        return all(member.partition_count == PARTITIONS // MEMBERS for member in self.members)

    def beat_count(self) -> int:
        return sum(member.count for member in self.members)


def test_a_large_group_comes_to_rest_and_its_heartbeats_cost_little(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=PARTITIONS)
    with WireClient(node.bootstrap_servers) as wire:
        # This creates the group topic.
        wire.ask(FindCoordinatorRequest(key=GROUP), 3, FindCoordinatorResponse)
    fleet = Fleet(node)
    # Supervisor and controller take no part in heartbeats. Their CPU time does not count.
    pids = {
        name: pid for name, pid in pids_of(node).items() if name.startswith(("router", "worker"))
    }

    def watched(phase: Callable[[], None]) -> tuple[float, str]:
        before, count = cpu_seconds(pids), fleet.beat_count()
        phase()
        count = fleet.beat_count() - count
        spent = {name: used - before[name] for name, used in cpu_seconds(pids).items()}
        each = ", ".join(f"{name} {1e6 * used / count:.0f}" for name, used in spent.items())
        whole_us = 1e6 * sum(spent.values()) / count
        return whole_us, f"{whole_us:.0f} us ({each}) for each of {count} heartbeats"

    took_s: list[float] = []

    def reconcile() -> None:
        took_s.append(fleet.run_until(fleet.is_shared, "everybody has its share"))
        for wave in range(WAVES):
            for member in fleet.members[wave * WAVE_MEMBERS : (wave + 1) * WAVE_MEMBERS]:
                member.leave()
            took_s.append(fleet.run_until(fleet.is_shared, "all are back"))

    def rest() -> None:
        end = time.monotonic() + STABLE_S
        fleet.run_until(lambda: time.monotonic() > end, "a while")

    _, costs = watched(reconcile)
    report(
        f"{MEMBERS} members have their share of {PARTITIONS} partitions after {took_s[0]:.2f} s;"
        f" {WAVE_MEMBERS} that leave and come back, after {max(took_s[1:]):.2f} s at most"
    )
    report(f"while it reconciles {costs}")
    stable_us, costs = watched(rest)
    report(f"while it is stable {costs}")
    assert stable_us < HEARTBEAT_CPU_US * SLACK
    for member in fleet.members:
        member.wire.close()
