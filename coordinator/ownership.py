"""The shard of a key, and the shards that a router hosts.

The partitions of a coordinator topic are its shards. Tools and other brokers compute the shard of a
key as Kafka does, from Java's String.hashCode: the arithmetic is part of the protocol. A shard is
hosted by the node that leads its partition; several routers of a node share them round-robin.
Called by the router's coordinator service when the metadata image changes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from odradek.cluster.metadata.image import TopicImage

_INT32_MIN = -(1 << 31)
_KEYS_REMEMBERED: Final = 10_000
"""Every heartbeat computes the shard of its group."""


def java_string_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in wrapping 32-bit arithmetic."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=_KEYS_REMEMBERED)
def shard_of(key: str, shard_count: int) -> int:
    """The shard of a group id or transactional id among `shard_count`."""
    value = java_string_hash(key)
    return 0 if value == _INT32_MIN else abs(value) % shard_count


class HostingChanges(NamedTuple):
    """The shards to unload and to load; `load` holds (shard, leader epoch)."""

    unload: tuple[int, ...]
    load: tuple[tuple[int, int], ...]


def shards_to_host(
    topic: TopicImage | None, *, node_id: int, router_index: int = 0, router_count: int = 1
) -> dict[int, int]:
    """The shards that this router should host, with the leader epochs of their partitions."""
    if topic is None:
        return {}
    return {
        shard: partition.leader_epoch
        for shard, partition in enumerate(topic.partitions)
        if partition.leader == node_id and shard % router_count == router_index
    }


def hosting_changes(hosted: Mapping[int, int], claimed: Mapping[int, int]) -> HostingChanges:
    """The difference between the hosted shards and those to host.

    A shard with a new leader epoch is loaded again also if the leader is the same: another broker
    may have led, and written, in between.
    """
    unload = tuple(shard for shard, epoch in hosted.items() if claimed.get(shard) != epoch)
    load = tuple((shard, epoch) for shard, epoch in claimed.items() if hosted.get(shard) != epoch)
    return HostingChanges(unload, load)
