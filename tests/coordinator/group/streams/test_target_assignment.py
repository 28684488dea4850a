"""When the epochs and targets of a streams group change."""

from odradek.cluster.metadata.group_settings import StreamsGroupSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.streams.records import StreamsGroupMember
from odradek.coordinator.group.streams.target_assignment import (
    AssignmentInputs,
    StreamsTargetAssignmentBuilder,
)
from odradek.coordinator.group.streams.topology import StatusCode
from tests.support.streams_playbook import (
    AT_ONCE,
    STANDBY,
    StreamsStage,
    StreamsThread,
    settle_threads,
)


def test_a_new_group_waits_for_more_members() -> None:
    delay = StreamsGroupSettings(initial_rebalance_delay_ms=3_000, assignment_interval_ms=0)
    stage = StreamsStage(settings=GroupSettings(streams=delay))
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    a.send_heartbeat()
    assert a.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    assert a.active == set()
    assert a.epoch == 1, "it has come as far as there is a target"
    stage.tick(2_000)
    b.send_heartbeat()
    assert stage.streams().target_epoch == 1
    stage.tick(1_000)
    assert stage.streams().target_epoch == stage.streams().epoch
    for thread in (a, b):
        thread.send_heartbeat()
        assert len(thread.active) == 3
        assert thread.statuses == []


def test_target_assignments_observe_the_interval() -> None:
    slow = StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=1_000)
    stage = StreamsStage(settings=GroupSettings(streams=slow))
    StreamsThread(stage, "a").send_heartbeat()
    made = stage.streams().target_epoch
    b = StreamsThread(stage, "b")
    b.send_heartbeat()
    assert b.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    StreamsThread(stage, "c").send_heartbeat()
    assert stage.streams().target_epoch == made
    stage.tick(1_000)
    assert stage.streams().target_epoch == stage.streams().epoch == made + 2


def test_the_setting_determines_the_number_of_standby_tasks() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    assert not a.standby | b.standby
    stage.shard.settings = STANDBY
    settle_threads(a, b)
    assert a.standby | b.standby == {("1", 0), ("1", 1), ("1", 2)}
    assert not (a.standby & a.active) | (b.standby & b.active)
    stage.shard.settings = GroupSettings(streams=AT_ONCE)
    settle_threads(a, b)
    assert not a.standby | b.standby


def test_only_targets_that_differ_are_written() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    length = len(stage.log)
    stage.send_streams_heartbeat("a", a.epoch, endpoint=("host", 1))
    # The member epoch, the group epoch, the epoch of the target, and the member's tasks.
    keys = [int.from_bytes(key[:2], "big") for key, _ in stage.log[length:]]
    assert keys == [19, 17, 20, 22]


def test_the_builder_represents_the_group_with_its_changes() -> None:
    stage = StreamsStage()
    StreamsThread(stage, "a").send_heartbeat()
    builder = StreamsTargetAssignmentBuilder(
        stage.streams(), stage.streams().topology, AssignmentInputs()
    )
    before = builder.target("a")
    builder.put("b", StreamsGroupMember(process_id="p"), "a")
    assert list(builder.members()) == ["b"]
    assert builder.target("b") == before
    builder.remove("b")
    assert builder.members() == {}
