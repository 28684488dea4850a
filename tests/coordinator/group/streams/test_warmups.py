"""Stateful tasks move after their state has been restored."""

from collections.abc import Mapping

from odradek.coordinator.group.streams.assignor import StreamsMemberSpec, TaskId
from odradek.coordinator.group.streams.records import NO_TASKS, TasksTuple
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.coordinator.group.streams.warmups import (
    ACCEPTABLE_LAG,
    NO_LAGS,
    WARMUPS_MAX,
    has_caught_up,
    insert_warmups,
)
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from tests.support.streams_playbook import (
    LagReportingThread,
    StreamsStage,
    assigned_tasks,
    settle_threads,
    word_count,
)


def tasks(*indexes: int) -> dict[str, frozenset[int]]:
    return {"1": frozenset(indexes)} if indexes else {}


HAD_ALL = StreamsMemberSpec("a", "p", TasksTuple(tasks(0, 1, 2)))
COMES = StreamsMemberSpec("b", "q", NO_TASKS)
MOVED = {"a": TasksTuple(tasks(0)), "b": TasksTuple(tasks(1, 2))}


def held(lags: Mapping[str, Mapping[TaskId, int]], *, comes: StreamsMemberSpec = COMES) -> object:
    return insert_warmups(MOVED, [HAD_ALL, comes], {"1"}, lags)


def test_members_that_report_no_offsets_get_their_tasks_at_once() -> None:
    assert held(NO_LAGS) == MOVED


def test_tasks_stay_while_the_other_process_has_not_caught_up() -> None:
    assert held({"b": {}}) == {
        "a": TasksTuple(tasks(0, 1, 2)),
        "b": TasksTuple({}, {}, tasks(1, 2)),
    }
    assert held({"b": {("1", 1): ACCEPTABLE_LAG + 1}}) == held({"b": {}})


def test_a_task_moves_when_its_lag_is_acceptable() -> None:
    assert held({"b": {("1", 1): ACCEPTABLE_LAG}}) == {
        "a": TasksTuple(tasks(0, 2)),
        "b": TasksTuple(tasks(1), {}, tasks(2)),
    }


def test_a_delay_continues_when_the_coordinator_has_moved() -> None:
    warming = COMES._replace(before=TasksTuple({}, {}, tasks(1)))
    assert held(NO_LAGS, comes=warming) == {
        "a": TasksTuple(tasks(0, 1)),
        "b": TasksTuple(tasks(2), {}, tasks(1)),
    }


def test_the_number_of_warm_up_tasks_is_limited() -> None:
    count = WARMUPS_MAX + 3
    everything = StreamsMemberSpec("a", "p", TasksTuple(tasks(*range(count))))
    targets = {"a": NO_TASKS, "b": TasksTuple(tasks(*range(count)))}
    found = insert_warmups(targets, [everything, COMES], {"1"}, {"b": {}})
    assert found["b"].warmup == tasks(*range(WARMUPS_MAX))
    assert found["a"].active == tasks(*range(count))


def test_threads_of_one_process_share_their_state() -> None:
    sibling = COMES._replace(process_id="p")
    assert held({"b": {}}, comes=sibling) == MOVED


def test_stateless_tasks_move_at_once() -> None:
    assert insert_warmups(MOVED, [HAD_ALL, COMES], set(), {"b": {}}) == MOVED


def test_a_member_has_no_standby_task_of_its_active_task() -> None:
    targets = {
        "a": TasksTuple(tasks(0), tasks(1, 2)),
        "b": TasksTuple(tasks(1, 2), tasks(0)),
    }
    found = insert_warmups(targets, [HAD_ALL, COMES], {"1"}, {"b": {}})
    assert found == {
        "a": TasksTuple(tasks(0, 1, 2)),
        "b": TasksTuple({}, tasks(0), tasks(1, 2)),
    }


def test_reported_offsets_determine_whether_a_member_has_caught_up() -> None:
    near = {"b": {("1", 1): ACCEPTABLE_LAG}}
    assert has_caught_up(tasks(1), "b", near)
    assert not has_caught_up(tasks(2), "b", near)
    assert not has_caught_up(tasks(1), "a", near)
    assert not has_caught_up({}, "b", near)


# -- in a group -----------------------------------------------------------------------------------


def test_a_task_moves_after_its_state_has_been_restored() -> None:
    stage = StreamsStage()
    a, b = LagReportingThread(stage, "a"), LagReportingThread(stage, "b")
    settle_threads(a)
    settle_threads(a, b)
    assert {("1", 0), ("1", 1), ("1", 2)} <= a.active
    assert b.active
    assert all(name == "0" for name, _ in b.active)
    warming = set(b.tasks.warmup.get("1", ()))
    assert 0 < len(warming) <= WARMUPS_MAX
    b.lag = ACCEPTABLE_LAG + 1
    settle_threads(a, b)
    assert set(b.tasks.warmup.get("1", ())) == warming, "still too far behind"
    b.lag = 5
    settle_threads(a, b, rounds=30)
    assert {("1", index) for index in warming} <= b.active
    assert not a.active & b.active
    assert len(a.active | b.active) == 6
    assert stage.streams().state == "Stable"


def test_a_task_without_a_runner_moves_at_once() -> None:
    stage = StreamsStage()
    a, b = LagReportingThread(stage, "a"), LagReportingThread(stage, "b")
    settle_threads(a)
    settle_threads(a, b)
    stage.send_streams_heartbeat("a", -1)
    settle_threads(b)
    assert len(b.active) == 6
    assert assigned_tasks([]) == {}


def test_responses_have_the_interval_of_task_offsets() -> None:
    stage = StreamsStage()
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=30_000,
        process_id="p",
        topology=word_count(),
    )
    new = stage.ask(request, version=1).response(StreamsHeartbeatResult).response
    assert (new.acceptable_recovery_lag, new.task_offset_interval_ms) == (ACCEPTABLE_LAG, 60_000)
    old = stage.send_streams_heartbeat("n")
    assert old.task_offset_interval_ms == 0, "Kafka 4.3 does not ask for offsets either"
