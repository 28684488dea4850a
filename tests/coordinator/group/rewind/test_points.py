"""The tables of rewinds: what records make of them, and back."""

from odradek.coordinator.group.rewind.points import Rewinds
from odradek.coordinator.group.rewind.records import (
    Move,
    Rewind,
    RewindState,
    RewindStored,
    Snapshot,
    SnapshotStored,
    UndoPoint,
    UndoPointStored,
)
from odradek.coordinator.timeline import Timeline

MOVES = (Move("a", bytes(16), 0, 1),)
REWIND = Rewind(b"i" * 16, 1, MOVES)


def test_what_is_under_way_is_found_until_it_is_not() -> None:
    rewinds = Rewinds(Timeline())
    assert rewinds.pending("g") is None
    rewinds.replay(RewindStored("g", RewindState(pending=REWIND)))
    assert rewinds.pending("g") == REWIND
    assert dict(rewinds.all_pending()) == {"g": REWIND}
    rewinds.replay(RewindStored("g", RewindState(last=REWIND)))
    assert rewinds.pending("g") is None
    assert rewinds.state("g").last == REWIND


def test_undo_points_and_snapshots_come_and_go() -> None:
    rewinds = Rewinds(Timeline())
    point, snapshot = UndoPoint(1, MOVES), Snapshot(1, MOVES)
    rewinds.replay(UndoPointStored("g", 1, point))
    rewinds.replay(UndoPointStored("g", 2, point))
    rewinds.replay(SnapshotStored("g", "s", snapshot))
    rewinds.replay(UndoPointStored("g", 1, None))
    assert dict(rewinds.undo_points("g")) == {2: point}
    assert dict(rewinds.snapshots("g")) == {"s": snapshot}
    assert not rewinds.undo_points("h")


def test_a_lost_write_is_taken_back() -> None:
    timeline = Timeline()
    rewinds = Rewinds(timeline)
    timeline.advance()
    rewinds.replay(RewindStored("g", RewindState(pending=REWIND)))
    rewinds.replay(UndoPointStored("g", 1, UndoPoint(1, MOVES)))
    timeline.revert()
    assert rewinds.pending("g") is None
    assert not rewinds.undo_points("g")


def test_tombstones_leave_nothing() -> None:
    rewinds = Rewinds(Timeline())
    rewinds.replay(RewindStored("g", RewindState(pending=REWIND)))
    rewinds.replay(UndoPointStored("g", 1, UndoPoint(1, MOVES)))
    rewinds.replay(SnapshotStored("g", "s", Snapshot(1, MOVES)))
    rewinds.replay(SnapshotStored("h", "s", Snapshot(1, MOVES)))
    assert rewinds.group_ids() == {"g", "h"}
    for record in rewinds.tombstones("g"):
        rewinds.replay(record)
    assert rewinds.tombstones("g") == []
    assert rewinds.group_ids() == {"h"}
    assert rewinds.pending("g") is None
