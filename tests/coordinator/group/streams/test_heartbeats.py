"""StreamsGroupHeartbeat, row by row of its table, with all its errors."""

import random
from collections.abc import Callable

import pytest

from odradek.cluster.metadata.group_settings import StreamsGroupSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.streams.heartbeats import check
from odradek.coordinator.group.streams.records import TasksTuple
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.coordinator.group.streams.topology import StatusCode
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest, TaskIds
from tests.support.streams_playbook import (
    StreamsStage,
    StreamsThread,
    settle_threads,
    subtopology,
    topology,
    word_count,
)

ALL = {("0", 0), ("0", 1), ("0", 2), ("1", 0), ("1", 1), ("1", 2)}


def joining(**given: object) -> StreamsGroupHeartbeatRequest:
    fields: dict[str, object] = {
        "group_id": "g",
        "member_id": "m",
        "rebalance_timeout_ms": 1,
        "topology": word_count(),
        **given,
    }
    return StreamsGroupHeartbeatRequest(**fields)  # type: ignore[arg-type]  # by name


TASKS = [TaskIds(subtopology_id="0", partitions=[0])]


@pytest.mark.parametrize(
    "request_",
    [
        joining(member_id=""),
        joining(group_id=""),
        joining(instance_id=""),
        joining(rack_id=""),
        joining(group_id=" "),
        joining(rebalance_timeout_ms=-1),
        joining(active_tasks=TASKS, standby_tasks=[], warmup_tasks=[]),
        joining(active_tasks=[], standby_tasks=TASKS, warmup_tasks=[]),
        joining(active_tasks=[], standby_tasks=[], warmup_tasks=TASKS),
        joining(topology=None),
        joining(active_tasks=[]),
        joining(member_epoch=1),
        joining(member_epoch=-2, topology=None),
        joining(member_epoch=-3, topology=None),
        joining(member_id="m" * 9_000),
    ],
)
def test_a_request_with_invalid_fields_is_invalid(request_: StreamsGroupHeartbeatRequest) -> None:
    with pytest.raises(ApiError) as refused:
        check(request_)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_the_first_member_gets_everything() -> None:
    stage = StreamsStage()
    answer = stage.send_streams_heartbeat("m")
    assert answer.error_code == ErrorCode.NONE
    # The first epoch is that of a group without members.
    assert (answer.member_id, answer.member_epoch) == ("m", 2)
    assert answer.status == []
    thread = StreamsThread(stage, "m")
    thread.hear(answer)
    assert thread.active == ALL
    assert stage.streams().state == "Stable"


def test_heartbeats_of_a_stable_group_write_and_return_nothing() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    length = len(stage.log)
    answer = stage.send_streams_heartbeat("m", 2, endpoint_epoch=0)
    assert answer.active_tasks is None
    assert answer.partitions_by_user_endpoint is None
    assert len(stage.log) == length


def test_a_known_member_that_rejoins_gets_all_its_tasks() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    answer = stage.send_streams_heartbeat("m")
    assert answer.member_epoch == 2
    assert answer.active_tasks is not None


def test_a_task_moves_only_after_it_has_been_revoked() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    a.send_heartbeat()
    b.send_heartbeat()
    assert (a.active, b.active) == (ALL, set())
    a.send_heartbeat()
    assert len(a.active) == 3
    b.send_heartbeat()
    assert b.active == set(), "a has not said yet that it has given them up"
    a.send_heartbeat()
    b.send_heartbeat()
    assert a.active | b.active == ALL
    assert not a.active & b.active


