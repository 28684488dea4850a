"""Tables with an undo log back to the last committed position (Kafka's TimelineHashMap).

A shard replays its records when it writes them, before they are committed. Every change logs the
value that it replaced, at the position of its record. A commit drops the entries up to its
position; a failed append undoes all of them. `committed` reads the oldest entry of a key: the value
before the first uncommitted change.

Invariant: undoing all entries, newest first, yields the committed state. Commit and revert cost in
proportion to the uncommitted changes, not to the size of a table. Values must be immutable.
Positions count records; they are no log offsets. Called by shards and by `runtime`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Absent:
    """The replaced value of a key that was absent."""


_ABSENT: Final = _Absent()


class Timeline:
    """The positions shared by all tables of one shard.

    `position` is that of the record that is replayed, `committed` the newest one that can no longer
    be reverted. While both are equal (as at loading) changes are final and not logged.
    """

    __slots__ = ("_undo_log", "committed", "position")

    def __init__(self) -> None:
        self.position = 0
        self.committed = 0
        self._undo_log: deque[tuple[int, TimelineTable[Any, Any], Any]] = deque()

    def advance(self) -> int:
        """Step to the position of the next record, before it is replayed."""
        self.position += 1
        return self.position

    def commit(self, position: int) -> None:
        """Everything up to and including `position` is final."""
        if not self.committed <= position <= self.position:
            raise ValueError(f"commit of {position} outside [{self.committed}, {self.position}]")
        self.committed = position
        notes = self._undo_log
        while notes and notes[0][0] <= position:
            _, table, key = notes.popleft()
            table._forget_oldest(key)

    def revert(self) -> None:
        """Undo every change after the committed position."""
        notes = self._undo_log
        while notes:
            _, table, key = notes.pop()
            table._undo_newest(key)
        self.position = self.committed

    def _log_undo(self, table: "TimelineTable[Any, Any]", key: object) -> None:
        self._undo_log.append((self.position, table, key))


class TimelineTable(Generic[K, V]):
    """A mapping whose changes since the committed position can be undone."""

    __slots__ = ("_live", "_previous", "_timeline", "get")

    get: Callable[[K], V | None]
    """The newest value of a key, committed or not."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._live: dict[K, V] = {}
        # The dictionary's own method, because a heartbeat calls it a dozen times.
        self.get = self._live.get
        # Per key with uncommitted changes: what each of them replaced, oldest first.
        self._previous: dict[K, deque[V | _Absent]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their newest values, oldest key first."""
        return iter(self._live.items())

    def committed(self, key: K) -> V | None:
        """The value at the committed position."""
        previous = self._previous.get(key)
        if previous is None:
            return self._live.get(key)
        value = previous[0]
        return None if isinstance(value, _Absent) else value

    def is_settled(self, key: K) -> bool:
        """Whether the key has no uncommitted changes."""
        return key not in self._previous

    def committed_items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values at the committed position, in no particular order."""
        for key, value in self._live.items():
            if key not in self._previous:
                yield key, value
        for key, previous in self._previous.items():
            before = previous[0]
            if not isinstance(before, _Absent):
                yield key, before

    @property
    def is_droppable(self) -> bool:
        """Whether the table is empty, newest and committed state: it may be dropped."""
        return not self._live and not self._previous

    def put(self, key: K, value: V) -> None:
        """Set the value at the timeline's position."""
        self._remember(key)
        self._live[key] = value

    def remove(self, key: K) -> None:
        """Drop the key at the timeline's position; absent keys may be removed."""
        if key in self._live:
            self._remember(key)
            del self._live[key]

    def assign(self, key: K, value: V | None) -> None:
        """Set the value, or drop the key if there is none."""
        if value is None:
            self.remove(key)
        else:
            self.put(key, value)

    def _remember(self, key: K) -> None:
        timeline = self._timeline
        if timeline.position > timeline.committed:
            previous = self._previous.get(key)
            if previous is None:
                previous = self._previous[key] = deque()
            previous.append(self._live.get(key, _ABSENT))
            timeline._log_undo(self, key)

    def _forget_oldest(self, key: K) -> None:
        previous = self._previous[key]
        previous.popleft()
        if not previous:
            del self._previous[key]

    def _undo_newest(self, key: K) -> None:
        previous = self._previous[key]
        value = previous.pop()
        if not previous:
            del self._previous[key]
        if isinstance(value, _Absent):
            self._live.pop(key, None)
        else:
            self._live[key] = value


def count(table: TimelineTable[K, int], key: K, step: int) -> None:
    """Add `step` to the count of the key; a count of 0 is removed."""
    counted = (table.get(key) or 0) + step
    table.assign(key, counted or None)
