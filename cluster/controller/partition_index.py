"""The partitions of each broker: the cost of its death depends on its own partitions only.

Derived from the image and updated with each record. Every table has its partitions in the order in
which they were added, which is the same on each node. Built by `state` on first use: an inactive
controller does not pay for it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Self, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged, PartitionsAdded, Record, TopicDeleted
from odradek.protocol.types import Uuid

TopicIdPartition: TypeAlias = tuple[Uuid, int]
"""A partition by its topic's id and its number."""
_PartitionSet: TypeAlias = dict[TopicIdPartition, None]
_PartitionsByBroker: TypeAlias = dict[int, _PartitionSet]

_NO_PARTITIONS: Final[_PartitionSet] = {}


class PartitionIndex:
    """Partitions by broker and state. Results must not be kept across a replay."""

    def __init__(self) -> None:
        self._in_sync: _PartitionsByBroker = {}
        self._eligible_leaders: _PartitionsByBroker = {}
        self._led: _PartitionsByBroker = {}
        self._imbalanced: _PartitionSet = {}
        self._replica_counts: Counter[tuple[int, Uuid | None]] = Counter()

    @classmethod
    def of(cls, image: MetadataImage) -> Self:
        """The index of an image."""
        index = cls()
        for topic_id, topic in image.topics_by_id.items():
            for number, partition in enumerate(topic.partitions):
                index._replace((topic_id, number), None, partition)
        return index

    def apply_records(
        self, before: MetadataImage, after: MetadataImage, records: Iterable[Record]
    ) -> None:
        """Apply the records that led from one image to the next."""
        touched: _PartitionSet = {}
        for record in records:
            match record:
                case PartitionChanged():
                    touched[record.topic_id, record.partition] = None
                case PartitionsAdded():
                    for number in range(record.first, record.first + len(record.partitions)):
                        touched[record.topic_id, number] = None
                case TopicDeleted():
                    topic = before.topics_by_id.get(record.topic_id)
                    for number in range(len(topic.partitions) if topic is not None else 0):
                        touched[record.topic_id, number] = None
                case _:
                    pass
        for topic_partition in touched:
            self._replace(
                topic_partition,
                before.partition(*topic_partition),
                after.partition(*topic_partition),
            )

    def in_sync_on(self, broker_id: int) -> Collection[TopicIdPartition]:
        """The partitions with the broker in the ISR, also those that it leads."""
        return self._in_sync.get(broker_id, _NO_PARTITIONS)

    def eligible_on(self, broker_id: int) -> Collection[TopicIdPartition]:
        """The partitions with the broker as an eligible leader outside of the ISR (KIP-966)."""
        return self._eligible_leaders.get(broker_id, _NO_PARTITIONS)

    def with_eligible_leaders(self) -> Sequence[TopicIdPartition]:
        """The partitions with eligible leaders outside of the ISR."""
        return list(
            dict.fromkeys(
                topic_partition
                for topic_partitions in self._eligible_leaders.values()
                for topic_partition in topic_partitions
            )
        )

    def led_by(self, broker_id: int) -> Collection[TopicIdPartition]:
        """The partitions that the broker leads."""
        return self._led.get(broker_id, _NO_PARTITIONS)

    def leaderless(self) -> Collection[TopicIdPartition]:
        """The partitions without a leader."""
        return self._led.get(NO_LEADER, _NO_PARTITIONS)

    def imbalanced(self) -> Collection[TopicIdPartition]:
        """The partitions that their preferred leader does not lead."""
        return self._imbalanced

    def replica_count(self, broker_id: int, directory_id: Uuid | None) -> int:
        """How many replicas are in a log directory of a broker. None is its first one."""
        return self._replica_counts[broker_id, directory_id]

    def _replace(
        self,
        topic_partition: TopicIdPartition,
        before: PartitionImage | None,
        after: PartitionImage | None,
    ) -> None:
        old_in_sync = before.in_sync_replicas if before is not None else ()
        new_in_sync = after.in_sync_replicas if after is not None else ()
        if old_in_sync != new_in_sync:
            _move(self._in_sync, topic_partition, old_in_sync, new_in_sync)
        old_elr = before.elr if before is not None else ()
        new_elr = after.elr if after is not None else ()
        if old_elr != new_elr:
            _move(self._eligible_leaders, topic_partition, old_elr, new_elr)
        old_leader = (before.leader,) if before is not None else ()
        new_leader = (after.leader,) if after is not None else ()
        if old_leader != new_leader:
            _move(self._led, topic_partition, old_leader, new_leader)
        old_replicas = (before.replicas, before.directories) if before is not None else None
        new_replicas = (after.replicas, after.directories) if after is not None else None
        if old_replicas != new_replicas:
            self._replica_counts.subtract(_places(before))
            self._replica_counts.update(_places(after))
        if after is not None and after.leader != after.replicas[0]:
            self._imbalanced[topic_partition] = None
        else:
            self._imbalanced.pop(topic_partition, None)


def _places(partition: PartitionImage | None) -> list[tuple[int, Uuid | None]]:
    """The brokers and log directories of a partition's replicas."""
    if partition is None:
        return []
    if not partition.directories:
        return [(replica, None) for replica in partition.replicas]
    return [(replica, partition.directory_of(replica)) for replica in partition.replicas]


def _move(
    table: _PartitionsByBroker,
    topic_partition: TopicIdPartition,
    old: Iterable[int],
    new: Iterable[int],
) -> None:
    for broker in old:
        if broker not in new:
            topic_partitions = table[broker]
            del topic_partitions[topic_partition]
            if not topic_partitions:
                del table[broker]
    for broker in new:
        if broker not in old:
            table.setdefault(broker, {})[topic_partition] = None