def test_a_full_group_refuses_new_members() -> None:
    streams = StreamsGroupSettings(initial_rebalance_delay_ms=0, max_size=1)
    stage = StreamsStage(settings=GroupSettings(streams=streams))
    stage.send_streams_heartbeat("a")
    assert stage.send_streams_heartbeat("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.send_streams_heartbeat("a").error_code == ErrorCode.NONE


@pytest.mark.parametrize("epoch", [1, -1, -2])
def test_unknown_members_get_an_error(epoch: int) -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    answer = stage.send_streams_heartbeat("x", epoch, instance=None if epoch != -2 else "i")
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_missing_group_gets_an_error(epoch: int) -> None:
    answer = StreamsStage().send_streams_heartbeat("m", epoch)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_epoch_that_was_never_assigned_is_fenced() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    assert stage.send_streams_heartbeat("m", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert stage.send_streams_heartbeat("m", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_the_previous_epoch_is_valid_with_assigned_tasks() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    stage.send_streams_heartbeat("a", a.epoch, endpoint=("host", 1))
    lost = stage.send_streams_heartbeat("b", b.epoch)
    assert lost.member_epoch == b.epoch + 1
    too_much = TasksTuple({"0": frozenset({0, 1, 2}), "1": frozenset({0, 1, 2})})
    assert stage.send_streams_heartbeat("b", b.epoch, owned=too_much).error_code == (
        ErrorCode.FENCED_MEMBER_EPOCH
    )
    assert stage.send_streams_heartbeat("b", b.epoch).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = stage.send_streams_heartbeat("b", b.epoch, owned=b.tasks)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, b.epoch + 1)


def test_tasks_of_a_lost_response_are_sent_again() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    a.send_heartbeat()
    b.send_heartbeat()
    a.send_heartbeat()
    a.send_heartbeat()
    lost = stage.send_streams_heartbeat("b", b.epoch, owned=b.tasks)
    assert lost.active_tasks
    assert lost.member_epoch == b.epoch, "it was waited for at this epoch already"
    b.send_heartbeat()
    assert a.active | b.active == ALL


def ahead_of(stage: StreamsStage, member: StreamsThread, other: StreamsThread) -> int:
    """The other member's change takes the group an epoch ahead; the member's new epoch, in a
    response that it does not get."""
    other.endpoint_port += 1
    answer = stage.send_streams_heartbeat(
        other.member_id, other.epoch, endpoint=("host", other.endpoint_port)
    )
    other.epoch = answer.member_epoch
    return stage.send_streams_heartbeat(member.member_id, member.epoch).member_epoch


def two_threads() -> tuple[StreamsStage, StreamsThread, StreamsThread]:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    return stage, a, b


def test_a_member_that_lost_several_responses_is_not_fenced() -> None:
    """Each of them had a new epoch: the member does not advance until it has sent the first."""
    stage, a, b = two_threads()
    first_lost = ahead_of(stage, b, a)
    assert first_lost == b.epoch + 1
    for connection in range(2, 6):
        a.endpoint_port += 1
        stage.send_streams_heartbeat("a", a.epoch, endpoint=("host", a.endpoint_port))
        a.send_heartbeat()
        again = stage.send_streams_heartbeat("b", b.epoch, owned=b.tasks, connection=connection)
        assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, first_lost)
        assert again.active_tasks is not None
    b.hear(again)
    b.send_heartbeat()
    assert b.epoch == a.epoch > first_lost
    assert (a.errors, b.errors) == ([], [])


def test_over_another_connection_the_previous_epoch_is_valid_without_tasks() -> None:
    """A repeated heartbeat has no tasks if they have not changed. Over the same connection the
    member has received the response."""
    stage, a, b = two_threads()
    lost = ahead_of(stage, b, a)
    refused = stage.send_streams_heartbeat("b", b.epoch)
    assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = stage.send_streams_heartbeat("b", b.epoch, connection=2)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, lost)
    assert again.active_tasks is not None
    too_much = TasksTuple({"0": frozenset({0, 1, 2}), "1": frozenset({0, 1, 2})})
    answer = stage.send_streams_heartbeat("b", b.epoch, owned=too_much, connection=3)
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_tasks_are_sent_over_new_connections_until_the_member_confirms_them() -> None:
    stage, a, b = two_threads()
    epoch = ahead_of(stage, b, a)
    for connection in range(2, 5):
        again = stage.send_streams_heartbeat("b", epoch, connection=connection)
        assert again.active_tasks is not None
        again = stage.send_streams_heartbeat("b", epoch, connection=connection)
        assert again.active_tasks is None
    stage.send_streams_heartbeat("b", epoch, owned=b.tasks, connection=5)
    assert stage.send_streams_heartbeat("b", epoch, connection=6).active_tasks is None


