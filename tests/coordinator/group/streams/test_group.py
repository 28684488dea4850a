"""The derived state of a streams group, in any order of its records."""

from itertools import permutations

from odradek.coordinator.group.modern.group import ModernGroupState
from odradek.coordinator.group.modern.records import MemberState, ModernRecord, TargetEpoch
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import (
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsMemberRecord,
    StreamsTargetEpochRecord,
    StreamsTopologyRecord,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.coordinator.timeline import Timeline

FIRST_EPOCH = StreamsGroup.first_epoch.epoch
CURRENT = StreamsCurrentAssignment(
    3, 2, MemberState.STABLE, TasksTupleWithEpochs({"0": {1: 3}}, {"1": frozenset({2})})
)


def member(process: str, instance: str | None = None) -> StreamsGroupMember:
    return StreamsGroupMember(process_id=process, instance_id=instance)


def test_tasks_of_a_process_are_counted_in_any_order_of_records() -> None:
    records: list[ModernRecord] = [
        StreamsMemberRecord("g", "m", member("p")),
        StreamsCurrentRecord("g", "m", CURRENT),
        StreamsMemberRecord("g", "n", member("p")),
    ]
    for order in permutations(records):
        group = StreamsGroup("g", Timeline())
        for record in order:
            group.replay(record)
        assert group.runner("0", 1) == "m"
        assert group.runner("1", 2) is None
        assert (group.held_count("0", 1, "p"), group.held_count("1", 2, "p")) == (1, 1)
        group.replay(StreamsMemberRecord("g", "m", member("q")))
        assert (group.held_count("0", 1, "p"), group.held_count("0", 1, "q")) == (0, 1)
        group.replay(StreamsCurrentRecord("g", "m", None))
        assert group.held_count("0", 1, "q") == 0
        assert group.runner("0", 1) is None


def test_the_newest_assignment_determines_the_runner_of_a_task() -> None:
    group = StreamsGroup("g", Timeline())
    group.replay(StreamsCurrentRecord("g", "new", CURRENT))
    group.replay(StreamsCurrentRecord("g", "old", None))
    assert group.runner("0", 1) == "new"


def test_the_state_follows_topology_epochs_and_members() -> None:
    group = StreamsGroup("g", Timeline())
    assert (group.epoch, group.target_epoch, group.exists) == (
        FIRST_EPOCH,
        FIRST_EPOCH,
        False,
    )
    states = [group.state]
    records: list[ModernRecord] = [
        StreamsTopologyRecord("g", Topology(0, ())),
        StreamsMemberRecord("g", "m", member("p")),
        StreamsEpochRecord("g", StreamsGroupEpoch(3, 1, 0)),
        StreamsTargetEpochRecord("g", TargetEpoch(3)),
        StreamsCurrentRecord("g", "m", CURRENT),
    ]
    for record in records:
        group.replay(record)
        states.append(group.state)
    assert states == [
        ModernGroupState.EMPTY,
        ModernGroupState.EMPTY,
        ModernGroupState.NOT_READY,
        ModernGroupState.ASSIGNING,
        ModernGroupState.RECONCILING,
        ModernGroupState.STABLE,
    ]


def test_an_instance_id_belongs_to_the_last_member_with_it() -> None:
    group = StreamsGroup("g", Timeline())
    group.replay(StreamsMemberRecord("g", "old", member("p", "i")))
    group.replay(StreamsMemberRecord("g", "new", member("p", "i")))
    group.replay(StreamsMemberRecord("g", "old", None))
    assert group.static_member_id("i") == "new"
    group.replay(StreamsMemberRecord("g", "new", None))
    assert group.static_member_id("i") is None


def test_a_reverted_group_is_empty() -> None:
    timeline = Timeline()
    group = StreamsGroup("g", timeline)
    timeline.advance()
    group.replay(StreamsMemberRecord("g", "m", member("p")))
    assert not group.is_droppable
    timeline.revert()
    assert group.is_droppable
