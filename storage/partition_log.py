"""The in-memory state of one partition's log: offsets, producers, leader epochs, transactions.

Only `advance` applies a batch to it. A turn calls it for each batch that it appends, and opening a
store calls it for each batch in the active segment, so that both reach the same state. A turn that
fails restores the state before it (`savepoint`, `roll_back`), which is the state on disk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from odradek.protocol.control_records import ControlType, EndTransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import BatchHeader
from odradek.protocol.types import NO_OFFSET
from odradek.storage.catalog import PartitionRow
from odradek.storage.layout import EPOCH_KEY, FUTURE_PARTITION, KEY, OFFSET
from odradek.storage.leader_epochs import LeaderEpochs
from odradek.storage.producer_state import (
    ProducerStateEntry,
    entry_after_batch,
    entry_after_marker,
    is_expired,
)
from odradek.storage.segment import Extent
from odradek.storage.settings import LogSettings
from odradek.storage.status import ReplicaRole
from odradek.storage.timestamps import TimestampIndexer
from odradek.storage.transactions import UndecidedTransactions

_TURN_STATE = (
    "log_end_offset",
    "active_first_offset",
    "active_bytes",
    "active_batches",
    "active_first_append_ms",
    "uncheckpointed_batches",
    "epoch_recorded",
    "undecided",
    "dirty_producers",
    "unsealed_producers",
)
"""What a turn may change, except for producers, the timestamp index and leader epochs."""
_turn_state: Callable[["PartitionLog"], tuple[object, ...]] = attrgetter(*_TURN_STATE)

Savepoint = tuple[tuple[object, ...], int, int, tuple[tuple[int, int], ...]]


class IndexRow(NamedTuple):
    """An index row for the active segment, and the name of its database."""

    database: str
    key: bytes
    value: bytes


class NewPartition(NamedTuple):
    """A partition to be created, from the metadata."""

    topic_id: bytes
    topic_name: str
    partition: int
    leader_epoch: int
    settings: LogSettings
    role: ReplicaRole = ReplicaRole.LEADER
    is_future: bool = False
    """Whether it is copied from another log directory, and not in use yet."""

    @property
    def key(self) -> tuple[bytes, int]:
        """Topic id and partition, as in the catalog's table of numbers."""
        return self.topic_id, self.partition + FUTURE_PARTITION * self.is_future


NOT_KNOWN: Final = -2
"""Instead of a committed offset, until somebody says what the group has committed."""


@dataclass(slots=True)
class ArchiveState:
    """What is known of the group that has to commit a log's records before they are deleted. See
    archive_gate.py."""

    group: str
    archived_offset: int = NOT_KNOWN
    """What the group has committed; NO_OFFSET: nothing."""
    unknown_since_ms: int | None = None
    """When retention first ran without knowing it."""
    capped_offset: int = 0
    """Everything below is above the cap: it goes without the group."""
    held_bytes: int = 0
    """Bytes that retention would have deleted at its last check."""
    is_over_cap: bool = False
    """Whether records were deleted that the group has not committed, since it was last up with
    retention."""

    @property
    def released_offset(self) -> int:
        """What is below may leave the log."""
        return max(self.archived_offset, self.capped_offset)


