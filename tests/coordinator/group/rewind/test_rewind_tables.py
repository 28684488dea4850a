"""The tables of rewinds: replay and tombstones."""

from odradek.coordinator.group.rewind.records import (
    OffsetMove,
    OffsetSnapshot,
    OffsetSnapshotRecord,
    Rewind,
    RewindState,
    RewindStateRecord,
    UndoPoint,
    UndoPointRecord,
)
from odradek.coordinator.group.rewind.rewind_tables import RewindTables
from odradek.coordinator.timeline import Timeline

MOVES = (OffsetMove("a", bytes(16), 0, 1),)
REWIND = Rewind(b"i" * 16, 1, MOVES)


def test_a_pending_rewind_is_found_until_it_is_complete() -> None:
    rewinds = RewindTables(Timeline())
    assert rewinds.pending("g") is None
    rewinds.replay(RewindStateRecord("g", RewindState(pending=REWIND)))
    assert rewinds.pending("g") == REWIND
    assert dict(rewinds.all_pending()) == {"g": REWIND}
    rewinds.replay(RewindStateRecord("g", RewindState(last=REWIND)))
    assert rewinds.pending("g") is None
    assert rewinds.state("g").last == REWIND


def test_undo_points_and_snapshots_are_added_and_removed() -> None:
    rewinds = RewindTables(Timeline())
    point, snapshot = UndoPoint(1, MOVES), OffsetSnapshot(1, MOVES)
    rewinds.replay(UndoPointRecord("g", 1, point))
    rewinds.replay(UndoPointRecord("g", 2, point))
    rewinds.replay(OffsetSnapshotRecord("g", "s", snapshot))
    rewinds.replay(UndoPointRecord("g", 1, None))
    assert dict(rewinds.undo_points("g")) == {2: point}
    assert dict(rewinds.snapshots("g")) == {"s": snapshot}
    assert not rewinds.undo_points("h")


def test_a_failed_append_is_reverted() -> None:
    timeline = Timeline()
    rewinds = RewindTables(timeline)
    timeline.advance()
    rewinds.replay(RewindStateRecord("g", RewindState(pending=REWIND)))
    rewinds.replay(UndoPointRecord("g", 1, UndoPoint(1, MOVES)))
    timeline.revert()
    assert rewinds.pending("g") is None
    assert not rewinds.undo_points("g")


def test_tombstones_remove_everything() -> None:
    rewinds = RewindTables(Timeline())
    rewinds.replay(RewindStateRecord("g", RewindState(pending=REWIND)))
    rewinds.replay(UndoPointRecord("g", 1, UndoPoint(1, MOVES)))
    rewinds.replay(OffsetSnapshotRecord("g", "s", OffsetSnapshot(1, MOVES)))
    rewinds.replay(OffsetSnapshotRecord("h", "s", OffsetSnapshot(1, MOVES)))
    assert rewinds.group_ids() == {"g", "h"}
    for record in rewinds.tombstones("g"):
        rewinds.replay(record)
    assert rewinds.tombstones("g") == []
    assert rewinds.group_ids() == {"h"}
    assert rewinds.pending("g") is None
