"""What follows from the records of a streams group, in whatever order they are read."""

from itertools import permutations

from odradek.coordinator.group.consumer.records import TargetEpoch
from odradek.coordinator.group.streams.group import FIRST_EPOCH, StreamsGroup, StreamsGroupState
from odradek.coordinator.group.streams.records import (
    HeldTasks,
    StreamsCurrent,
    StreamsCurrentStored,
    StreamsEpoch,
    StreamsEpochStored,
    StreamsGroupRecord,
    StreamsMember,
    StreamsMemberState,
    StreamsMemberStored,
    StreamsTargetEpochStored,
    Topology,
    TopologyStored,
)
from odradek.coordinator.timeline import Timeline

CURRENT = StreamsCurrent(
    3, 2, StreamsMemberState.STABLE, HeldTasks({"0": {1: 3}}, {"1": frozenset({2})})
)


def member(process: str, instance: str | None = None) -> StreamsMember:
    return StreamsMember(process_id=process, instance_id=instance)


def test_holders_are_counted_whether_the_member_or_its_tasks_come_first() -> None:
    records: list[StreamsGroupRecord] = [
        StreamsMemberStored("g", "m", member("p")),
        StreamsCurrentStored("g", "m", CURRENT),
        StreamsMemberStored("g", "n", member("p")),
    ]
    for order in permutations(records):
        group = StreamsGroup("g", Timeline())
        for record in order:
            group.replay(record)
        assert group.runner("0", 1) == "m"
        assert group.runner("1", 2) is None
        assert (group.held_count("0", 1, "p"), group.held_count("1", 2, "p")) == (1, 1)
        group.replay(StreamsMemberStored("g", "m", member("q")))
        assert (group.held_count("0", 1, "p"), group.held_count("0", 1, "q")) == (0, 1)
        group.replay(StreamsCurrentStored("g", "m", None))
        assert group.held_count("0", 1, "q") == 0
        assert group.runner("0", 1) is None


def test_a_task_belongs_to_whoever_was_told_last() -> None:
    group = StreamsGroup("g", Timeline())
    group.replay(StreamsCurrentStored("g", "new", CURRENT))
    group.replay(StreamsCurrentStored("g", "old", None))
    assert group.runner("0", 1) == "new"


def test_the_state_follows_topology_epochs_and_members() -> None:
    group = StreamsGroup("g", Timeline())
    assert (group.epoch, group.target_epoch, group.exists) == (FIRST_EPOCH, FIRST_EPOCH, False)
    states = [group.state]
    records: list[StreamsGroupRecord] = [
        TopologyStored("g", Topology(0, ())),
        StreamsMemberStored("g", "m", member("p")),
        StreamsEpochStored("g", StreamsEpoch(3, 1, 0)),
        StreamsTargetEpochStored("g", TargetEpoch(3)),
        StreamsCurrentStored("g", "m", CURRENT),
    ]
    for record in records:
        group.replay(record)
        states.append(group.state)
    assert states == [
        StreamsGroupState.EMPTY,
        StreamsGroupState.EMPTY,
        StreamsGroupState.NOT_READY,
        StreamsGroupState.ASSIGNING,
        StreamsGroupState.RECONCILING,
        StreamsGroupState.STABLE,
    ]


def test_an_instance_id_is_of_whoever_took_it_last() -> None:
    group = StreamsGroup("g", Timeline())
    group.replay(StreamsMemberStored("g", "old", member("p", "i")))
    group.replay(StreamsMemberStored("g", "new", member("p", "i")))
    group.replay(StreamsMemberStored("g", "old", None))
    assert group.static_member_id("i") == "new"
    group.replay(StreamsMemberStored("g", "new", None))
    assert group.static_member_id("i") is None


def test_a_group_that_was_taken_back_is_blank() -> None:
    timeline = Timeline()
    group = StreamsGroup("g", timeline)
    timeline.advance()
    group.replay(StreamsMemberStored("g", "m", member("p")))
    assert not group.is_blank
    timeline.revert()
    assert group.is_blank
