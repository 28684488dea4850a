"""What happened in consumer groups, read off their records: who, why, and how long it took."""

from coordinator.group.events import EVENT_COUNT_MAX
from tests.support.consumer_playbook import Consumer, Stage


def happened(stage: Stage) -> list[tuple[str, str]]:
    """(kind, member) of what happened."""
    return [(event.kind, event.member_id) for event in stage.explained().events]


def reasons(stage: Stage, kind: str) -> list[str]:
    return [event.reason for event in stage.explained().events if event.kind == kind]


def test_a_member_joins_and_leaves() -> None:
    stage = Stage({"a": 2})
    stage.beat("m")
    assert happened(stage) == [
        ("member joined", "m"),
        ("rebalance started", ""),
        ("targets assigned", ""),
    ]
    assert reasons(stage, "member joined") == ["client at /127.0.0.1 joined"]
    assert reasons(stage, "targets assigned") == ["epoch 1: new targets for 1 members"]
    stage.beat("m", -1)
    assert ("member left", "m") in happened(stage)
    assert reasons(stage, "member left") == ["client at /127.0.0.1 left"]


def test_who_is_silent_is_said_to_be_so() -> None:
    stage = Stage({"a": 2})
    stage.beat("m")
    stage.tick(45_000)
    assert reasons(stage, "member left") == ["m no heartbeat for 45000 ms"]
    assert "m no heartbeat for 45000 ms" in reasons(stage, "rebalance started")[-1]


def test_who_does_not_give_up_its_partitions_is_said_to_have_been_too_slow() -> None:
    stage = Stage({"a": 2})
    first = Consumer(stage, "first")
    first.beat()
    first.beat()
    Consumer(stage, "second").beat()
    stage.beat("first", first.epoch)
    stage.tick(30_000)
    assert reasons(stage, "asked to give up partitions") == ["1 partitions"]
    assert reasons(stage, "member left") == ["first did not give up its partitions within 30000 ms"]


def test_how_long_partitions_took_to_be_given_up_is_told() -> None:
    stage = Stage({"a": 2})
    first, second = Consumer(stage, "first"), Consumer(stage, "second")
    first.beat()
    first.beat()
    second.beat()
    first.beat()
    stage.tick(123)
    first.beat()
    assert reasons(stage, "partitions given up") == ["after 123 ms"]


def test_topics_that_change_are_a_reason() -> None:
    stage = Stage({"a": 2})
    stage.beat("m")
    stage.topics({"a": 3})
    assert reasons(stage, "rebalance started")[-1] == "epoch 2: topics have changed"


def test_a_subscription_that_changes_is_a_reason() -> None:
    stage = Stage({"a": 2, "b": 2})
    epoch = stage.beat("m").member_epoch
    stage.beat("m", epoch, topics=["a", "b"])
    assert ("member changed", "m") in happened(stage)


def test_no_more_is_kept_than_agreed_and_nothing_of_a_group_that_is_gone() -> None:
    stage = Stage({"a": 2})
    for _ in range(EVENT_COUNT_MAX):
        stage.beat("m")
        stage.beat("m", -1)
    assert len(happened(stage)) == EVENT_COUNT_MAX
    assert stage.delete_group().error_code == 0
    assert stage.shard.consumers.events.of("g") == ()
    assert stage.shard.consumers.events.timings("g").started_ms == -1


def test_heartbeats_that_change_nothing_leave_no_trace() -> None:
    stage = Stage({"a": 2})
    epoch = stage.beat("m").member_epoch
    before = happened(stage)
    for _ in range(3):
        stage.beat("m", epoch)
    assert happened(stage) == before
