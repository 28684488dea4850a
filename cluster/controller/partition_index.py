"""Which partitions concern a broker, so that its death costs what its own partitions cost.

Derived from the image and kept in step with it record by record; every table has its places in the
order in which they came, the same on each node that reads the log. Built by `state` when it is
first asked for: a node whose controller decides nothing of the kind pays nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Self, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged, PartitionsAdded, Record, TopicDeleted
from odradek.protocol.types import Uuid

Place: TypeAlias = tuple[Uuid, int]
"""A partition by its topic's id and its number."""
_Places: TypeAlias = dict[Place, None]
_Table: TypeAlias = dict[int, _Places]

_NOWHERE: Final[_Places] = {}


class PartitionIndex:
    """Places by what stands there. What its methods return is not to be kept across a replay."""

    __slots__ = ("_eligible", "_in_sync", "_led", "_reassigned", "_unpreferred")

    def __init__(self) -> None:
        self._in_sync: _Table = {}
        self._eligible: _Table = {}
        self._led: _Table = {}
        self._unpreferred: _Places = {}
        self._reassigned: _Places = {}

    @classmethod
    def of(cls, image: MetadataImage) -> Self:
        """The index of all that an image holds."""
        index = cls()
        for topic_id, topic in image.topics_by_id.items():
            for number, partition in enumerate(topic.partitions):
                index._replace((topic_id, number), None, partition)
        return index

    def follow(
        self, before: MetadataImage, after: MetadataImage, records: Iterable[Record]
    ) -> None:
        """Take in the records that led from one image to the next."""
        touched: _Places = {}
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
        for place in touched:
            self._replace(place, before.partition(*place), after.partition(*place))

    def in_sync_on(self, broker_id: int) -> Collection[Place]:
        """Where the broker is in the ISR, also where it leads."""
        return self._in_sync.get(broker_id, _NOWHERE)

    def eligible_on(self, broker_id: int) -> Collection[Place]:
        """Where the broker is an eligible leader outside of the ISR (KIP-966)."""
        return self._eligible.get(broker_id, _NOWHERE)

    def eligible_anywhere(self) -> Sequence[Place]:
        """Where there are eligible leaders outside of the ISR."""
        return list(dict.fromkeys(place for places in self._eligible.values() for place in places))

    def led_by(self, broker_id: int) -> Collection[Place]:
        """Where the broker leads."""
        return self._led.get(broker_id, _NOWHERE)

    def leaderless(self) -> Collection[Place]:
        """Where nobody leads."""
        return self._led.get(NO_LEADER, _NOWHERE)

    def unpreferred(self) -> Collection[Place]:
        """Where somebody else than the preferred leader leads, or nobody."""
        return self._unpreferred

    def reassigned(self) -> Collection[Place]:
        """Where a reassignment is under way."""
        return self._reassigned

    def _replace(
        self, place: Place, before: PartitionImage | None, after: PartitionImage | None
    ) -> None:
        old_in_sync = before.in_sync_replicas if before is not None else ()
        new_in_sync = after.in_sync_replicas if after is not None else ()
        if old_in_sync != new_in_sync:
            _move(self._in_sync, place, old_in_sync, new_in_sync)
        old_elr = before.elr if before is not None else ()
        new_elr = after.elr if after is not None else ()
        if old_elr != new_elr:
            _move(self._eligible, place, old_elr, new_elr)
        old_leader = (before.leader,) if before is not None else ()
        new_leader = (after.leader,) if after is not None else ()
        if old_leader != new_leader:
            _move(self._led, place, old_leader, new_leader)
        _mark(self._unpreferred, place, after is not None and after.leader != after.replicas[0])
        is_reassigned = after is not None and bool(after.adding_replicas or after.removing_replicas)
        _mark(self._reassigned, place, is_reassigned)


def _move(table: _Table, place: Place, old: Iterable[int], new: Iterable[int]) -> None:
    for broker in old:
        if broker not in new:
            places = table[broker]
            del places[place]
            if not places:
                del table[broker]
    for broker in new:
        if broker not in old:
            table.setdefault(broker, {})[place] = None


def _mark(places: _Places, place: Place, is_marked: bool) -> None:
    if is_marked:
        places[place] = None
    else:
        places.pop(place, None)
