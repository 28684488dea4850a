"""A share group's tables: replay, and when the object may be dropped."""

from odradek.coordinator.group.modern.group import ModernGroupState
from odradek.coordinator.group.modern.records import GroupEpoch, ModernRecord, TargetEpoch
from odradek.coordinator.group.share.group import NO_STATES, ShareGroup
from odradek.coordinator.group.share.records import (
    NamedPartitions,
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareGroupMember,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
)
from odradek.coordinator.timeline import Timeline

T = bytes(range(16))
TARGET = {T: frozenset({1})}
STATES = StatePartitions({}, {T: NamedPartitions("a", frozenset({1}))})
ALL: list[ModernRecord] = [
    ShareEpochRecord("g", GroupEpoch(3, 9)),
    ShareMemberRecord("g", "m", ShareGroupMember(topic_names=("a", "b"))),
    ShareMemberRecord("g", "n", ShareGroupMember(topic_names=("b",))),
    ShareTargetRecord("g", "m", TARGET),
    ShareTargetEpochRecord("g", TargetEpoch(2, 77)),
    ShareCurrentRecord("g", "m", ShareCurrentAssignment(2, 1, assigned=TARGET)),
    ShareStatePartitionsRecord("g", STATES),
]


def test_nothing_is_known_of_a_group_before_its_first_record() -> None:
    group = ShareGroup("g", Timeline())
    assert not group.exists
    assert group.is_droppable
    assert (group.epoch, group.target_epoch, group.metadata_hash) == (1, 1, 0)
    assert (group.assigned_at_ms, group.states) == (None, NO_STATES)
    assert group.state is ModernGroupState.EMPTY
    assert group.current("m") is ShareGroup.new_current
    assert not group.has_target("m")


def test_replay_of_records_creates_the_group() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    assert group.exists
    assert (group.epoch, group.metadata_hash) == (3, 9)
    assert (group.target_epoch, group.assigned_at_ms) == (2, 77)
    assert (group.member_count, group.state) == (2, ModernGroupState.STABLE)
    assert group.topic_names() == {"a", "b"}
    assert (group.target("m"), group.target("n")) == (TARGET, {})
    assert group.current("m") == ShareCurrentAssignment(2, 1, assigned=TARGET)
    assert group.states == STATES


def test_topic_names_has_the_topics_of_all_members() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    group.replay(ShareMemberRecord("g", "m", ShareGroupMember(topic_names=("c",))))
    assert group.topic_names() == {"b", "c"}
    group.replay(ShareMemberRecord("g", "n", None))
    assert group.topic_names() == {"c"}


def test_tombstones_leave_nothing() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    for member_id in ("m", "n"):
        group.replay(ShareMemberRecord("g", member_id, None))
        group.replay(ShareTargetRecord("g", member_id, None))
        group.replay(ShareCurrentRecord("g", member_id, None))
    group.replay(ShareTargetEpochRecord("g", None))
    group.replay(ShareStatePartitionsRecord("g", None))
    group.replay(ShareEpochRecord("g", None))
    assert group.is_droppable
