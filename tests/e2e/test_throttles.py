"""Replicas that are moved under a throttle (KIP-73): the rate is kept, and nobody else pays for it.

How long something took is read off the broker's own clock, the time at which it appends a record;
what was moved is what the receiving node's log directory has.
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
"""While others move: a busy machine takes its time for them, and must not be overtaken."""
BATCH_BYTES = 64 << 10
BATCHES = 96
SLACK_BYTES = RATE + (1 << 20) + BATCH_BYTES
"""What may go at once: a second's worth that was saved up, and an answer that overdraws it."""


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
    """The time that the broker has now."""
    return produce(wire, "clock", batch_of(b"")).log_append_time_ms


def size(nodes: Cluster, at: int, topic: str) -> int:
    """Bytes of the topic that the node has."""
    answer = nodes[at].ask(DescribeLogDirsRequest(topics=None))
    return sum(
        partition.partition_size
        for described in answer.results[0].topics
        if described.name == topic
        for partition in described.partitions
    )


class Move:
    """Replicas on their way to a node, from now on at no more than this rate."""

    def __init__(self, nodes: Cluster, wire: WireClient, at: int, rate: int) -> None:
        self._nodes = nodes
        self._wire = wire
        self._at = at
        self._rate = rate
        self._before = {topic: size(nodes, at, topic) for topic in ("sent", "fetched")}
        self._begin_ms = clock_ms(wire)

    def byte_count(self, topic: str) -> int:
        """What is there by now, which can be no more than this."""
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
    # Nobody dies here, and nobody is to be taken for dead.
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
            # All of these records are acknowledged by both replicas, however slow others are.
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
            # So says the command as well: two replicas of one node, and how long they will take.
            ran = CliRunner().invoke(
                cli, ["cluster", "status", "-b", nodes.bootstrap_servers, "-o", "json"]
            )
            (behind,) = json.loads(ran.stdout)["catching_up"]
            assert (behind["node"], behind["replicas_behind"]) == (follower, 2)
            assert 0 < behind["bytes_behind"] <= 2 * (total - half)
            assert behind["rest_s"] > 0
            # Without throttles they are done; what they had is kept.
            throttle(None)
            for topic in ("sent", "fetched"):
                nodes.wait_until_whole(topic)
                assert in_sync(nodes, topic) == {leader, follower}
                assert size(nodes, follower, topic) == total
