"""Replays a log into a shard: as much of it as counts.

Of a compacted log only the newest record of each key counts, and any of the others may be gone
already. So they are left out where a slice of the log still has them: a shard whose members have
committed the same offsets for hours is loaded in a third of the time that replaying each of those
commits would take (docs/adr/0011-loading-a-shard.md).

Invariant: what has been replayed after `finish` is a log that compaction could have made of the
entries. Called by coordinator.runtime, once per life of a shard.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline

BUFFERED_RECORDS_MAX: Final = 2_048
"""As many records are kept back at most: replaying them takes about 10 ms, and nothing else is done
meanwhile."""


class TransactionalEntry(NamedTuple):
    """A record of a transactional batch as the log has it."""

    producer_id: int
    producer_epoch: int
    key: bytes | None
    value: bytes | None


LogEntry: TypeAlias = tuple[bytes | None, bytes | None] | TransactionalEntry | TransactionMarker
"""What a log is read as: (key, value), the same inside a transaction, or the end of one."""


class LoadableShard(Protocol):
    """What is needed of a shard (coordinator.runtime.Shard)."""

    timeline: Timeline

    @property
    def is_log_compacted(self) -> bool:
        """Whether only the newest record of each key counts."""

    def decode(self, key: bytes, value: bytes | None) -> Any:  # noqa: ANN401 - the shard's records
        """A record, or None if it is somebody else's."""

    def replay(self, record: Any) -> None:  # noqa: ANN401 - the shard's records
        """Make the change that a record describes."""


class CoordinatorLoader:
    """See the module's docstring. All methods raise ProtocolError where a record is malformed."""

    def __init__(self, shard: LoadableShard) -> None:
        self._shard = shard
        self._newest: dict[bytes | None, bytes | None] = {}

    def replay(self, entries: Iterable[LogEntry], *, is_committed: bool) -> None:
        """A slice of the log, in offset order.

        What is not `is_committed` lies beyond the high watermark, and so does all that follows it.
        It may have to be taken back, so that each record gets a position of its own.
        """
        if not is_committed:
            self.finish()
            for entry in entries:
                self._replay(entry, is_committed=False)
        elif self._shard.is_log_compacted:
            self._keep_newest(entries)
        else:
            for entry in entries:
                self._replay(entry)

    def finish(self) -> None:
        """Replay what was kept back."""
        newest, self._newest = self._newest, {}
        for entry in newest.items():
            self._replay(entry)

    def _keep_newest(self, entries: Iterable[LogEntry]) -> None:
        newest = self._newest
        for entry in entries:
            if type(entry) is not tuple:
                # Records of a transaction count from its marker on: around them all is in order.
                self.finish()
                newest = self._newest
                self._replay(entry)
                continue
            key, value = entry  # type: ignore[misc]  # mypy does not tell a tuple from its subclass
            if key in newest:
                # The place that it takes is the newest one's, as in a compacted log.
                del newest[key]
            elif len(newest) == BUFFERED_RECORDS_MAX:
                self.finish()
                newest = self._newest
            newest[key] = value

    def _replay(self, entry: LogEntry, *, is_committed: bool = True) -> None:
        record = self._record_of(entry)
        if record is not None:
            if not is_committed:
                self._shard.timeline.advance()
            self._shard.replay(record)

    def _record_of(self, entry: LogEntry) -> object:
        """What an entry of the log says to the shard; None if it is not for it."""
        if type(entry) is TransactionMarker:
            return entry
        key, value = entry[-2:]  # type: ignore[index]  # markers were told apart
        record = self._shard.decode(key, value) if key is not None else None
        if record is not None and type(entry) is TransactionalEntry:
            return TransactionalRecord(entry.producer_id, entry.producer_epoch, record)
        return record
