"""Adds replicas to internal topics when brokers join, up to the configured replication factor.

Only with `internal.topics.replication.adaptive`: without it internal topics are created with the
configured factor or not at all (KIP-115), and `controller` never calls this.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from odradek.cluster.controller.partition_changes import changed_partition
from odradek.cluster.controller.reassignment import is_reassigned
from odradek.cluster.controller.state import ControllerState, is_active
from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.metadata.records import Record
from odradek.cluster.metadata.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

CHECK_INTERVAL_MS: Final = 2_000


def raise_replication_factors(state: ControllerState) -> list[Record]:
    """Begin to add the replicas that internal topics lack.

    What a partition has it keeps. The new replicas are on the brokers with the fewest of the topic,
    on other racks first, and the preferred leaders of the partitions are spread over all brokers.
    """
    settings = state.broker_settings
    brokers = {
        broker.broker_id: broker.rack
        for broker in state.registered_brokers()
        if is_active(broker) and not state.is_cordoned(broker.broker_id)
    }
    decisions = state.decisions()
    for name, configured in _configured_factors(settings):
        topic = state.image.topics_by_name.get(name)
        if topic is None:
            continue
        held: Counter[int] = Counter()
        for partition in topic.partitions:
            held.update(partition.replicas)
        led: Counter[int] = Counter()
        for number, partition in enumerate(topic.partitions):
            added = _added_replicas(partition, brokers, held, configured)
            if added and not is_reassigned(partition):
                held.update(added)
                replicas = _with_leader_spread((*partition.replicas, *added), led)
                rules = decisions.rules(topic.topic_id)
                after = changed_partition(partition, rules, replicas=replicas, adding=added)
                decisions.put((topic.topic_id, number), after)
            else:
                led[partition.replicas[0]] += 1
    return decisions.records


def _configured_factors(settings: BrokerSettings) -> Iterator[tuple[str, int]]:
    yield CONSUMER_OFFSETS, settings.offsets_topic_replication_factor
    yield TRANSACTION_STATE, settings.transaction_state_log_replication_factor
    yield SHARE_GROUP_STATE, settings.share_coordinator_state_topic_replication_factor


def _added_replicas(
    partition: PartitionImage,
    brokers: dict[int, str | None],
    held: Counter[int],
    replication_factor: int,
) -> tuple[int, ...]:
    """The brokers that get a replica of the partition."""
    replicas = partition.replicas
    added: list[int] = []
    while len(replicas) + len(added) < replication_factor:
        racks = [brokers.get(broker) for broker in (*replicas, *added)]
        free = [broker for broker in brokers if broker not in replicas and broker not in added]
        if not free:
            break
        added.append(min(free, key=lambda b: (racks.count(brokers[b]), held[b], b)))
    return tuple(added)


def _with_leader_spread(replicas: tuple[int, ...], led: Counter[int]) -> tuple[int, ...]:
    """The replicas with that one first that is the preferred leader of the fewest partitions."""
    leader = min(replicas, key=lambda broker: led[broker])
    led[leader] += 1
    return (leader, *(broker for broker in replicas if broker != leader))
