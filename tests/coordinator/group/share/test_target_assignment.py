"""The epochs of a share group: what starts one, its states and its assignment."""

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    NamedPartitions,
    ShareEpochRecord,
    ShareGroupMember,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
)
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, InitializeStates
from odradek.coordinator.group.share.target_assignment import ShareTargetAssignmentBuilder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import TopicCatalog
from odradek.coordinator.outcome import Effect
from odradek.coordinator.timeline import Timeline
from tests.support.consumer_playbook import id_of, image_of

A = id_of("a")
NOW_MS = 50_000
SETTINGS = GroupSettings(share=ShareGroupSettings(assignment_interval_ms=100))


def step(topics: dict[str, int], now_ms: int = NOW_MS) -> GroupStep:
    return GroupStep(now_ms, SETTINGS, TopicCatalog(image_of(topics)))


def group(*members: str) -> ShareGroup:
    made = ShareGroup("g", Timeline())
    for member_id in members:
        made.replay(ShareMemberRecord("g", member_id, ShareGroupMember(topic_names=("a",))))
    return made


def test_an_epoch_initializes_missing_states() -> None:
    at = step({"a": 2})
    assert ShareTargetAssignmentBuilder(group("m")).start_epoch(at).epoch == 2
    epoch, states = at.records
    assert isinstance(epoch, ShareEpochRecord)
    assert epoch.value is not None
    assert (epoch.value.epoch, epoch.value.metadata_hash != 0) == (2, True)
    wanted = {A: NamedPartitions("a", frozenset({0, 1}))}
    assert states == ShareStatePartitionsRecord("g", StatePartitions(wanted))
    asked = {A: {0: UNKNOWN_OFFSET, 1: UNKNOWN_OFFSET}}
    assert at.effects == [Effect(InitializeStates("g", 2, asked))]


def test_only_existing_partitions_with_a_state_are_assigned() -> None:
    builder = ShareTargetAssignmentBuilder(group("m"))
    builder.states = StatePartitions({}, {A: NamedPartitions("a", frozenset({0, 5}))})
    at = step({"a": 2})
    assert builder.assign_now(GroupEpoch(1), at) == {"m": {A: frozenset({0})}}
    assert [type(record) for record in at.records] == [ShareTargetRecord, ShareTargetEpochRecord]


def test_a_target_waits_for_the_end_of_the_interval() -> None:
    made = group("m")
    first = step({"a": 1})
    ShareTargetAssignmentBuilder(made).assign_now(GroupEpoch(1), first)
    for record in first.records:
        made.replay(record)
    soon = step({"a": 1}, NOW_MS + 99)
    assert ShareTargetAssignmentBuilder(made).assign_if_due(GroupEpoch(2), soon) is None
    assert [(timer.key[0], timer.deadline_ms) for timer in soon.timers] == [
        ("share-assignment", NOW_MS + 100)
    ]
    later = step({"a": 1}, NOW_MS + 100)
    assert ShareTargetAssignmentBuilder(made).assign_if_due(GroupEpoch(2), later) == {"m": {}}
    assert ShareTargetAssignmentBuilder(made).assign_if_due(GroupEpoch(1), later) is None
