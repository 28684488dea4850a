"""Throttles of moving replicas (KIP-73): set before moves, removed after, and found after a crash.

Two rates hold for each broker, one as leader and one as follower, and each topic names the replicas
that they are for. They are configs of the cluster and outlive the command: throttles that an
earlier run has left are found and removed too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from odradek.cluster.balance.model import PartitionMove
from odradek.node.cli import configs
from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error
from odradek.node.cli.replica_placement import ClusterView, describe_partitions
from odradek.protocol.errors import ErrorCode

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
CORDON: Final = "cordoned.log.dirs"


@dataclass(frozen=True, slots=True)
class ThrottledResources:
    """Topics and brokers that have throttles of their own."""

    topics: frozenset[str]
    brokers: frozenset[int]

    def __bool__(self) -> bool:
        return bool(self.topics or self.brokers)


def throttle(
    client: ClusterClient, moves: Sequence[PartitionMove], brokers: Iterable[int], bytes_per_s: int
) -> ThrottledResources:
    """Throttle the copies of these moves; the throttled resources."""
    leading: dict[str, list[str]] = {}
    following: dict[str, list[str]] = {}
    for move in moves:
        if move.adding:
            leading.setdefault(move.topic, []).extend(f"{move.number}:{n}" for n in move.before)
            following.setdefault(move.topic, []).extend(f"{move.number}:{n}" for n in move.adding)
    throttled = ThrottledResources(frozenset(leading), frozenset(brokers))
    _alter(
        client,
        {
            topic: {REPLICAS[0]: ",".join(leading[topic]), REPLICAS[1]: ",".join(following[topic])}
            for topic in sorted(leading)
        },
        throttled.brokers,
        str(bytes_per_s),
    )
    return throttled


def find_throttles(
    client: ClusterClient, topics: Collection[str], brokers: Iterable[int]
) -> ThrottledResources:
    """Which of these topics and brokers have throttles of their own."""
    throttled = configs.own_configs(client, configs.TOPIC, topics, REPLICAS)
    return ThrottledResources(
        frozenset(topic for topic, own in throttled.items() if own),
        frozenset(
            broker
            for broker in brokers
            if any(configs.own_configs(client, configs.BROKER, [str(broker)], RATES).values())
        ),
    )


def leftover_throttles(client: ClusterClient, view: ClusterView) -> ThrottledResources:
    """Throttles of all topics and of the brokers that are not fenced."""
    topics = sorted({topic for topic, _ in describe_partitions(client)})
    return find_throttles(
        client, topics, [node.node_id for node in view.nodes if not node.is_fenced]
    )


def unthrottle(client: ClusterClient, throttled: ThrottledResources) -> None:
    """Remove throttles. Topics and brokers that no longer exist are ignored."""
    topics = {topic: dict.fromkeys(REPLICAS) for topic in sorted(throttled.topics)}
    _alter(client, topics, throttled.brokers, None)


def cordon(client: ClusterClient, node_id: int, *, is_cordoned: bool) -> str | None:
    """Place no new replicas on a node, or do so again (KIP-1066). The error, or None; an older
    Kafka has no such config."""
    value = "*" if is_cordoned else None
    (answer,) = configs.alter(client, configs.BROKER, {str(node_id): {CORDON: value}})
    return error_text(answer) if answer.error_code else None


def _alter(
    client: ClusterClient,
    topics: Mapping[str, Mapping[str, str | None]],
    brokers: Iterable[int],
    rate: str | None,
) -> None:
    """Brokers first: topics are throttled by their rates."""
    answers = [
        answer
        for broker in sorted(brokers)
        for answer in configs.alter(
            client, configs.BROKER, {str(broker): dict.fromkeys(RATES, rate)}
        )
    ]
    for answer in [*answers, *configs.alter(client, configs.TOPIC, topics)]:
        if answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            what = "topic" if answer.resource_type == configs.TOPIC else "broker"
            raise_on_error(
                answer,
                f"the throttles of {what} {answer.resource_name}",
            )
