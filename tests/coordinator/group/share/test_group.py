"""A share group's tables: what records make of it, and what may be dropped."""

from odradek.coordinator.group.consumer.records import GroupEpoch, TargetEpoch
from odradek.coordinator.group.share.group import NEW_MEMBER, NO_STATES, ShareGroup, ShareGroupState
from odradek.coordinator.group.share.records import (
    NamedPartitions,
    PartitionStates,
    PartitionStatesStored,
    ShareAssignment,
    ShareCurrentStored,
    ShareEpochStored,
    ShareGroupRecord,
    ShareMember,
    ShareMemberStored,
    ShareTargetEpochStored,
    ShareTargetStored,
)
from odradek.coordinator.timeline import Timeline

T = bytes(range(16))
TARGET = {T: frozenset({1})}
STATES = PartitionStates({}, {T: NamedPartitions("a", frozenset({1}))})
ALL: list[ShareGroupRecord] = [
    ShareEpochStored("g", GroupEpoch(3, 9)),
    ShareMemberStored("g", "m", ShareMember(topic_names=("a", "b"))),
    ShareMemberStored("g", "n", ShareMember(topic_names=("b",))),
    ShareTargetStored("g", "m", TARGET),
    ShareTargetEpochStored("g", TargetEpoch(2, 77)),
    ShareCurrentStored("g", "m", ShareAssignment(2, 1, TARGET)),
    PartitionStatesStored("g", STATES),
]


def test_nothing_is_known_of_a_group_before_its_first_record() -> None:
    group = ShareGroup("g", Timeline())
    assert not group.exists
    assert group.is_blank
    assert (group.epoch, group.target_epoch, group.metadata_hash) == (0, 0, 0)
    assert (group.assigned_at_ms, group.states) == (None, NO_STATES)
    assert group.state is ShareGroupState.EMPTY
    assert group.current("m") is NEW_MEMBER
    assert not group.has_target("m")


def test_records_make_the_group() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    assert group.exists
    assert (group.epoch, group.metadata_hash) == (3, 9)
    assert (group.target_epoch, group.assigned_at_ms) == (2, 77)
    assert (group.member_count, group.state) == (2, ShareGroupState.STABLE)
    assert group.topic_names() == {"a", "b"}
    assert (group.target("m"), group.target("n")) == (TARGET, {})
    assert group.current("m") == ShareAssignment(2, 1, TARGET)
    assert group.states == STATES


def test_a_topic_is_read_as_long_as_a_member_subscribes_to_it() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    group.replay(ShareMemberStored("g", "m", ShareMember(topic_names=("c",))))
    assert group.topic_names() == {"b", "c"}
    group.replay(ShareMemberStored("g", "n", None))
    assert group.topic_names() == {"c"}


def test_tombstones_leave_nothing() -> None:
    group = ShareGroup("g", Timeline())
    for record in ALL:
        group.replay(record)
    for member_id in ("m", "n"):
        group.replay(ShareMemberStored("g", member_id, None))
        group.replay(ShareTargetStored("g", member_id, None))
        group.replay(ShareCurrentStored("g", member_id, None))
    group.replay(ShareTargetEpochStored("g", None))
    group.replay(PartitionStatesStored("g", None))
    group.replay(ShareEpochStored("g", None))
    assert group.is_blank
