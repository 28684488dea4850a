"""Offsets that producers have committed inside transactions that are still open, of one shard.

They count once the transaction's marker says so (KIP-98), and until then a consumer that asks for
stable offsets is told to wait (KIP-447). What is written later for the same partition supersedes
what is pending: a plain commit or a deletion at once, another producer's transaction when it
commits. Everything here is in the log and replayed from it; only `ended` counts are soft. Called by
`shard`.
"""

from typing import Final, NamedTuple

from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline, TimelineTable

_ENDED_COUNT_MAX: Final = 10_000

Key = tuple[str, str, int]
"""Group, topic and partition."""


class _PendingCommit(NamedTuple):
    """What is to be committed. `sequence` grows with every record of the shard's log."""

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

    # -- what is there ----------------------------------------------------------------------------

    def is_unstable(self, key: Key) -> bool:
        """Whether a transaction may still change the offset: one is open, or its end could still be
        taken back. So may all of it, where a coordinator has loaded what is not committed yet and
        has written the marker behind it."""
        return key in self._producers_of or not self._producers_of.is_settled(key)

    def has_any(self, group_id: str) -> bool:
        """Whether anything of the group is pending."""
        return group_id in self._counts

    def pending_keys(self, group_id: str) -> list[Key]:
        """What of the group is pending."""
        if group_id not in self._counts:
            return []
        return [key for key, _ in self._producers_of.items() if key[0] == group_id]

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's open transaction is known here."""
        table = self._of_producers.get(producer_id)
        if table is None:
            return False
        return any(pending.producer_epoch == producer_epoch for _, pending in table.items())

    def ended_count(self, producer_id: int) -> int:
        """How many transactions of the producer have ended since this shard was loaded: what was
        verified before the last one is not verified any more."""
        return self._ended.get(producer_id, 0)

    # -- replay -----------------------------------------------------------------------------------

    def add(self, record: TransactionalRecord[OffsetCommitRecord]) -> None:
        """A producer has committed an offset, or dropped one, in its transaction."""
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
            self._counts.put(key[0], (self._counts.get(key[0]) or 0) + 1)
        if known is None or producer_id not in known:
            self._producers_of.put(key, (known or frozenset()) | {producer_id})

    def supersede(self, record: OffsetCommitRecord) -> None:
        """A plain commit or a deletion has the last word over what was pending before it."""
        key = record.group_id, record.topic, record.partition
        for producer_id in self._producers_of.get(key) or ():
            self._remove(producer_id, key)

    def end(self, marker: TransactionMarker) -> list[OffsetCommitRecord]:
        """The producer's transaction has ended. Returns the offsets that this makes real."""
        self._drop_blank()
        producer_id = marker.producer_id
        ended = self._ended.pop(producer_id, 0) + 1
        if len(self._ended) >= _ENDED_COUNT_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[producer_id] = ended
        table = self._of_producers.get(producer_id)
        real: list[OffsetCommitRecord] = []
        for key, pending in [] if table is None else list(table.items()):
            self._remove(producer_id, key)
            if marker.is_commit:
                real.append(OffsetCommitRecord(*key, pending.committed))
                for other in self._producers_of.get(key) or ():
                    theirs = self._of_producers[other].get(key)
                    if theirs is not None and theirs.sequence < pending.sequence:
                        self._remove(other, key)
        return real

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
        count = self._counts.get(key[0]) or 0
        if count > 1:
            self._counts.put(key[0], count - 1)
        else:
            self._counts.remove(key[0])

    def _drop_blank(self) -> None:
        """Forget producers that have nothing pending, once that cannot be taken back."""
        waiting, self._maybe_blank = self._maybe_blank, []
        for producer_id in waiting:
            table = self._of_producers.get(producer_id)
            if table is None or len(table):
                continue
            if table.is_droppable:
                del self._of_producers[producer_id]
            else:
                self._maybe_blank.append(producer_id)
