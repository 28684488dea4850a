"""What every type keeps of its groups, tried with share groups."""

from odradek.coordinator.group.modern.groups import ModernGroups
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import ShareEpochRecord
from odradek.coordinator.timeline import Timeline


class Room:
    """A table whose records are committed when the test says so."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.table: ModernGroups[ShareGroup] = ModernGroups(self.timeline, ShareGroup)

    def replay(self, group_id: str, epoch: int | None) -> None:
        self.timeline.advance()
        stored = None if epoch is None else GroupEpoch(epoch)
        self.table.replay(ShareEpochRecord(group_id, stored))

    def commit(self) -> None:
        self.timeline.commit(self.timeline.position)


def test_a_group_is_there_from_its_first_record_to_its_last() -> None:
    room = Room()
    assert room.table.get("g") is None
    room.replay("g", 1)
    assert "g" in room.table
    assert list(room.table.group_ids()) == ["g"]
    assert room.table.is_empty("g")
    room.replay("g", None)
    assert "g" not in room.table
    assert list(room.table) == []


def test_an_end_that_is_taken_back_leaves_the_group_as_it_was() -> None:
    room = Room()
    room.replay("g", 1)
    room.commit()
    before = room.table.get("g")
    room.replay("g", None)
    room.timeline.revert()
    assert room.table.get("g") is before
    assert before is not None


def test_the_object_of_a_group_goes_once_its_end_is_committed() -> None:
    room = Room()
    room.replay("g", 1)
    room.replay("g", None)
    assert list(room.table._groups) == ["g"]
    room.commit()
    room.replay("other", 1)
    assert list(room.table._groups) == ["other"]
