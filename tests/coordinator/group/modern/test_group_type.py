"""GroupType, tested with share groups, and the requirements of the shard on all types."""

from typing import Any

from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.share.groups import ShareGroups
from odradek.coordinator.group.share.records import ShareEpochRecord
from odradek.coordinator.timeline import Timeline


class GroupTable:
    """A table whose records are committed when the test says so."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.table = ShareGroups(self.timeline, lambda _: None, lambda _: ())

    def replay(self, group_id: str, epoch: int | None) -> None:
        self.timeline.advance()
        stored = None if epoch is None else GroupEpoch(epoch)
        self.table.replay(ShareEpochRecord(group_id, stored))

    def commit(self) -> None:
        self.timeline.commit(self.timeline.position)


def test_a_group_exists_from_its_first_record_to_its_tombstone() -> None:
    groups = GroupTable()
    assert groups.table.get("g") is None
    groups.replay("g", 1)
    assert "g" in groups.table
    assert list(groups.table.group_ids()) == ["g"]
    assert groups.table.is_empty("g")
    groups.replay("g", None)
    assert "g" not in groups.table
    assert list(groups.table) == []


def test_a_reverted_deletion_leaves_the_group_unchanged() -> None:
    groups = GroupTable()
    groups.replay("g", 1)
    groups.commit()
    before = groups.table.get("g")
    groups.replay("g", None)
    groups.timeline.revert()
    assert groups.table.get("g") is before
    assert before is not None


def test_the_object_of_a_group_is_dropped_after_the_commit_of_its_deletion() -> None:
    groups = GroupTable()
    groups.replay("g", 1)
    groups.replay("g", None)
    assert list(groups.table._groups) == ["g"]
    groups.commit()
    groups.replay("other", 1)
    assert list(groups.table._groups) == ["other"]


def group_types() -> tuple[GroupType[Any], ...]:
    return GroupShard(GroupSettings()).group_types


def test_no_two_types_claim_the_same_records_timers_or_requests() -> None:
    for claims in (
        [kind for group_type in group_types() for kind in group_type.record_types],
        [kind for group_type in group_types() for kind in group_type.timer_kinds],
        [kind for group_type in group_types() for kind in group_type.handlers],
        [group_type.name for group_type in group_types()],
    ):
        assert len(claims) == len(set(claims))


def test_no_type_has_the_timers_of_classic_groups() -> None:
    for group_type in group_types():
        assert group_type.timer_kinds.isdisjoint({"session", "join", "sync", "store", "expiry"})