def test_a_new_coordinator_sends_tasks_that_members_may_not_have_received() -> None:
    stage, a, b = two_threads()
    lost = ahead_of(stage, b, a)
    stage.reload()
    again = stage.send_streams_heartbeat("b", b.epoch)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, lost)
    assert again.active_tasks is not None
    b.hear(again)
    assert stage.send_streams_heartbeat("b", b.epoch, owned=b.tasks).active_tasks is None
    stage.reload()
    assert stage.send_streams_heartbeat("b", b.epoch).active_tasks is not None


def test_members_whose_responses_are_lost_at_random_are_never_fenced() -> None:
    """Half of all responses, under a group that changes all the time."""
    randomness = random.Random(4)
    stage = StreamsStage()
    threads = [StreamsThread(stage, name) for name in "abc"]
    settle_threads(*threads)
    for connection in range(2, 400):
        thread = randomness.choice(threads)
        if randomness.random() < 0.3:
            thread.endpoint_port += 1
        answer = stage.send_streams_heartbeat(
            thread.member_id,
            thread.epoch,
            # As a client does after it has lost a response: everything, or the same request.
            owned=randomness.choice((thread.tasks, None)),
            endpoint=("host", thread.endpoint_port),
            connection=connection,
        )
        assert answer.error_code == ErrorCode.NONE
        if randomness.random() < 0.5:
            thread.hear(answer)
    settle_threads(*threads)
    assert all(thread.errors == [] for thread in threads)
    assert set[tuple[str, int]]().union(*(thread.active for thread in threads)) == ALL


def test_the_tasks_of_a_leaving_member_are_assigned_to_the_others() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    answer = stage.send_streams_heartbeat("b", -1)
    assert (answer.member_id, answer.member_epoch, answer.status) == ("b", -1, [])
    settle_threads(a)
    assert a.active == ALL


@pytest.mark.parametrize(("name", "index"), [("2", 0), ("0", 3), ("0", -1)])
def test_owned_tasks_must_exist(name: str, index: int) -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    answer = stage.send_streams_heartbeat("m", 2, owned=TasksTuple({name: frozenset({index})}))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_owned_tasks_may_have_existed_when_they_were_assigned() -> None:
    stage = StreamsStage({"in": 3})
    plan = topology(subtopology("0", "in"))
    m = StreamsThread(stage, "m")
    m.hear(stage.send_streams_heartbeat("m", plan=plan))
    held = m.tasks
    stage.topics({})
    assert stage.send_streams_heartbeat("m", m.epoch, owned=held).error_code == ErrorCode.NONE
    stage.topics({"in": 1})
    assert stage.send_streams_heartbeat("m", m.epoch, owned=held).error_code == ErrorCode.NONE
    m.tasks = TasksTuple()
    settle_threads(m)
    assert m.active == {("0", 0)}


def test_the_first_topology_is_the_groups() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m", plan=word_count(epoch=3))
    other = topology(subtopology("0", "in"), epoch=3)
    assert stage.send_streams_heartbeat("x", plan=other).error_code == ErrorCode.INVALID_REQUEST
    newer = word_count(epoch=4)
    assert stage.send_streams_heartbeat("x", plan=newer).error_code == ErrorCode.INVALID_REQUEST
    stale = stage.send_streams_heartbeat("x", plan=word_count(epoch=2))
    assert [each.status_code for each in stale.status or ()] == [StatusCode.STALE_TOPOLOGY]
    assert stale.error_code == ErrorCode.NONE


def test_an_invalid_topology_creates_no_group() -> None:
    stage = StreamsStage()
    plan = topology(subtopology("0", repartition=["r"], sinks=["r"]))
    assert (
        stage.send_streams_heartbeat("m", plan=plan).error_code
        == ErrorCode.STREAMS_INVALID_TOPOLOGY
    )
    assert stage.send_streams_heartbeat("m", plan=word_count(-1)).error_code == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH
    )
    assert stage.log == []
    assert stage.shard.streams.get("g") is None


