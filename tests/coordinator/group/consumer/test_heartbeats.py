"""ConsumerGroupHeartbeat, row by row of its table: joining, epochs, leaving."""

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.coordinator.group.requests import ConsumerHeartbeat
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from tests.support.consumer_playbook import REBALANCE_TIMEOUT_MS, Consumer, Stage, id_of, settle

SESSION_MS = 45_000


def refused(stage: Stage, member_id: str, epoch: int, **given: object) -> int:
    call = stage.beat_call(member_id, epoch, **given)  # type: ignore[arg-type]  # as it is
    return call.response(ConsumerGroupHeartbeatResponse).error_code


# -- invalid requests -----------------------------------------------------------------------------

JOINING: dict[str, object] = {"topics": ["a"], "owned": {}, "timeout_ms": 1_000}


@pytest.mark.parametrize(
    ("member_id", "epoch", "given", "version"),
    [
        ("m", 0, JOINING | {"group": ""}, 1),
        ("m", 0, JOINING | {"instance": ""}, 1),
        ("m", 0, JOINING | {"rack": ""}, 1),
        ("m", 0, JOINING | {"group": " "}, 1),
        ("m", 0, JOINING | {"instance": " "}, 1),
        (" ", 0, JOINING, 1),
        ("", 0, JOINING, 1),
        ("", 1, {}, 0),
        ("", -1, {}, 0),
        ("m", 0, JOINING | {"timeout_ms": -1}, 1),
        ("m", 0, JOINING | {"owned": None}, 1),
        ("m", 0, JOINING | {"owned": {"a": [0]}}, 1),
        ("m", 0, JOINING | {"topics": None}, 1),
        ("m", -2, {}, 1),
        ("m", -3, {}, 1),
        ("m", 0, JOINING | {"rack": "r" * 9_000}, 1),
    ],
)
def test_an_invalid_heartbeat_gets_invalid_request(
    member_id: str, epoch: int, given: dict[str, object], version: int
) -> None:
    stage = Stage()
    assert refused(stage, member_id, epoch, version=version, **given) == ErrorCode.INVALID_REQUEST
    assert stage.list_groups() == {}


def test_an_unknown_assignor_is_refused() -> None:
    stage = Stage(settings=GroupSettings(consumer=ConsumerGroupSettings(assignors=("range",))))
    given = JOINING | {"assignor": "uniform"}
    assert refused(stage, "m", 0, **given) == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert stage.send_heartbeat("m", assignor="range").error_code == ErrorCode.NONE


# -- epoch 0 --------------------------------------------------------------------------------------


def test_a_member_that_joins_gets_all_partitions() -> None:
    stage = Stage({"a": 3})
    joined = stage.send_heartbeat("m")
    assert joined.error_code == ErrorCode.NONE
    assert (joined.member_id, joined.member_epoch) == ("m", 2)
    assert joined.assignment is not None
    [topic] = joined.assignment.topic_partitions
    assert (stage.name_of(topic.topic_id), topic.partitions) == ("a", [0, 1, 2])


def test_version_0_gets_a_member_id() -> None:
    joined = Stage().send_heartbeat("", version=0)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id


def test_topics_that_do_not_exist_are_no_error_and_are_assigned_once_they_do() -> None:
    stage = Stage({})
    member = Consumer(stage, "m", topics=("later",))
    member.send_heartbeat()
    assert member.partitions == set()
    stage.topics({"later": 2})
    settle(member)
    assert member.partitions == {("later", 0), ("later", 1)}


