"""Events of the newer groups, derived from their records: member, reason, duration."""

from odradek.coordinator.group.events import EVENT_COUNT_MAX, EventKind
from tests.support.consumer_playbook import Consumer, Stage
from tests.support.share_group_playbook import ShareConsumerMember, ShareStage, settle
from tests.support.streams_playbook import StreamsStage, StreamsThread, settle_threads


def events_of(stage: Stage) -> list[tuple[int, str]]:
    """(kind, member) of the events."""
    return [(event.kind, event.member_id) for event in stage.explained().events]


def reasons(stage: Stage, kind: EventKind) -> list[str]:
    return [event.reason for event in stage.explained().events if event.kind == kind]


def test_a_member_joins_and_leaves() -> None:
    stage = Stage({"a": 2})
    stage.send_heartbeat("m")
    assert events_of(stage) == [
        (EventKind.MEMBER_JOINED, "m"),
        (EventKind.REBALANCE_STARTED, ""),
        (EventKind.TARGET_ASSIGNED, ""),
    ]
    assert reasons(stage, EventKind.MEMBER_JOINED) == ["client at /127.0.0.1 joined"]
    assert reasons(stage, EventKind.TARGET_ASSIGNED) == ["epoch 2: new targets for 1 members"]
    stage.send_heartbeat("m", -1)
    assert (EventKind.MEMBER_LEFT, "m") in events_of(stage)
    assert reasons(stage, EventKind.TARGET_ASSIGNED)[-1] == "epoch 3: new targets for 0 members"
    assert reasons(stage, EventKind.MEMBER_LEFT) == ["client at /127.0.0.1 left"]


def test_the_event_of_a_session_timeout() -> None:
    stage = Stage({"a": 2})
    stage.send_heartbeat("m")
    stage.tick(45_000)
    assert reasons(stage, EventKind.MEMBER_EXPIRED) == ["m no heartbeat for 45000 ms"]
    assert "m no heartbeat for 45000 ms" in reasons(stage, EventKind.REBALANCE_STARTED)[-1]


def test_the_event_of_a_revocation_timeout() -> None:
    stage = Stage({"a": 2})
    first = Consumer(stage, "first")
    first.send_heartbeat()
    first.send_heartbeat()
    Consumer(stage, "second").send_heartbeat()
    stage.send_heartbeat("first", first.epoch)
    stage.tick(30_000)
    assert reasons(stage, EventKind.REVOCATION_STARTED) == ["1 partitions"]
    assert reasons(stage, EventKind.MEMBER_EXPIRED) == [
        "first did not give up its partitions within 30000 ms"
    ]


def test_the_events_have_the_time_of_a_revocation() -> None:
    stage = Stage({"a": 2})
    first, second = Consumer(stage, "first"), Consumer(stage, "second")
    first.send_heartbeat()
    first.send_heartbeat()
    second.send_heartbeat()
    first.send_heartbeat()
    stage.tick(123)
    first.send_heartbeat()
    assert reasons(stage, EventKind.REVOKED) == ["after 123 ms"]


def test_changed_topics_are_the_reason_of_an_epoch() -> None:
    stage = Stage({"a": 2})
    stage.send_heartbeat("m")
    stage.topics({"a": 3})
    assert reasons(stage, EventKind.REBALANCE_STARTED)[-1] == "epoch 3: topics have changed"


def test_a_changed_subscription_is_the_reason_of_an_epoch() -> None:
    stage = Stage({"a": 2, "b": 2})
    epoch = stage.send_heartbeat("m").member_epoch
    stage.send_heartbeat("m", epoch, topics=["a", "b"])
    assert (EventKind.MEMBER_CHANGED, "m") in events_of(stage)


def test_the_number_of_events_is_limited_and_those_of_deleted_groups_are_dropped() -> None:
    stage = Stage({"a": 2})
    for _ in range(EVENT_COUNT_MAX):
        stage.send_heartbeat("m")
        stage.send_heartbeat("m", -1)
    assert len(events_of(stage)) == EVENT_COUNT_MAX
    assert stage.delete_group().error_code == 0
    assert stage.shard.consumers.events.newest("g") == ()
    assert stage.shard.consumers.events.timings("g").started_ms == -1


def test_heartbeats_that_change_nothing_add_no_events() -> None:
    stage = Stage({"a": 2})
    epoch = stage.send_heartbeat("m").member_epoch
    before = events_of(stage)
    for _ in range(3):
        stage.send_heartbeat("m", epoch)
    assert events_of(stage) == before


def test_events_of_a_share_group() -> None:
    stage = ShareStage({"a": 2})
    settle(
        stage, ShareConsumerMember(stage, "first"), second := ShareConsumerMember(stage, "second")
    )
    group = stage.explained("s")
    assert [(event.kind, event.member_id) for event in group.events][:3] == [
        (EventKind.MEMBER_JOINED, "first"),
        (EventKind.REBALANCE_STARTED, ""),
        (EventKind.TARGET_ASSIGNED, ""),
    ]
    whys = [event.reason for event in group.events if event.kind == EventKind.REBALANCE_STARTED]
    assert any("partitions have been made ready" in why for why in whys)
    stage.tick(44_000)
    second.send_heartbeat()
    stage.tick(2_000)
    stage.share("second", -1)
    gone = (EventKind.MEMBER_LEFT, EventKind.MEMBER_EXPIRED)
    left = [event for event in stage.explained("s").events if event.kind in gone]
    assert [(event.member_id, event.reason) for event in left] == [
        ("first", "first no heartbeat for 45000 ms"),
        ("second", "client at /127.0.0.1 left"),
    ]


def test_events_of_a_streams_group() -> None:
    stage = StreamsStage()
    first = StreamsThread(stage, "first")
    settle_threads(first)
    second = StreamsThread(stage, "second")
    second.send_heartbeat()
    first.send_heartbeat()
    stage.tick(70)
    first.send_heartbeat()
    second.send_heartbeat()
    assert (EventKind.MEMBER_JOINED, "second") in events_of(stage)
    assert reasons(stage, EventKind.REVOCATION_STARTED)[0].endswith(" tasks")
    assert reasons(stage, EventKind.REVOKED) == ["after 70 ms"]
    stage.send_streams_heartbeat("second", -1)
    assert reasons(stage, EventKind.MEMBER_LEFT) == ["client at /127.0.0.1 left"]
    stage.tick(60_000)
    assert reasons(stage, EventKind.MEMBER_EXPIRED)[-1].startswith("first no heartbeat for ")


def test_the_events_of_a_deleted_group_are_deleted() -> None:
    stage = ShareStage({"a": 1})
    settle(stage, ShareConsumerMember(stage, "m"))
    stage.share("m", -1)
    stage.delete_call("s")
    stage.keep_states()
    ShareConsumerMember(stage, "next").send_heartbeat()
    assert {event.member_id for event in stage.explained("s").events} <= {"", "next"}


def test_groups_with_members_get_an_event_when_they_are_loaded() -> None:
    consumers, shares, streams = Stage({"a": 1}), ShareStage({"a": 1}), StreamsStage()
    consumers.send_heartbeat("m")
    shares.share("m")
    streams.send_streams_heartbeat("m", 0)
    for stage, group in ((consumers, "g"), (shares, "s"), (streams, "g")):
        stage.reload()
        assert [event.kind for event in stage.explained(group).events] == [EventKind.LOADED]
    consumers.send_heartbeat("m", -1)
    consumers.reload()
    assert consumers.explained().events == []