def test_a_static_member_that_leaves_temporarily_is_replaced() -> None:
    stage = StreamsStage()
    a = StreamsThread(stage, "a", instance="i")
    b = StreamsThread(stage, "b")
    settle_threads(a, b)
    held = a.active
    taken = stage.send_streams_heartbeat("c", instance="i")
    assert taken.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert (
        stage.send_streams_heartbeat("b", -2, instance="i").error_code
        == ErrorCode.FENCED_INSTANCE_ID
    )
    assert (
        stage.send_streams_heartbeat("a", -2, instance="j").error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert stage.send_streams_heartbeat("a", -2, instance="i").member_epoch == -2
    c = StreamsThread(stage, "c", instance="i")
    settle_threads(c, b)
    assert c.active == held
    assert (
        stage.send_streams_heartbeat("a", 5, instance="i").error_code
        == ErrorCode.FENCED_INSTANCE_ID
    )
    assert stage.streams().member("a") is None


def test_missing_internal_topics_are_reported_and_returned() -> None:
    stage = StreamsStage({"in": 2})
    answer = stage.streams_answer(
        stage.streams_call("m", plan=word_count(), process="p", timeout_ms=1_000)
    )
    assert [each.status_code for each in answer.response.status or ()] == [
        StatusCode.MISSING_INTERNAL_TOPICS
    ]
    assert {topic.name: topic.partitions for topic in answer.missing} == {
        "words": 2,
        "counts": 2,
    }
    assert stage.streams().state == "NotReady"
    assert answer.response.active_tasks == []
    stage.topics({"in": 2, "words": 2, "counts": 2})
    after = stage.send_streams_heartbeat("m", answer.response.member_epoch)
    assert after.status == []
    assert after.active_tasks
    assert stage.streams().state == "Stable"


def test_deleting_a_source_topic_removes_the_tasks() -> None:
    stage = StreamsStage()
    m = StreamsThread(stage, "m")
    m.send_heartbeat()
    stage.topics({"words": 3, "counts": 3})
    settle_threads(m)
    assert m.active == set()
    assert m.statuses == [StatusCode.MISSING_SOURCE_TOPICS]
    stage.topics({"in": 3, "words": 3, "counts": 3})
    settle_threads(m)
    assert m.active == ALL
    assert m.statuses == []


def test_a_topic_that_grows_has_more_tasks() -> None:
    stage = StreamsStage({"in": 1})
    m = StreamsThread(stage, "m")
    plan = topology(subtopology("0", "in"))
    m.hear(stage.send_streams_heartbeat("m", plan=plan))
    assert m.active == {("0", 0)}
    stage.topics({"in": 2})
    settle_threads(m)
    assert m.active == {("0", 0), ("0", 1)}


def _interval(stage: StreamsStage, epoch: int) -> int:
    return stage.send_streams_heartbeat("m", epoch).heartbeat_interval_ms


def test_the_interval_is_short_while_the_group_is_small_unless_it_is_set() -> None:
    stage = StreamsStage()
    joined = stage.send_streams_heartbeat("m")
    assert joined.heartbeat_interval_ms == 100
    assert _interval(stage, 2) == 200
    own = StreamsGroupSettings(heartbeat_interval_ms=7_000, is_interval_fixed=True)
    stage.shard.settings = GroupSettings(streams_overrides={"g": own})
    assert _interval(stage, 2) == 7_000


Change = Callable[[StreamsStage], object]


@pytest.mark.parametrize(
    "refuse",
    [
        lambda stage: stage.streams_call("m", 9),
        lambda stage: stage.streams_call("x", 1),
        lambda stage: stage.streams_call("m", 0),
    ],
)
def test_refused_requests_change_nothing(refuse: Callable[[StreamsStage], object]) -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    length = len(stage.log)
    refuse(stage)
    call = stage.calls[max(stage.calls)]
    assert call.response(StreamsHeartbeatResult).response.error_code
    assert len(stage.log) == length
