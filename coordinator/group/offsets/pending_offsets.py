"""Pending transactional offsets of one shard: committed in transactions that are still open.

They become committed offsets with the marker of the transaction (KIP-98). Until then OffsetFetch
with require_stable gets UNSTABLE_OFFSET_COMMIT (KIP-447). A later write to the same partition
supersedes a pending offset: an OffsetCommit or a deletion at once, another transaction when it
commits. All of this is in the log, except the counts of ended transactions. Called by `shard`.
"""

from typing import Final, NamedTuple

from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline, TimelineTable, count
from odradek.protocol.types import NO_EPOCH

_ENDED_COUNT_MAX: Final = 10_000

Key = tuple[str, str, int]
"""Group, topic and partition."""


class _PendingCommit(NamedTuple):
    """A pending commit. `sequence` increases with every record of the shard's log."""

    sequence: int
    producer_epoch: int
    committed: CommittedOffset


class PendingTransactionalOffsets:
    """See the module's docstring."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._sequence = 0
        self._of_producers: dict[int, TimelineTable[Key, _PendingCommit]] = {}
        self._producers_of: TimelineTable[Key, frozenset[int]] = TimelineTable(timeline)
        self._counts: TimelineTable[str, int] = TimelineTable(timeline)
        self._ended: dict[int, int] = {}
        self._maybe_blank: list[int] = []

    # -- reading ----------------------------------------------------------------------------------

    def is_unstable(self, key: Key) -> bool:
        """Whether a transaction may still change the offset: it is open, or its end or its commit
        is not committed to the log yet."""
        return key in self._producers_of or not self._producers_of.is_settled(key)

    def has_any(self, group_id: str) -> bool:
        """Whether the group has pending offsets."""
        return group_id in self._counts

    def pending_keys(self, group_id: str) -> list[Key]:
        """The pending offsets of the group."""
        if group_id not in self._counts:
            return []
        return [key for key, _ in self._producers_of.items() if key[0] == group_id]

    def open_epoch(self, producer_id: int) -> int:
        """The epoch of the producer's open transaction with offsets in this shard; -1 if it has
        none."""
        table = self._of_producers.get(producer_id)
        if table is None:
            return NO_EPOCH
        return max((pending.producer_epoch for _, pending in table.items()), default=NO_EPOCH)

    def ended_count(self, producer_id: int) -> int:
        """The number of transactions of the producer that have ended since the shard was loaded. A
        verification from before the last one is not valid any more."""
        return self._ended.get(producer_id, 0)

    # -- replay -----------------------------------------------------------------------------------

    def add(self, record: TransactionalRecord[OffsetCommitRecord]) -> None:
        """A producer has committed or removed an offset in its transaction."""
        self._drop_blank()
        offset = record.record
        key = offset.group_id, offset.topic, offset.partition
        producer_id = record.producer_id
        if offset.committed is None:
            self._remove(producer_id, key)
            return
        self._sequence += 1
        table = self._of_producers.get(producer_id)
        if table is None:
            table = self._of_producers[producer_id] = TimelineTable(self._timeline)
        table.put(key, _PendingCommit(self._sequence, record.producer_epoch, offset.committed))
        known = self._producers_of.get(key)
        if known is None:
            count(self._counts, key[0], 1)
        if known is None or producer_id not in known:
            self._producers_of.put(key, (known or frozenset()) | {producer_id})

    def supersede(self, record: OffsetCommitRecord) -> None:
        """An OffsetCommit or a deletion supersedes earlier pending offsets."""
        key = record.group_id, record.topic, record.partition
        for producer_id in self._producers_of.get(key) or ():
            self._remove(producer_id, key)

    def end(self, marker: TransactionMarker) -> list[OffsetCommitRecord]:
        """The producer's transaction has ended. Returns the offsets that are committed by it."""
        self._drop_blank()
        producer_id = marker.producer_id
        ended = self._ended.pop(producer_id, 0) + 1
        if len(self._ended) >= _ENDED_COUNT_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[producer_id] = ended
        table = self._of_producers.get(producer_id)
        committed: list[OffsetCommitRecord] = []
        for key, pending in [] if table is None else list(table.items()):
            self._remove(producer_id, key)
            if marker.is_commit:
                committed.append(OffsetCommitRecord(*key, pending.committed))
                for other_id in self._producers_of.get(key) or ():
                    other = self._of_producers[other_id].get(key)
                    if other is not None and other.sequence < pending.sequence:
                        self._remove(other_id, key)
        return committed

    # -- inside -----------------------------------------------------------------------------------

    def _remove(self, producer_id: int, key: Key) -> None:
        known = self._producers_of.get(key)
        if known is None or producer_id not in known:
            return
        table = self._of_producers[producer_id]
        table.remove(key)
        if not len(table):
            self._maybe_blank.append(producer_id)
        left = known - {producer_id}
        if left:
            self._producers_of.put(key, left)
            return
        self._producers_of.remove(key)
        count(self._counts, key[0], -1)

    def _drop_blank(self) -> None:
        """Drop the tables of producers without pending offsets, once that is committed."""
        waiting, self._maybe_blank = self._maybe_blank, []
        for producer_id in waiting:
            table = self._of_producers.get(producer_id)
            if table is None or len(table):
                continue
            if table.is_droppable:
                del self._of_producers[producer_id]
            else:
                self._maybe_blank.append(producer_id)
