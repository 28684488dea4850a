"""The preferred read replica of a consumer (KIP-392).

The leader chooses it at each fetch of a consumer with a rack. The consumer fetches there until that
replica refuses. Only replicas that have the data are chosen: members of the ISR have everything
below the high watermark, and no replica's log starts later than the leader's. Pure: the same image
gives the same replica, so that consumers are not sent back and forth.
"""

from collections.abc import Callable, Mapping
from typing import Final

from odradek.cluster.metadata.image import BrokerImage, PartitionImage

NO_REPLICA: Final = -1
"""Fetch from the leader."""


def preferred_read_replica(
    state: PartitionImage,
    brokers: Mapping[int, BrokerImage],
    rack: str,
    *,
    partition: int,
    is_reachable: Callable[[BrokerImage], bool],
) -> int:
    """An in-sync replica in the consumer's rack; NO_REPLICA if the leader is there, or none.

    Never a broker that is fenced, in controlled shutdown, or not `is_reachable` for this client.
    Among several, the partitions of a topic are spread.
    """
    leader = brokers.get(state.leader)
    if leader is not None and leader.rack == rack:
        return NO_REPLICA
    near = sorted(
        broker.broker_id
        for broker in (brokers.get(replica) for replica in state.in_sync_replicas)
        if broker is not None
        and broker.rack == rack
        and broker.broker_id != state.leader
        and not broker.is_fenced
        and not broker.is_in_controlled_shutdown
        and is_reachable(broker)
    )
    return near[partition % len(near)] if near else NO_REPLICA
