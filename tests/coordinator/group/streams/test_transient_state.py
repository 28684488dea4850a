"""The state of a streams group that is in memory only."""

from odradek.coordinator.group.streams.topology import StatusCode
from odradek.coordinator.group.streams.transient_state import OFFSETS_MAX
from odradek.protocol.messages.streams import TaskOffset
from tests.support.streams_playbook import StreamsStage, StreamsThread, settle_threads


def test_a_shutdown_is_sent_to_all_members_until_the_group_is_empty() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    stage.send_streams_heartbeat("a", -1, shutdown=True)
    b.send_heartbeat()
    assert b.statuses == [StatusCode.SHUTDOWN_APPLICATION]
    stage.send_streams_heartbeat("b", -1)
    assert stage.send_streams_heartbeat("c").status == []


def test_the_first_member_that_requested_a_shutdown_is_named() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("a")
    stage.send_streams_heartbeat("b")
    stage.streams_call("a", 2, shutdown=True)
    [status] = stage.send_streams_heartbeat("b", 3, shutdown=True).status or []
    assert "member a encountered" in status.status_detail


def test_the_newest_task_offsets_are_stored() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    reported = [TaskOffset(subtopology_id="1", partition=0, offset=7)]
    stage.streams_call("m", 2, offsets=reported)
    stage.send_streams_heartbeat("m", 2)
    assert stage.describe_streams().members[0].task_offsets == reported
    stage.reload()
    assert stage.describe_streams().members[0].task_offsets == []


def test_a_group_whose_first_records_failed_leaves_nothing() -> None:
    stage = StreamsStage()
    assert stage.send_streams_heartbeat("m", plan=None, group="").error_code
    stage.streams_call("m", plan=None)
    assert not stage.shard.streams._transient


def test_the_number_of_stored_task_offsets_is_limited() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    reported = [
        TaskOffset(subtopology_id="1", partition=index, offset=7)
        for index in range(OFFSETS_MAX + 1)
    ]
    stage.streams_call("m", 2, offsets=reported)
    assert stage.describe_streams().members[0].task_offsets == reported[:OFFSETS_MAX]
