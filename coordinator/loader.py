"""Replays a log into a shard.

In a compacted log only the newest record of each key counts. So older records are skipped where a
slice of the log still has them: a shard with hours of commits of the same offsets loads in a third
of the time (docs/adr/0011-loading-a-shard.md).

Invariant: after `finish` the replayed records are a log that compaction could have produced. Called
by coordinator.runtime, once per load of a shard.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline

R = TypeVar("R")

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


class LoadableShard(Protocol[R]):
    """The part of a shard that loading needs."""

    timeline: Timeline

    @property
    def is_log_compacted(self) -> bool:
        """Whether only the newest record of each key counts."""

    def decode(self, key: bytes, value: bytes | None) -> R | None:
        """The shard's own record; None for records of others. ProtocolError if malformed."""

    def replay(self, record: R) -> None:
        """Apply a record to the state, live and at loading."""


class CoordinatorLoader:
    """See the module's docstring. All methods raise ProtocolError where a record is malformed."""

    def __init__(self, shard: LoadableShard[Any]) -> None:
        self._shard = shard
        self._newest: dict[bytes | None, bytes | None] = {}

    def replay(self, entries: Iterable[LogEntry], *, is_committed: bool) -> None:
        """A slice of the log, in offset order.

        Without `is_committed` it is beyond the high watermark, and so is all that follows. It may
        be reverted, so each record gets its own position.
        """
        if is_committed and self._shard.is_log_compacted:
            self._keep_newest(entries)
            return
        self.finish()
        for entry in entries:
            self._replay(entry, is_committed=is_committed)

    def finish(self) -> None:
        """Replay the buffered records."""
        for entry in self._newest.items():
            self._replay(entry)
        self._newest.clear()

    def _keep_newest(self, entries: Iterable[LogEntry]) -> None:
        newest = self._newest
        for entry in entries:
            if type(entry) is not tuple:
                # Records of a transaction become valid with its marker: keep the order of the log.
                self.finish()
                self._replay(entry)
                continue
            key, value = entry  # type: ignore[misc]  # mypy does not tell a tuple from its subclass
            if key in newest:
                # A compacted log has the newest record of a key in its own place.
                del newest[key]
            elif len(newest) == BUFFERED_RECORDS_MAX:
                self.finish()
            newest[key] = value

    def _replay(self, entry: LogEntry, *, is_committed: bool = True) -> None:
        record: object = entry
        if type(entry) is not TransactionMarker:
            key, value = entry[-2:]  # type: ignore[index]  # it is not a marker
            record = None if key is None else self._shard.decode(key, value)
            if record is None:
                return
            if type(entry) is TransactionalEntry:
                record = TransactionalRecord(entry.producer_id, entry.producer_epoch, record)
        if not is_committed:
            self._shard.timeline.advance()
        self._shard.replay(record)
