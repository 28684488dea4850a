"""Which replicas are throttled while they are moved, and how far (KIP-73).

Two rates hold for a broker, in bytes per second: what it sends as a leader to throttled followers,
and what it fetches as a follower of throttled replicas. A topic names the replicas that count on
either side. Whoever replicates asks here upon the image it has, so that a change of a throttle
takes effect with the image that brings it.
"""

from collections.abc import Sequence

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.topic_settings import TopicSettings

EVERY_REPLICA = "*"


def leader_throttle_rate(
    broker: BrokerSettings, topic: TopicSettings, partition: int, node: int
) -> int | None:
    """The bytes per second that `node` may send of this partition to followers out of sync.

    It is one budget for all throttled partitions that the node leads; null: as fast as it goes.
    A follower in sync is never slowed down, or the throttle would take it out of the ISR.
    """
    is_throttled = _names_replica(topic.leader_replication_throttled_replicas, partition, node)
    return broker.leader_replication_throttled_rate if is_throttled else None


def follower_throttle_rate(
    broker: BrokerSettings, topic: TopicSettings, partition: int, node: int
) -> int | None:
    """The bytes per second that `node` may fetch of this partition; as `leader_throttle_rate`."""
    is_throttled = _names_replica(topic.follower_replication_throttled_replicas, partition, node)
    return broker.follower_replication_throttled_rate if is_throttled else None


def _names_replica(replicas: Sequence[str], partition: int, node: int) -> bool:
    """Whether a list names the replica: `*` names all, `partition:broker` one."""
    return EVERY_REPLICA in replicas or f"{partition}:{node}" in replicas
