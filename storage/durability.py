"""Durability: when committed turns are synced to disk.

After each turn the flusher decides whether the turn must be synced before its answers, or by when.
This depends on the segment and on the partitions' flush.messages and flush.ms. Deferred syncs run
in the syncer's thread. Owned and called by one store.

Unsynced turns must not damage synced data. LMDB writes turn t only to pages that were freed in turn
t - 2 or before, and to the meta page that does not refer to turn t - 1. So if every turn is synced
before the next one begins (durability `commit`), the last synced tree is always on disk. If turns
are synced from time to time, turn t may overwrite pages of a synced turn t - 2. Such a segment has
a journal (journal.py). A segment without a journal is synced with every turn.

The durability may change while the store is open. With `commit` every turn is synced from then on,
journal or not. With `interval` that ends when the next segment, which has a journal, is active: the
store begins one at once, because a journal must have all small batches of its segment.
"""

from collections.abc import Iterable
from typing import Final

from odradek.protocol.types import NEVER
from odradek.storage.append import Turn
from odradek.storage.environment import StorageError
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment import Segment
from odradek.storage.settings import Durability, StoreOptions
from odradek.storage.syncer import Syncer

WRITEBACK_BYTES: Final = 16 << 20
"""Appended bytes after which the operating system is told to write them."""


class Flusher:
    """Syncs one segment at a time. If a sync has failed, the state of the unsynced pages is
    unknown: `failure` is set, and stays until the store is opened again."""

    def __init__(self, options: StoreOptions) -> None:
        self._interval_ms = options.sync_interval_ms
        self.syncs_each_turn = options.durability is Durability.COMMIT
        self._syncer = Syncer()
        self._presynced_segment_id = -1
        self._counted: set[PartitionLog] = set()
        """Partitions with flush.messages that were appended to since the last sync."""
        self.deadline_ms = NEVER
        """When `sync_if_due` has work to do next."""
        self._unwritten_bytes = 0
        """Appended since the last writeback or sync began."""
        self.failure: str | None = None

    def after_turn(self, turn: Turn, grown: Iterable[PartitionLog], segment: Segment) -> bool:
        """A turn was committed that appended to `grown`. True if it has been synced. Else it is
        synced by the deadline. Raises StorageError."""
        journal = segment.journal
        must_sync = journal is None or self.syncs_each_turn
        if journal is not None and turn.small_values:
            try:
                journal.add(turn.small_values, turn.small_bytes)
            except StorageError as error:
                self.failure = str(error)
                raise
        flush_ms = self._interval_ms
        for log in grown:
            settings = log.settings
            if settings.flush_messages != NEVER:
                self._counted.add(log)
                must_sync |= log.log_end_offset - log.flushed_offset >= settings.flush_messages
            if settings.flush_ms < flush_ms:
                flush_ms = settings.flush_ms
        if must_sync:
            self.sync(segment)
            return True
        self._unwritten_bytes += turn.appended_bytes
        if self._unwritten_bytes >= WRITEBACK_BYTES and self._syncer.start_writeback(
            segment.environment.path
        ):
            self._unwritten_bytes = 0
        if turn.now_ms + flush_ms < self.deadline_ms:
            self.deadline_ms = turn.now_ms + flush_ms
        return False

    def sync_if_due(self, now_ms: int, segment: Segment) -> None:
        """Finish a sync that has ended, and start one that is due. Raises StorageError."""
        self._poll()
        if now_ms >= self.deadline_ms and not self._syncer.is_busy:
            self._request(segment)

    def is_presynced(self, segment: Segment) -> bool:
        """Whether the thread has synced this segment since the first call, so that another sync is
        short. Raises StorageError."""
        self._poll()
        if segment.journal is None:
            return True
        if self._syncer.is_busy:
            return False
        if self._presynced_segment_id != segment.segment_id:
            self._presynced_segment_id = segment.segment_id
            self._request(segment)
            return False
        return True

    def sync(self, segment: Segment) -> None:
        """Sync and wait. Raises StorageError."""
        self._write_journal(segment)
        try:
            segment.sync()
        except StorageError as error:
            self.failure = str(error)
            raise
        self.deadline_ms = NEVER
        self._unwritten_bytes = 0
        for log in self._counted:
            log.flushed_offset = log.log_end_offset
        self._counted.clear()

    def forget(self, log: PartitionLog) -> None:
        """The partition was deleted."""
        self._counted.discard(log)

    def close(self) -> None:
        """Wait for the current sync and stop the thread."""
        self._syncer.close()

    def _write_journal(self, segment: Segment) -> None:
        if segment.journal is not None:
            try:
                segment.journal.write()
            except StorageError as error:
                self.failure = str(error)
                raise

    def _request(self, segment: Segment) -> None:
        self._write_journal(segment)
        self.deadline_ms = NEVER
        self._unwritten_bytes = 0
        self._syncer.request(segment)

    def _poll(self) -> None:
        try:
            self._syncer.poll()
        except StorageError as error:
            self.failure = str(error)
            raise