def test_a_full_group_refuses_new_members_and_serves_its_own() -> None:
    stage = Stage(settings=GroupSettings(consumer=ConsumerGroupSettings(max_size=1)))
    assert stage.send_heartbeat("m").error_code == ErrorCode.NONE
    assert stage.send_heartbeat("n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.send_heartbeat("m", 2).error_code == ErrorCode.NONE


def test_a_member_that_rejoins_gets_its_full_assignment() -> None:
    stage = Stage({"a": 2})
    stage.send_heartbeat("m")
    again = stage.send_heartbeat("m")
    assert again.member_epoch == 2
    assert again.assignment is not None
    assert again.assignment.topic_partitions[0].partitions == [0, 1]


def test_a_heartbeat_that_changes_nothing_gets_no_assignment() -> None:
    stage = Stage()
    stage.send_heartbeat("m")
    assert stage.send_heartbeat("m", 2).assignment is None
    full = stage.beat_call("m", 2, topics=["a"], owned={"a": [0]}, timeout_ms=1_000)
    assert full.response(ConsumerGroupHeartbeatResponse).assignment is not None


# -- epochs ---------------------------------------------------------------------------------------


def test_heartbeats_to_missing_groups_get_an_error() -> None:
    stage = Stage()
    for epoch in (1, -1):
        assert refused(stage, "m", epoch) == ErrorCode.GROUP_ID_NOT_FOUND
    stage.send_heartbeat("m")
    for epoch in (1, -1):
        assert refused(stage, "n", epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_epoch_from_the_future_is_fenced() -> None:
    stage = Stage()
    stage.send_heartbeat("m")
    assert refused(stage, "m", 3, owned={}) == ErrorCode.FENCED_MEMBER_EPOCH


def at_second_epoch() -> Stage:
    """m is at epoch 3, after epoch 2, with the partitions 0 to 3 in both."""
    stage = Stage({"a": 4})
    stage.send_heartbeat("m")
    stage.topics({"a": 5})
    assert stage.send_heartbeat("m", 2, owned={"a": [0, 1, 2, 3]}).member_epoch == 3
    return stage


def test_the_previous_epoch_is_valid_with_assigned_partitions() -> None:
    """The response with the new epoch may have been lost."""
    for owned in ({"a": [0, 1, 2, 3]}, {"a": [0]}, {}):
        assert refused(at_second_epoch(), "m", 2, owned=owned) == ErrorCode.NONE


def test_over_another_connection_the_previous_epoch_is_valid_without_partitions() -> None:
    """librdkafka repeats a heartbeat without a response, and sends no partitions if they have not
    changed. Over the same connection it has received the response."""
    assert refused(at_second_epoch(), "m", 2) == ErrorCode.FENCED_MEMBER_EPOCH
    assert at_second_epoch().send_heartbeat("m", 2, connection=2).error_code == ErrorCode.NONE


def test_a_member_that_has_not_received_its_epoch_gets_it_again_and_does_not_advance() -> None:
    stage = at_second_epoch()
    for count in range(6, 10):
        stage.topics({"a": count})
        again = stage.send_heartbeat("m", 2, connection=count)
        assert (again.member_epoch, again.error_code) == (3, ErrorCode.NONE)
        assert again.assignment is not None
        assert again.assignment.topic_partitions[0].partitions == [0, 1, 2, 3, 4]
    assert stage.send_heartbeat("m", 3, connection=9).member_epoch == 7


def test_the_previous_epoch_is_valid_with_partitions_to_revoke() -> None:
    """It has revoked some, and has not received the response that revokes more."""
    stage = Stage({"a": 4})
    stage.send_heartbeat("m")
    stage.send_heartbeat("n")
    kept = stage.send_heartbeat("m", 2).assignment
    assert kept is not None
    owned = {"a": kept.topic_partitions[0].partitions}
    for newcomer in ("o", "p"):
        stage.send_heartbeat(newcomer)
    assert len(owned["a"]) == 2
    assert stage.send_heartbeat("m", 2, owned=owned).member_epoch == 3
    again = stage.send_heartbeat("m", 2, owned=owned, connection=2)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, 3)
    assert again.assignment is not None
    assert set(again.assignment.topic_partitions[0].partitions) < set(owned["a"])
    assert refused(stage, "m", 2, owned=owned, connection=2) == ErrorCode.FENCED_MEMBER_EPOCH


def test_an_assignment_is_sent_over_new_connections_until_the_member_confirms_it() -> None:
    stage = at_second_epoch()
    assert stage.send_heartbeat("m", 3).assignment is None
    for connection in range(2, 5):
        again = stage.send_heartbeat("m", 3, connection=connection)
        assert again.assignment is not None
        assert again.assignment.topic_partitions[0].partitions == [0, 1, 2, 3, 4]
        assert stage.send_heartbeat("m", 3, connection=connection).assignment is None
    stage.send_heartbeat("m", 3, owned={"a": [0, 1, 2, 3]}, connection=5)
    assert (
        stage.send_heartbeat("m", 3, owned={"a": [0, 1, 2, 3, 4]}, connection=6).assignment is None
    )
    assert stage.send_heartbeat("m", 3, connection=7).assignment is None


def test_a_new_coordinator_sends_assignments_that_members_may_not_have_received() -> None:
    stage = at_second_epoch()
    stage.send_heartbeat("m", 3, owned={"a": [0, 1, 2, 3, 4]})
    stage.reload()
    assert stage.send_heartbeat("m", 3).assignment is not None
    assert stage.send_heartbeat("m", 3).assignment is None
    stage.reload()
    assert stage.send_heartbeat("m", 3, owned={"a": [0, 1, 2, 3, 4]}).assignment is None
    assert stage.send_heartbeat("m", 3).assignment is None


def test_the_previous_epoch_is_fenced_with_anything_else() -> None:
    for owned in ({"a": [9]}, {"b": [0]}):
        for connection in (1, 2):
            answer = refused(at_second_epoch(), "m", 2, owned=owned, connection=connection)
            assert answer == ErrorCode.FENCED_MEMBER_EPOCH


def test_records_of_continuing_members_linger_and_those_of_new_members_do_not() -> None:
    stage = Stage({"a": 4})

    def is_urgent(member_id: str, epoch: int, owned: list[int]) -> bool:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["a"],
            topic_partitions=[
                TopicIdPartitions(topic_id=id_of("a"), partitions=owned) for _ in owned[:1]
            ],
        )
        outcome = stage.shard.handle(Command(request=ConsumerHeartbeat(request), api_version=1), 0)
        assert outcome.records
        return not outcome.can_linger

    assert is_urgent("m", 0, [])
    stage.send_heartbeat("m")
    stage.send_heartbeat("n")
    assert not is_urgent("m", 2, [0, 1, 2, 3])
    assert is_urgent("m", -1, [])


