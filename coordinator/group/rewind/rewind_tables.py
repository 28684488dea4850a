"""The state of groups' rewinds in the log: pending ones, undo points and snapshots.

Only `replay` changes anything. Bounded per group: UNDO_COUNT_MAX undo points, SNAPSHOT_COUNT_MAX
snapshots, each of at most MOVE_COUNT_MAX partitions. Called by `live_rewinder` and `shard`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar, get_args

from odradek.coordinator.group.rewind.records import (
    OffsetSnapshot,
    OffsetSnapshotRecord,
    Rewind,
    RewindRecord,
    RewindState,
    RewindStateRecord,
    UndoPoint,
    UndoPointRecord,
)
from odradek.coordinator.timeline import Timeline, TimelineTable

K = TypeVar("K")
V = TypeVar("V")

UNDO_COUNT_MAX: Final = 8
"""Rewinds of a group that can be undone, the newest first."""
KNOWN_ID_COUNT_MAX: Final = 8
"""Ids of earlier rewinds that are kept: of the complete ones, and of the cancelled ones."""
SNAPSHOT_COUNT_MAX: Final = 32
MOVE_COUNT_MAX: Final = 2_000
"""Partitions of one rewind or snapshot: one batch has their offsets, the undo point and the
rewind."""

_NOTHING: Final = RewindState()


class RewindTables:
    """See the module's docstring."""

    record_types = get_args(RewindRecord)

    def __init__(self, timeline: Timeline) -> None:
        self._states: TimelineTable[str, RewindState] = TimelineTable(timeline)
        # Few groups have a pending rewind, and every command looks here.
        self._pending: TimelineTable[str, Rewind] = TimelineTable(timeline)
        self._undo_points: TimelineTable[str, Mapping[int, UndoPoint]] = TimelineTable(timeline)
        self._snapshots: TimelineTable[str, Mapping[str, OffsetSnapshot]] = TimelineTable(timeline)

    def replay(self, record: RewindRecord) -> None:
        """Apply a record to the tables."""
        group_id = record.group_id
        match record:
            case RewindStateRecord():
                pending = None if record.state is None else record.state.pending
                self._states.assign(group_id, record.state)
                self._pending.assign(group_id, pending)
            case UndoPointRecord():
                _put(self._undo_points, group_id, record.number, record.point)
            case OffsetSnapshotRecord():
                _put(self._snapshots, group_id, record.name, record.snapshot)

    @property
    def has_pending(self) -> bool:
        """Whether any group has a pending rewind."""
        return len(self._pending) > 0

    def group_ids(self) -> set[str]:
        """Every group that has any of these."""
        tables = (self._states, self._undo_points, self._snapshots)
        return {group_id for table in tables for group_id, _ in table.items()}

    def pending(self, group_id: str) -> Rewind | None:
        """The pending rewind of the group."""
        return self._pending.get(group_id)

    def all_pending(self) -> Iterator[tuple[str, Rewind]]:
        """All pending rewinds, by group."""
        return self._pending.items()

    def state(self, group_id: str) -> RewindState:
        """The pending and the last rewind, and the fences."""
        return self._states.get(group_id) or _NOTHING

    def undo_points(self, group_id: str) -> Mapping[int, UndoPoint]:
        """The rewinds that can be undone, by their numbers; the largest number is the newest."""
        return self._undo_points.get(group_id) or MappingProxyType({})

    def snapshots(self, group_id: str) -> Mapping[str, OffsetSnapshot]:
        """The group's snapshots by name."""
        return self._snapshots.get(group_id) or MappingProxyType({})

    def tombstones(self, group_id: str) -> list[RewindRecord]:
        """The records that remove all of this for a group."""
        records: list[RewindRecord] = [
            UndoPointRecord(group_id, number, None) for number in self.undo_points(group_id)
        ]
        records += (OffsetSnapshotRecord(group_id, name, None) for name in self.snapshots(group_id))
        if group_id in self._states:
            records.append(RewindStateRecord(group_id, None))
        return records


def _put(table: TimelineTable[str, Mapping[K, V]], group_id: str, key: K, value: V | None) -> None:
    """Replace the mapping: tables have immutable values."""
    known = dict(table.get(group_id) or {})
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value
    table.assign(group_id, MappingProxyType(known) if known else None)
