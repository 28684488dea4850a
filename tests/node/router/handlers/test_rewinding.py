"""Rewinds and snapshots through their handlers: positions, rights, refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.authorizer import Operation, ResourceType
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.rewinding import (
    ALL_PARTITIONS,
    AT_OFFSET,
    AT_TIME,
    BY_DURATION,
    BY_RECORDS,
    TO_BEFORE,
    TO_SNAPSHOT,
    TO_WITHDRAW,
    handle_alter_snapshot,
    handle_describe_rewinds,
    handle_rewind_group,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.odradek import (
    AlterSnapshotRequest,
    AlterSnapshotResponse,
    DescribeRewindsRequest,
    DescribeRewindsResponse,
    RewindGroupRequest,
    RewindGroupRequestPartition,
    RewindGroupRequestTopic,
    RewindGroupResponse,
)
from tests.support.group_room import GroupRoom
from tests.support.stores import NOW_MS, batch_of

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def room(tmp_path: Path) -> Iterator[GroupRoom]:
    with GroupRoom(tmp_path) as room:
        room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        room.have_topic("t", 1, partitions=2)
        for partition in (0, 1):
            # Ten records, a second apart; the last one is a minute old.
            room.append(
                "t",
                *(batch_of(1, timestamp=NOW_MS - 69_000 + 1_000 * at) for at in range(10)),
                partition=partition,
            )
        commit(room, 8)
        yield room


def commit(room: GroupRoom, offset: int) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index in (0, 1)
    ]
    topic = OffsetCommitRequestTopic(name="t", partitions=partitions)
    room.call(handle_offset_commit, OffsetCommitRequest(group_id="g", topics=[topic]), 9)


def rewind(
    room: GroupRoom,
    kind: int = AT_OFFSET,
    position: int = 0,
    *,
    partition: int = -1,
    topic: str = "t",
    dry_run: bool = False,
) -> RewindGroupResponse:
    at = RewindGroupRequestPartition(
        partition_index=partition, position_kind=kind, position=position
    )
    request = RewindGroupRequest(
        group_id="g",
        topics=[RewindGroupRequestTopic(name=topic, partitions=[at])],
        is_dry_run=dry_run,
    )
    return room.call(handle_rewind_group, request)


def offsets(response: RewindGroupResponse) -> dict[int, tuple[int, int]]:
    assert response.error_code == ErrorCode.NONE, response.error_message
    (topic,) = response.topics
    return {at.partition_index: (at.previous_offset, at.actual_offset) for at in topic.partitions}


@pytest.mark.parametrize(
    ("kind", "position", "offset"),
    [
        (AT_OFFSET, 3, 3),
        (AT_OFFSET, 99, 10),
        (AT_TIME, -2, 0),
        (AT_TIME, -1, 10),
        (AT_TIME, NOW_MS - 65_000, 4),
        (AT_TIME, NOW_MS, 10),
        (BY_RECORDS, -3, 5),
        (BY_RECORDS, 99, 10),
        (BY_DURATION, 62_000, 7),
        (BY_DURATION, 2**62, 0),
    ],
)
def test_positions_become_offsets_that_the_log_has(
    room: GroupRoom, kind: int, position: int, offset: int
) -> None:
    room.now_ms = NOW_MS
    assert offsets(rewind(room, kind, position)) == {0: (8, offset), 1: (8, offset)}


def test_one_partition_is_rewound_alone(room: GroupRoom) -> None:
    assert offsets(rewind(room, partition=1)) == {1: (8, 0)}


def test_a_dry_run_changes_nothing(room: GroupRoom) -> None:
    assert offsets(rewind(room, dry_run=True)) == offsets(rewind(room, dry_run=True))


def undo(
    room: GroupRoom, target: int = TO_BEFORE, rewind_id: bytes = bytes(16)
) -> RewindGroupResponse:
    request = RewindGroupRequest(group_id="g", target=target, rewind_id=rewind_id)
    return room.call(handle_rewind_group, request)


def test_a_rewind_is_undone_once(room: GroupRoom) -> None:
    rewind(room)
    assert offsets(undo(room, rewind_id=b"1" * 16)) == {0: (0, 8), 1: (0, 8)}
    # Its answer was lost.
    assert offsets(undo(room, rewind_id=b"1" * 16)) == {0: (0, 8), 1: (0, 8)}
    assert undo(room).error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert undo(room, TO_WITHDRAW).error_code == ErrorCode.INVALID_REQUEST


def snapshot(room: GroupRoom, name: str = "s", *, deletion: bool = False) -> AlterSnapshotResponse:
    request = AlterSnapshotRequest(group_id="g", name=name, is_deletion=deletion)
    return room.call(handle_alter_snapshot, request)


def to_snapshot(room: GroupRoom, *partitions: int) -> RewindGroupResponse:
    topics = [
        RewindGroupRequestTopic(
            name="t",
            partitions=[RewindGroupRequestPartition(partition_index=at) for at in partitions],
        )
    ]
    request = RewindGroupRequest(
        group_id="g", target=TO_SNAPSHOT, snapshot="s", topics=topics if partitions else None
    )
    return room.call(handle_rewind_group, request)


def test_a_snapshot_can_be_returned_to_whole_or_in_part(room: GroupRoom) -> None:
    assert len(snapshot(room).topics[0].partitions) == 2
    commit(room, 10)
    assert offsets(to_snapshot(room, 1)) == {1: (10, 8)}
    assert offsets(to_snapshot(room)) == {0: (10, 8), 1: (8, 8)}
    assert snapshot(room, deletion=True).error_code == ErrorCode.NONE
    assert to_snapshot(room).error_code == ErrorCode.RESOURCE_NOT_FOUND


def describe(room: GroupRoom, group: str = "g") -> DescribeRewindsResponse:
    return room.call(handle_describe_rewinds, DescribeRewindsRequest(group_id=group))


def test_what_can_be_gone_back_to_is_told(room: GroupRoom) -> None:
    snapshot(room)
    rewind(room, position=2)
    rewind(room, position=5)
    told = describe(room)
    assert not told.is_under_way
    assert [known.name for known in told.snapshots] == ["s"]
    assert [(known.name, known.topics[0].partitions[0].offset) for known in told.undo_points] == [
        ("2", 2),
        ("1", 8),
    ]
    assert describe(room, "h").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "position"),
    [(4, 0), (-1, 0), (AT_OFFSET, -1), (AT_TIME, -3), (BY_DURATION, -1)],
)
def test_a_position_that_is_none_is_refused(room: GroupRoom, kind: int, position: int) -> None:
    assert rewind(room, kind, position).error_code == ErrorCode.INVALID_REQUEST


def test_what_is_not_there_is_named(room: GroupRoom) -> None:
    for refused in (rewind(room, topic="x"), rewind(room, partition=2)):
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (topic,) = refused.topics
        assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rewind(room, topic="x").error_message == "There is no topic x."
    assert rewind(room, partition=2).error_message == "There is no t-2."


def test_what_a_snapshot_does_not_have_is_told(room: GroupRoom) -> None:
    snapshot(room)
    room.have_topic("u", 2, partitions=1)
    rewind(room, topic="u")
    refused = to_snapshot(room, 7)
    assert refused.error_message == "Snapshot s has none of these partitions."
    room.drop_topic("t")
    assert to_snapshot(room).error_message == "The topics of snapshot s are no more."


def test_a_rewind_of_topics_that_are_no_more_does_not_stand_before_others(room: GroupRoom) -> None:
    room.have_topic("u", 2, partitions=1)
    rewind(room, topic="u")
    rewind(room, position=3)
    # A topic of that name is there again, and is another.
    room.drop_topic("t")
    room.have_topic("t", 3, partitions=2)
    assert undo(room).topics == []
    assert [topic.name for topic in undo(room).topics] == ["u"]


@pytest.mark.parametrize(
    "request_",
    [
        RewindGroupRequest(group_id="g"),
        RewindGroupRequest(group_id="g", target=4),
        RewindGroupRequest(group_id="g", target=TO_BEFORE, topics=[]),
    ],
)
def test_a_request_that_says_too_little_or_too_much_is_refused(
    room: GroupRoom, request_: RewindGroupRequest
) -> None:
    response = room.call(handle_rewind_group, request_)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message


def test_rewinding_needs_the_rights_that_committing_needs(room: GroupRoom) -> None:
    snapshot(room)
    room.deny(Operation.READ, TOPIC, "t")
    refused = rewind(room)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert {at.error_code for at in refused.topics[0].partitions} == {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    room.deny(Operation.READ, GROUP, "g")
    assert rewind(room).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert snapshot(room, "s2").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    room.deny(Operation.DESCRIBE, TOPIC, "t")
    assert describe(room).snapshots[0].topics == []
    room.deny(Operation.DESCRIBE, GROUP, "g")
    assert describe(room).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_request_for_too_many_partitions_is_refused_before_logs_are_asked(
    room: GroupRoom,
) -> None:
    every = RewindGroupRequestPartition(partition_index=ALL_PARTITIONS)
    topic = RewindGroupRequestTopic(name="t", partitions=[every] * 10_000)
    response = room.call(handle_rewind_group, RewindGroupRequest(group_id="g", topics=[topic]))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message == "At most 2000 partitions can be rewound at once."