def test_an_epoch_before_the_previous_one_is_fenced() -> None:
    stage = at_second_epoch()
    stage.topics({"a": 6})
    assert stage.send_heartbeat("m", 3, owned={"a": [0]}).member_epoch == 4
    assert refused(stage, "m", 2, owned={}) == ErrorCode.FENCED_MEMBER_EPOCH


# -- changes --------------------------------------------------------------------------------------


def test_a_changed_subscription_is_a_new_epoch() -> None:
    stage = Stage({"a": 2, "b": 2})
    member = Consumer(stage, "m")
    member.send_heartbeat()
    changed = stage.send_heartbeat("m", 2, topics=["b"], owned={"a": [0, 1]})
    assert changed.assignment is not None
    assert changed.assignment.topic_partitions == []
    member.owned = {}
    settle(member)
    assert member.partitions == {("b", 0), ("b", 1)}
    assert stage.consumers().epoch == 3


def test_the_same_subscription_in_another_order_is_none() -> None:
    stage = Stage({"a": 1, "b": 1})
    stage.send_heartbeat("m", topics=["a", "b"])
    stage.send_heartbeat("m", 2, topics=["b", "a", "a"])
    assert stage.consumers().epoch == 2


def test_the_assignor_with_most_votes_is_used() -> None:
    stage = Stage({"a": 6})
    for name, assignor in (("m", "range"), ("n", "range"), ("o", "uniform")):
        stage.send_heartbeat(name, assignor=assignor)
    assert stage.describe_consumers().assignor_name == "range"


def test_an_expression_matches_the_topics_that_the_router_resolved() -> None:
    stage = Stage({"xa": 1, "xb": 1, "y": 1})
    stage.send_heartbeat("m", regex="x.*", names=["xa", "xb"])
    assert stage.consumers().topic_names() == {"xa", "xb"}
    assert stage.describe_consumers().members[0].subscribed_topic_regex == "x.*"
    stage.topics({"xa": 1, "xb": 1, "xc": 1, "y": 1}, regexes={"x.*": ("xa", "xb", "xc")})
    assert stage.consumers().topic_names() == {"xa", "xb", "xc"}
    stage.send_heartbeat("m", 2, topics=["y"], regex="")
    assert stage.consumers().topic_names() == {"y"}
    assert dict(stage.consumers().regexes()) == {}


# -- static members -------------------------------------------------------------------------------


def test_an_active_static_member_is_not_replaced() -> None:
    """Unlike in the classic protocol."""
    stage = Stage()
    stage.send_heartbeat("m", instance="i")
    assert stage.send_heartbeat("n", instance="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert stage.send_heartbeat("m", 2, instance="i").error_code == ErrorCode.NONE


def test_a_static_member_that_leaves_temporarily_keeps_its_assignment() -> None:
    stage = Stage({"a": 4})
    first, other = Consumer(stage, "m", instance="i"), Consumer(stage, "n")
    settle(first, other)
    had = first.partitions
    left = stage.send_heartbeat("m", -2, instance="i")
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -2)
    settle(other)
    assert not other.partitions & had
    epoch = stage.consumers().epoch
    again = Consumer(stage, "m2", instance="i")
    settle(again, other)
    assert again.partitions == had
    assert stage.consumers().epoch == epoch
    assert [member_id for member_id, _ in stage.consumers().members()] == ["n", "m2"]


