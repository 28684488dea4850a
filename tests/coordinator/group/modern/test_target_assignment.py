"""TargetAssignmentBuilder, tested with that of share groups."""

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.modern.records import GroupEpoch, TargetEpoch
from odradek.coordinator.group.modern.target_assignment import assignment_due_ms
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareGroupMember,
    ShareMemberRecord,
    ShareTargetEpochRecord,
)
from odradek.coordinator.group.share.target_assignment import ShareTargetAssignmentBuilder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.timeline import Timeline

SETTINGS = GroupSettings(share=ShareGroupSettings(assignment_interval_ms=100))


def group(assigned_at_ms: int | None = None) -> ShareGroup:
    made = ShareGroup("g", Timeline())
    made.replay(ShareMemberRecord("g", "m", ShareGroupMember()))
    if assigned_at_ms is not None:
        made.replay(ShareTargetEpochRecord("g", TargetEpoch(1, assigned_at_ms)))
    return made


def test_the_first_assignment_is_due_at_once_and_others_after_the_interval() -> None:
    step = GroupStep(1_000, SETTINGS)
    assert assignment_due_ms(group(), step) == 0
    assert assignment_due_ms(group(950), step) == 1_050


def test_a_clock_that_was_set_back_does_not_delay_an_assignment() -> None:
    assert assignment_due_ms(group(5_000), GroupStep(1_000, SETTINGS)) == 0


def test_nothing_is_assigned_before_the_time_that_a_builder_waits_for() -> None:
    builder = ShareTargetAssignmentBuilder(group())
    builder.not_before_ms = 1_500
    step = GroupStep(1_000, SETTINGS)
    assert builder.assign_if_due(GroupEpoch(2), step) is None
    assert [timer.deadline_ms for timer in step.timers] == [1_500]
    assert builder.assign_if_due(GroupEpoch(2), GroupStep(1_500, SETTINGS)) == {"m": {}}


def test_a_member_that_replaces_another_gets_its_target() -> None:
    builder = ShareTargetAssignmentBuilder(group())
    builder.put("n", ShareGroupMember(), "m")
    assert list(builder.members()) == ["n"]
    builder.remove("n")
    assert builder.members() == {}
