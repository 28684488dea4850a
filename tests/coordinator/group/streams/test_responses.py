"""The responses of StreamsGroupHeartbeat and StreamsGroupDescribe."""

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.streams_playbook import (
    STANDBY,
    StreamsStage,
    StreamsThread,
    settle_threads,
    subtopology,
    topology,
)


def test_the_response_has_the_endpoints_of_all_tasks() -> None:
    stage = StreamsStage({"in": 2, "small": 1})
    plan = topology(subtopology("0", "in", "small"))
    first = stage.send_streams_heartbeat("a", plan=plan, endpoint=("host-a", 80))
    [entry] = first.partitions_by_user_endpoint or []
    assert (entry.user_endpoint.host, entry.user_endpoint.port) == ("host-a", 80)
    assert entry.active_partitions == [
        TopicPartitions(name="in", partitions=[0, 1]),
        TopicPartitions(name="small", partitions=[0]),
    ]
    known = first.endpoint_information_epoch
    again = stage.send_streams_heartbeat("a", 2, endpoint_epoch=known)
    assert again.partitions_by_user_endpoint is None
    second = stage.send_streams_heartbeat(
        "b", plan=plan, endpoint=("host-b", 81), endpoint_epoch=known
    )
    assert second.endpoint_information_epoch == known + 1
    hosts = [each.user_endpoint.host for each in second.partitions_by_user_endpoint or []]
    assert hosts == ["host-a", "host-b"]


def test_members_without_endpoint_are_not_in_the_endpoints() -> None:
    stage = StreamsStage()
    answer = stage.send_streams_heartbeat("a")
    assert (answer.endpoint_information_epoch, answer.partitions_by_user_endpoint) == (0, [])


def test_endpoints_have_active_and_standby_partitions() -> None:
    stage = StreamsStage(settings=STANDBY)
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    stage.send_streams_heartbeat("a", a.epoch, endpoint=("host-a", 80))
    settle_threads(a, b)
    found = stage.send_streams_heartbeat("b", b.epoch).partitions_by_user_endpoint or []
    [entry] = found
    assert entry.standby_partitions == [
        TopicPartitions(name="words", partitions=sorted(index for _, index in a.standby))
    ]


def test_a_description_has_all_fields() -> None:
    stage = StreamsStage(settings=STANDBY)
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b", process="other")
    settle_threads(a, b)
    described = stage.describe_streams()
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Stable")
    assert described.group_epoch == described.assignment_epoch == a.epoch
    assert described.topology is not None
    first, second = described.topology.subtopologies or []
    assert (first.source_topics, first.repartition_sink_topics) == (["in"], ["words"])
    assert [(topic.name, topic.partitions) for topic in second.state_changelog_topics] == [
        ("counts", 3)
    ]
    assert [topic.name for topic in second.repartition_source_topics] == ["words"]
    members = {member.member_id: member for member in described.members}
    assert members["b"].process_id == "other"
    assert members["a"].client_host == "/127.0.0.1"
    assert members["a"].assignment == members["a"].target_assignment
    shown = {
        (tasks.subtopology_id, index)
        for tasks in members["a"].assignment.active_tasks
        for index in tasks.partitions
    }
    assert shown == a.active


def test_while_topics_are_missing_the_topology_is_described_as_sent() -> None:
    stage = StreamsStage({})
    stage.send_streams_heartbeat("m")
    described = stage.describe_streams()
    assert described.group_state == "NotReady"
    assert described.topology is not None
    [_, second] = described.topology.subtopologies or []
    assert [topic.partitions for topic in second.state_changelog_topics] == [0]