def test_the_previous_owner_of_an_instance_id_is_fenced() -> None:
    stage = Stage()
    stage.send_heartbeat("m", instance="i")
    stage.send_heartbeat("m", -2, instance="i")
    stage.send_heartbeat("n", instance="i")
    assert refused(stage, "m", 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert refused(stage, "m", -1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert refused(stage, "m", 1, instance="j") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_return_is_removed_after_its_session() -> None:
    stage = Stage()
    stage.send_heartbeat("m", instance="i")
    stage.send_heartbeat("m", -2, instance="i")
    stage.tick(SESSION_MS - 1)
    assert stage.consumers().member_count == 1
    stage.tick(1)
    assert stage.consumers().member_count == 0


# -- leaving and being removed --------------------------------------------------------------------


def test_partitions_of_a_leaving_member_are_assigned_to_the_others() -> None:
    stage = Stage({"a": 4})
    first, second = Consumer(stage, "m"), Consumer(stage, "n")
    settle(first, second)
    assert stage.send_heartbeat("m", -1).member_epoch == -1
    settle(second)
    assert len(second.partitions) == 4
    assert stage.consumers().state == "Stable"


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
    stage = Stage({"a": 4})
    first, second = Consumer(stage, "m"), Consumer(stage, "n")
    settle(first, second)
    stage.tick(SESSION_MS - 1)
    second.send_heartbeat()
    stage.tick(1)
    settle(second)
    assert len(second.partitions) == 4
    assert refused(stage, "m", first.epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    stage = Stage({"a": 4})
    first, second = Consumer(stage, "m"), Consumer(stage, "n")
    settle(first)
    second.send_heartbeat()
    stage.send_heartbeat("m", first.epoch)
    for _ in range(REBALANCE_TIMEOUT_MS // 10_000):
        assert not second.partitions
        stage.tick(10_000)
        second.send_heartbeat()
    settle(second)
    assert len(second.partitions) == 4
    first.send_heartbeat()
    assert first.errors == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_that_revokes_in_time_stays() -> None:
    stage = Stage({"a": 4})
    first, second = Consumer(stage, "m"), Consumer(stage, "n")
    settle(first)
    second.send_heartbeat()
    stage.send_heartbeat("m", first.epoch)
    stage.tick(REBALANCE_TIMEOUT_MS - 1)
    settle(first, second)
    stage.tick(10_000)
    settle(first, second)
    assert len(first.partitions) == len(second.partitions) == 2


# -- heartbeat intervals --------------------------------------------------------------------------


def test_the_heartbeat_interval_is_short_in_a_reconciling_or_small_group() -> None:
    stage = Stage({"a": 2})
    first, second = Consumer(stage, "m"), Consumer(stage, "n")
    settle(first)
    second.send_heartbeat()
    assert second.interval_ms == 100
    settle(first, second)
    assert first.interval_ms == second.interval_ms == 200
    stage.shard.member_count_total = 500
    first.send_heartbeat()
    assert first.interval_ms == 2_500
    stage.shard.member_count_total = 100_000
    first.send_heartbeat()
    assert first.interval_ms == 5_000


def test_the_heartbeat_interval_is_longer_in_a_slow_process() -> None:
    """Clients wait for a response no longer than for the next heartbeat."""
    stage = Stage({"a": 2})
    member = Consumer(stage, "m")
    stage.shard.loop_delay_ms = 90
    member.send_heartbeat()
    assert member.interval_ms == 450
    settle(member)
    for loop_delay_ms, interval_ms in ((30, 200), (300, 1_500), (60_000, 5_000)):
        stage.shard.loop_delay_ms = loop_delay_ms
        member.send_heartbeat()
        assert member.interval_ms == interval_ms


def test_the_interval_of_the_group_is_used_once_it_is_stable() -> None:
    overrides = {"g": ConsumerGroupSettings(heartbeat_interval_ms=7_000, is_interval_fixed=True)}
    stage = Stage({"a": 2}, GroupSettings(consumer_overrides=overrides))
    member = Consumer(stage, "m")
    member.send_heartbeat()
    assert member.interval_ms == 100
    member.send_heartbeat()
    assert member.interval_ms == 7_000


def test_the_session_timeout_of_the_group_is_used() -> None:
    overrides = {"g": ConsumerGroupSettings(session_timeout_ms=50_000)}
    stage = Stage({"a": 2}, GroupSettings(consumer_overrides=overrides))
    stage.send_heartbeat("m")
    stage.tick(49_999)
    assert stage.consumers().member_count == 1
    stage.tick(1)
    assert stage.consumers().member_count == 0
