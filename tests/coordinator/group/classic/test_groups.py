"""The classic groups of a shard: loaded, created and deleted."""

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.classic.groups import ClassicGroups, unknown_group_error
from odradek.coordinator.group.classic.records import GroupMetadata, GroupMetadataRecord
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ErrorCode


def test_a_group_is_created_once_from_its_stored_generation() -> None:
    groups = ClassicGroups(Timeline())
    assert groups.group("g") is None
    groups.replay(
        GroupMetadataRecord("g", GroupMetadata(protocol_type="consumer", generation_id=7))
    )
    made = groups.group("g")
    assert made is not None
    assert made.generation_id == 7
    assert groups.group("g") is made


def test_the_deletion_of_a_group_without_a_generation_writes_no_record() -> None:
    groups = ClassicGroups(Timeline())
    groups.adopt(ClassicGroup("g"))
    step = GroupStep(0, GroupSettings())
    groups.delete("g", step)
    assert step.records == []
    assert "g" not in groups


def test_a_failed_append_restores_a_deleted_group() -> None:
    timeline = Timeline()
    groups = ClassicGroups(timeline)
    stored = GroupMetadataRecord("g", GroupMetadata(generation_id=3))
    timeline.advance()
    groups.replay(stored)
    timeline.commit(timeline.position)
    group = groups.group("g")
    step = GroupStep(0, GroupSettings())
    groups.delete("g", step)
    assert step.records == [GroupMetadataRecord("g", None)]
    groups.on_append_failed(step.records, ["g"], lambda _: False, GroupStep(0, GroupSettings()))
    assert groups.live_groups["g"] is group


def test_a_member_without_a_group_is_unknown_and_without_a_group_id_invalid() -> None:
    assert unknown_group_error("g") is ErrorCode.UNKNOWN_MEMBER_ID
    assert unknown_group_error("") is ErrorCode.INVALID_GROUP_ID
