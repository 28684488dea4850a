"""Replication throttles: which replicas they are for, and their rates (KIP-73).

A broker has two rates, in bytes per second: one for what it sends as a leader to throttled
followers, one for what it fetches as a follower of throttled replicas. A topic lists the replicas
for either. A change takes effect with the image that has it.
"""

from collections.abc import Sequence

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.topic_settings import TopicSettings

EVERY_REPLICA = "*"


def leader_throttle_rate(
    broker: BrokerSettings, topic: TopicSettings, partition: int, node: int
) -> int | None:
    """The bytes per second that `node` may send of this partition to followers out of sync.

    The rate is for all throttled partitions that the node leads together; null: not throttled.
    In-sync followers are not throttled, or they would leave the ISR.
    """
    is_throttled = _names_replica(topic.leader_replication_throttled_replicas, partition, node)
    return broker.leader_replication_throttled_rate if is_throttled else None


def follower_throttle_rate(
    broker: BrokerSettings, topic: TopicSettings, partition: int, node: int
) -> int | None:
    """The bytes per second that `node` may fetch of this partition; as `leader_throttle_rate`."""
    is_throttled = _names_replica(topic.follower_replication_throttled_replicas, partition, node)
    return broker.follower_replication_throttled_rate if is_throttled else None


def rates_of(broker: BrokerSettings) -> tuple[int, int]:
    """The rates of a broker, as a leader and as a follower."""
    return broker.leader_replication_throttled_rate, broker.follower_replication_throttled_rate


def _names_replica(replicas: Sequence[str], partition: int, node: int) -> bool:
    """Whether a list names the replica: `*` names all, `partition:broker` one."""
    return EVERY_REPLICA in replicas or f"{partition}:{node}" in replicas