class PartitionLog:
    """The state of one partition. Offsets that end something are exclusive."""

    __slots__ = (
        "active_batches",
        "active_bytes",
        "active_first_append_ms",
        "active_first_offset",
        "archive",
        "client_bytes",
        "client_records",
        "dirty_producers",
        "epoch_recorded",
        "epochs",
        "flushed_offset",
        "high_watermark",
        "indexer",
        "is_replicated",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "number",
        "partition",
        "producer_undo",
        "producers",
        "role",
        "settings",
        "topic_id",
        "topic_name",
        "uncheckpointed_batches",
        "undecided",
        "unsealed_producers",
    )

    def __init__(self, row: PartitionRow) -> None:
        self.number = row.number
        self.topic_id = row.topic_id
        self.topic_name = row.topic_name
        self.partition = row.partition
        self.settings: LogSettings = row.settings
        self.archive: ArchiveState | None = None
        self.apply_settings(row.settings)
        self.log_start_offset = row.log_start_offset
        self.log_end_offset = row.log_end_offset
        self.high_watermark = self.log_end_offset
        self.is_replicated = False
        """Whether the high watermark depends on followers. Else it is the log end offset."""
        self.role = ReplicaRole.LEADER
        self.epochs = LeaderEpochs(row.leader_epochs)
        self.epoch_recorded = self.epochs.latest
        """The last leader epoch that has a row in the catalog or in the active segment. `epochs`
        may have a later one without records. It gets its row with its first record."""
        self.leader_epoch = self.epochs.latest
        self.producers: dict[int, ProducerStateEntry] = {}
        self.undecided = UndecidedTransactions()

        self.client_bytes = self.client_records = 0
        """Put for clients since the store was opened, for the metrics. A turn that fails leaves
        what it counted."""
        self.producer_undo: list[tuple[int, ProducerStateEntry | None]] = []
        self.flushed_offset = 0
        """Everything below was synced. For flush.messages."""
        self._clear_active()

    def apply_settings(self, settings: LogSettings) -> None:
        """Use these settings. What was known of a group's archive is kept as long as it is the same
        group's."""
        group, former = settings.archive_group, self.archive
        if not group:
            self.archive = None
        elif former is None or former.group != group:
            self.archive = ArchiveState(group)
        self.settings = settings

    def start_segment(self) -> None:
        """A new, empty segment has become the active one. The catalog has all before it."""
        if self.active_batches:
            self.epoch_recorded = self.epochs.epoch_at(self.log_end_offset - 1)
        self._clear_active()

    def _clear_active(self) -> None:
        self.dirty_producers: set[int] = set()
        """Producers changed since the last checkpoint in the active segment."""
        self.unsealed_producers: set[int] = set()
        """Producers whose rows in the catalog are older than their checkpoint."""
        self.active_first_offset = -1
        self.active_bytes = 0
        self.active_batches = 0
        self.active_first_append_ms = 0
        self.indexer = TimestampIndexer()
        self.uncheckpointed_batches = 0

    @property
    def last_stable_offset(self) -> int:
        """End (exclusive) of what read_committed may see."""
        return self.undecided.last_stable_offset(self.high_watermark)

    def transaction_error(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Why no batch of the producer can continue a transaction in this log: NONE if one is under
        way in its epoch, INVALID_PRODUCER_EPOCH if there is a newer one, else INVALID_TXN_STATE."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.producer_epoch < producer_epoch:
            return ErrorCode.INVALID_TXN_STATE
        if entry.producer_epoch > producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_under_way = entry.transaction_first_offset != NO_OFFSET
        return ErrorCode.NONE if is_under_way else ErrorCode.INVALID_TXN_STATE

    def active_extent(self, segment_id: int) -> Extent | None:
        """The partition's extent in the active segment, which has this id."""
        if not self.active_batches:
            return None
        return Extent(
            segment_id,
            self.active_first_offset,
            self.log_end_offset,
            self.active_bytes,
            self.active_batches,
            self.indexer.max_timestamp,
            self.active_first_append_ms,
        )

    def resume(self, extent: Extent) -> None:
        """Restore a checkpoint of the active segment, when the store is opened."""
        self.active_first_offset = extent.first_offset
        self.active_bytes = extent.byte_count
        self.active_batches = extent.batch_count
        self.active_first_append_ms = extent.first_append_ms
        self.indexer = TimestampIndexer(extent.max_timestamp)
        self.log_end_offset = extent.end_offset

    def advance(
        self,
        header: BatchHeader,
        *,
        base_offset: int,
        leader_epoch: int,
        size: int,
        append_ms: int,
        marker: EndTransactionMarker | None,
    ) -> list[IndexRow]:
        """A batch of `size` bytes was appended at the log's end. `base_offset` and `leader_epoch`
        are those it has in the log; the header may still hold the client's. Returns the index rows
        that belong to the batch."""
        rows: list[IndexRow] = []
        self.log_end_offset = base_offset + header.last_offset_delta + 1
        if not self.active_batches:
            self.active_first_offset = base_offset
            self.active_first_append_ms = append_ms
        self.active_batches += 1
        self.active_bytes += size
        self.uncheckpointed_batches += 1
        max_timestamp = header.max_timestamp
        if self.indexer.note(max_timestamp, size):
            key = KEY.pack(self.number, max_timestamp)
            rows.append(IndexRow("timestamps", key, OFFSET.pack(base_offset)))
        epochs = self.epochs
        if 0 <= leader_epoch < epochs.latest:
            # This replica was elected since, and appended nothing in that epoch. The batch is of an
            # earlier leader's (Kafka's truncateFromEnd drops such epochs, too).
            epochs.drop_if_empty(base_offset)
        if leader_epoch > self.epoch_recorded:
            epochs.assign(leader_epoch, base_offset)
            self.epoch_recorded = leader_epoch
            start = OFFSET.pack(epochs.entries[-1][1])
            rows.append(IndexRow("epochs", EPOCH_KEY.pack(self.number, leader_epoch), start))
        if header.producer_id >= 0:
            self._update_producer(header, base_offset, marker, rows)
        return rows

    def _update_producer(
        self,
        header: BatchHeader,
        base_offset: int,
        marker: EndTransactionMarker | None,
        rows: list[IndexRow],
    ) -> None:
        producer_id = header.producer_id
        entry = self.producers.get(producer_id)
        self.producer_undo.append((producer_id, entry))
        self.dirty_producers.add(producer_id)
        if marker is not None:
            self.producers[producer_id] = entry_after_marker(entry, header, marker)
            # Copied, so that `roll_back` finds the old one unchanged.
            self.undecided = self.undecided.copy()
            is_commit = marker.type is ControlType.COMMIT
            aborted = self.undecided.complete(producer_id, base_offset, is_commit=is_commit)
            if aborted is not None:
                key = KEY.pack(self.number, base_offset)
                rows.append(IndexRow("aborted", key, aborted.encode()))
        elif not header.is_control:
            self.producers[producer_id] = entry_after_batch(entry, header, base_offset)
            if header.is_transactional and producer_id not in self.undecided.ongoing:
                self.undecided = self.undecided.copy()
                self.undecided.open(producer_id, base_offset)

    def savepoint(self) -> Savepoint:
        """The state that a turn may change, for `roll_back`. Changes of producers are recorded in
        `producer_undo`, which is cleared here."""
        self.producer_undo = []
        indexer = self.indexer
        return (
            _turn_state(self),
            indexer.max_timestamp,
            indexer.unindexed_bytes,
            self.epochs.entries,
        )

    def roll_back(self, savepoint: Savepoint) -> None:
        indexer = self.indexer
        state, indexer.max_timestamp, indexer.unindexed_bytes, self.epochs.entries = savepoint
        for name, value in zip(_TURN_STATE, state, strict=True):
            setattr(self, name, value)
        for producer_id, entry in reversed(self.producer_undo):
            if entry is None:
                del self.producers[producer_id]
            else:
                self.producers[producer_id] = entry
        self.producer_undo = []

    def take_checkpoint(self) -> list[tuple[int, bytes]]:
        """The rows of the producers that changed since the last checkpoint. They count as written
        from now on. The sets are replaced, not changed, because `roll_back` may restore them."""
        rows = [
            (producer_id, entry.encode())
            for producer_id in self.dirty_producers
            if (entry := self.producers.get(producer_id)) is not None
        ]
        self.unsealed_producers = self.unsealed_producers | self.dirty_producers
        self.dirty_producers = set()
        self.uncheckpointed_batches = 0
        return rows

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have been idle for `expiration_ms`."""
        gone = [
            producer_id
            for producer_id, entry in self.producers.items()
            if is_expired(entry, now_ms=now_ms, expiration_ms=expiration_ms)
        ]
        for producer_id in gone:
            del self.producers[producer_id]
            self.dirty_producers.discard(producer_id)
            self.unsealed_producers.add(producer_id)

    def resume_transactions(self) -> None:
        """Rebuild the open transactions from the producers' entries, when the store is opened."""
        undecided = UndecidedTransactions()
        ongoing = [
            (entry.transaction_first_offset, producer_id)
            for producer_id, entry in self.producers.items()
            if entry.transaction_first_offset != NO_OFFSET
        ]
        for first_offset, producer_id in sorted(ongoing):
            undecided.open(producer_id, first_offset)
        self.undecided = undecided
