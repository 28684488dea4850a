"""Replays a log into a shard.

In a compacted log only the newest record of each key counts. So older records are skipped where a
slice of the log still has them: a shard with hours of commits of the same offsets loads in a third
of the time (docs/adr/0011-loading-a-shard.md).

Invariant: after `finish` the replayed records are a log that compaction could have produced. Called
by coordinator.runtime, once per load of a shard.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline

BUFFERED_RECORDS_MAX: Final = 2_048
"""The most records that are buffered: replaying them takes about 10 ms."""


class TransactionalEntry(NamedTuple):
    """A record of a transactional batch in the log."""

    producer_id: int
    producer_epoch: int
    key: bytes | None
    value: bytes | None


LogEntry: TypeAlias = tuple[bytes | None, bytes | None] | TransactionalEntry | TransactionMarker
"""An entry of a log: (key, value), the same inside a transaction, or the end of one."""


class LoadableShard(Protocol):
    """The part of a shard that loading needs (coordinator.runtime.Shard)."""

    timeline: Timeline

    @property
    def is_log_compacted(self) -> bool:
        """Whether only the newest record of each key counts."""

    def decode(self, key: bytes, value: bytes | None) -> Any:  # noqa: ANN401 - the shard's records
        """A record; None for types of other owners."""

    def replay(self, record: Any) -> None:  # noqa: ANN401 - the shard's records
        """Make the change that a record describes."""


class CoordinatorLoader:
    """See the module's docstring. All methods raise ProtocolError where a record is malformed."""

    def __init__(self, shard: LoadableShard) -> None:
        self._shard = shard
        self._newest: dict[bytes | None, bytes | None] = {}

    def replay(self, entries: Iterable[LogEntry], *, is_committed: bool) -> None:
        """A slice of the log, in offset order.

        Without `is_committed` it lies beyond the high watermark, and so does all that follows. It
        may be reverted, so each record gets its own position.
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
        """Replay the buffered records."""
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
        """The shard's record of an entry; None if it is not for it."""
        if type(entry) is TransactionMarker:
            return entry
        key, value = entry[-2:]  # type: ignore[index]  # markers were told apart
        record = self._shard.decode(key, value) if key is not None else None
        if record is not None and type(entry) is TransactionalEntry:
            return TransactionalRecord(entry.producer_id, entry.producer_epoch, record)
        return record
