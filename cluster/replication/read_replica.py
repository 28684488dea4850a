"""Which replica a consumer had better read from (KIP-392).

The leader of a partition decides, with every fetch of a consumer that names its rack; whoever is
sent elsewhere asks there until that replica refuses, and comes back. Only replicas are named that
surely have what is asked for: members of the ISR have everything below the high watermark, and no
replica's log starts later than its leader's, because only leaders move log starts and followers
take them over. Pure, and the same for the same image, so that nobody is sent back and forth.
"""

from collections.abc import Callable, Mapping
from typing import Final

from odradek.cluster.metadata.image import BrokerImage, PartitionImage

NO_REPLICA: Final = -1
"""The leader serves by itself."""


def preferred_read_replica(
    state: PartitionImage,
    brokers: Mapping[int, BrokerImage],
    rack: str,
    *,
    partition: int,
    is_reachable: Callable[[BrokerImage], bool],
) -> int:
    """An in-sync replica in the consumer's rack, or NO_REPLICA: if the leader is there, or nobody.

    A broker that is fenced, on its way out or not `is_reachable` for this client is never named.
    Where several could be, the partitions of a topic are divided among them.
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
