"""The classic groups of a shard: how they come, go, and are forgotten."""

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.classic.groups import ClassicGroups, unknown_group_error
from odradek.coordinator.group.classic.records import GroupMetadata, GroupMetadataRecord
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ErrorCode


def test_an_object_is_made_of_what_the_log_holds_and_only_once() -> None:
    groups = ClassicGroups(Timeline())
    assert groups.group("g") is None
    groups.replay(
        GroupMetadataRecord("g", GroupMetadata(protocol_type="consumer", generation_id=7))
    )
    made = groups.group("g")
    assert made is not None
    assert made.generation_id == 7
    assert groups.group("g") is made


def test_a_group_that_has_no_generation_leaves_no_record_when_it_is_buried() -> None:
    groups = ClassicGroups(Timeline())
    groups.adopt(ClassicGroup("g"))
    step = GroupStep(0, GroupSettings())
    groups.delete("g", step)
    assert step.records == []
    assert "g" not in groups


def test_a_burial_that_was_not_written_is_taken_back() -> None:
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
