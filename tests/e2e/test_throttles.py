"""Replicas that are moved under a throttle (KIP-73): the rate is kept, and other traffic is not
slowed.

Durations are taken from the broker's clock, the time at which it appends a record. The moved bytes
are the size of the receiving node's log directory.
"""

import json
import os
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from odradek.node.cli.main import cli
from odradek.protocol.messages.cluster import DescribeLogDirsRequest
from tests.conformance.dialogue import append, batch_of, produce
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

RATE = 512 << 10
SLOW_RATE = RATE // 8
"""For the slow moves: a busy machine is slow itself, and must not be overtaken by the others."""
BATCH_BYTES = 64 << 10
BATCHES = 96
SLACK_BYTES = RATE + (1 << 20) + BATCH_BYTES
"""Allowed at once: a second's quota that was saved up, and one response beyond the quota."""


def set_configs(
    nodes: Cluster, kind: ResourceType, name: str, configs: dict[str, str | None]
) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers})
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(WAIT_S)


def fill(wire: WireClient, topic: str) -> None:
    for _ in range(BATCHES):
        append(wire, topic, os.urandom(BATCH_BYTES))


def clock_ms(wire: WireClient) -> int:
    """The broker's time."""
    return produce(wire, "clock", batch_of(b"")).log_append_time_ms


def size(nodes: Cluster, at: int, topic: str) -> int:
    """Bytes of the topic on this node."""
    answer = nodes[at].ask(DescribeLogDirsRequest(topics=None))
    return sum(
        partition.partition_size
        for described in answer.results[0].topics
        if described.name == topic
        for partition in described.partitions
    )


class Move:
    """Replicas that move to a node, at this rate at most from now on."""

    def __init__(self, nodes: Cluster, wire: WireClient, at: int, rate: int) -> None:
        self._nodes = nodes
        self._wire = wire
        self._at = at
        self._rate = rate
        self._before = {topic: size(nodes, at, topic) for topic in ("sent", "fetched")}
        self._begin_ms = clock_ms(wire)

    def byte_count(self, topic: str) -> int:
        """The bytes moved so far, which must not exceed the rate."""
        byte_count = size(self._nodes, self._at, topic)
        most = self._rate * self._elapsed_ms() // 1_000 + SLACK_BYTES
        assert byte_count - self._before[topic] <= most, topic
        return byte_count

    def per_second(self, topic: str) -> float:
        come = self.byte_count(topic) - self._before[topic]
        return 1_000 * come / self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        return clock_ms(self._wire) - self._begin_ms


def in_sync(nodes: Cluster, topic: str) -> set[int]:
    return set(nodes.partitions(topic)[0].isr_nodes)


def test_a_throttled_replica_moves_at_its_rate_and_others_at_theirs(
    tmp_path: Path, report: Report
) -> None:
    leader, follower, other = 0, 1, 2
    # No node fails here, and none may be taken for failed.
    with running_cluster(tmp_path, settings={"broker.session.timeout.ms": "20000"}) as nodes:
        nodes.create_at("clock", [[leader]], {"message.timestamp.type": "LogAppendTime"})
        # Sent slowly, fetched slowly, not throttled, and throttled but in sync already.
        nodes.create_at(
            "sent", [[leader]], {"leader.replication.throttled.replicas": f"0:{leader}"}
        )
        nodes.create_at("fetched", [[leader]], {"follower.replication.throttled.replicas": "*"})
        nodes.create_at("free", [[leader]])
        nodes.create_at(
            "settled",
            [[leader, other]],
            {
                "leader.replication.throttled.replicas": "*",
                "follower.replication.throttled.replicas": "*",
                "min.insync.replicas": "2",
            },
        )

        def throttle(rate: int | None) -> None:
            value = None if rate is None else str(rate)
            for broker, role in ((leader, "leader"), (follower, "follower"), (other, "follower")):
                config = f"{role}.replication.throttled.rate"
                set_configs(nodes, ResourceType.BROKER, str(broker), {config: value})

        throttle(SLOW_RATE)
        with WireClient(nodes[leader].bootstrap_servers) as wire:
            for topic in ("sent", "fetched", "free"):
                fill(wire, topic)
            slow = Move(nodes, wire, follower, SLOW_RATE)
            for topic in ("sent", "fetched", "free"):
                nodes.reassign(topic, {0: [leader, follower]})
            # Both replicas acknowledge all of these records, however slow other replicas are.
            fill(wire, "settled")
            wait_until(
                lambda: in_sync(nodes, "free") == {leader, follower},
                timeout_s=WAIT_S,
                what="what is not throttled is there",
            )
            assert in_sync(nodes, "settled") == {leader, other}
            total = size(nodes, leader, "sent")
            for topic in ("sent", "fetched"):
                assert slow.byte_count(topic) < total
                assert in_sync(nodes, topic) == {leader}, "it came in before it had everything"

            move = Move(nodes, wire, follower, RATE)
            throttle(RATE)
            half = total // 2
            wait_until(
                lambda: all(size(nodes, follower, topic) >= half for topic in ("sent", "fetched")),
                timeout_s=WAIT_S,
                what="half of both is there",
            )
            for topic in ("sent", "fetched"):
                assert move.byte_count(topic) < total, "the rest is still to come"
                report(f"{topic}: {move.per_second(topic) / 1_000:.0f} KB/s of {RATE / 1_000:.0f}")
            # The command reports the same: two replicas of one node, and their remaining time.
            ran = CliRunner().invoke(
                cli, ["cluster", "status", "-b", nodes.bootstrap_servers, "-o", "json"]
            )
            (behind,) = json.loads(ran.stdout)["catching_up"]
            assert (behind["node"], behind["replicas_behind"]) == (follower, 2)
            assert 0 < behind["bytes_behind"] <= 2 * (total - half)
            assert behind["rest_s"] > 0
            # Without throttles the moves complete; the copied data is kept.
            throttle(None)
            for topic in ("sent", "fetched"):
                nodes.wait_until_whole(topic)
                assert in_sync(nodes, topic) == {leader, follower}
                assert size(nodes, follower, topic) == total
