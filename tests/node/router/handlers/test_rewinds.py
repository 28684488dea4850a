"""Rewinds and snapshots through their handlers: positions, permissions, errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.rewinds import (
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
from odradek.protocol.messages.rewinds import (
    AlterSnapshotRequest,
    AlterSnapshotResponse,
    DescribeRewindsRequest,
    DescribeRewindsResponse,
    RewindGroupRequest,
    RewindGroupRequestPartition,
    RewindGroupRequestTopic,
    RewindGroupResponse,
)
from tests.support.group_harness import GroupHarness
from tests.support.stores import NOW_MS, batch_of

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1, partitions=2)
        for partition in (0, 1):
            # Ten records, a second apart; the last one is a minute old.
            harness.append(
                "t",
                *(batch_of(1, timestamp=NOW_MS - 69_000 + 1_000 * at) for at in range(10)),
                partition=partition,
            )
        commit(harness, 8)
        yield harness


def commit(harness: GroupHarness, offset: int) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index in (0, 1)
    ]
    topic = OffsetCommitRequestTopic(name="t", partitions=partitions)
    harness.call(handle_offset_commit, OffsetCommitRequest(group_id="g", topics=[topic]), 9)


def rewind(
    harness: GroupHarness,
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
    return harness.call(handle_rewind_group, request)


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
def test_positions_are_limited_to_the_log(
    harness: GroupHarness, kind: int, position: int, offset: int
) -> None:
    harness.now_ms = NOW_MS
    assert offsets(rewind(harness, kind, position)) == {0: (8, offset), 1: (8, offset)}


def test_a_single_partition_can_be_rewound(harness: GroupHarness) -> None:
    assert offsets(rewind(harness, partition=1)) == {1: (8, 0)}


def test_a_dry_run_changes_nothing(harness: GroupHarness) -> None:
    assert offsets(rewind(harness, dry_run=True)) == offsets(rewind(harness, dry_run=True))


def undo(
    harness: GroupHarness, target: int = TO_BEFORE, rewind_id: bytes = bytes(16)
) -> RewindGroupResponse:
    request = RewindGroupRequest(group_id="g", target=target, rewind_id=rewind_id)
    return harness.call(handle_rewind_group, request)


def test_a_rewind_is_undone_once(harness: GroupHarness) -> None:
    rewind(harness)
    assert offsets(undo(harness, rewind_id=b"1" * 16)) == {0: (0, 8), 1: (0, 8)}
    # The response was lost.
    assert offsets(undo(harness, rewind_id=b"1" * 16)) == {0: (0, 8), 1: (0, 8)}
    assert undo(harness).error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert undo(harness, TO_WITHDRAW).error_code == ErrorCode.INVALID_REQUEST


def snapshot(
    harness: GroupHarness, name: str = "s", *, deletion: bool = False
) -> AlterSnapshotResponse:
    request = AlterSnapshotRequest(group_id="g", name=name, is_deletion=deletion)
    return harness.call(handle_alter_snapshot, request)


def to_snapshot(harness: GroupHarness, *partitions: int) -> RewindGroupResponse:
    topics = [
        RewindGroupRequestTopic(
            name="t",
            partitions=[RewindGroupRequestPartition(partition_index=at) for at in partitions],
        )
    ]
    request = RewindGroupRequest(
        group_id="g", target=TO_SNAPSHOT, snapshot="s", topics=topics if partitions else None
    )
    return harness.call(handle_rewind_group, request)


def test_a_group_can_be_rewound_to_a_snapshot_or_a_part_of_it(harness: GroupHarness) -> None:
    assert len(snapshot(harness).topics[0].partitions) == 2
    commit(harness, 10)
    assert offsets(to_snapshot(harness, 1)) == {1: (10, 8)}
    assert offsets(to_snapshot(harness)) == {0: (10, 8), 1: (8, 8)}
    assert snapshot(harness, deletion=True).error_code == ErrorCode.NONE
    assert to_snapshot(harness).error_code == ErrorCode.RESOURCE_NOT_FOUND


def describe(harness: GroupHarness, group: str = "g") -> DescribeRewindsResponse:
    return harness.call(handle_describe_rewinds, DescribeRewindsRequest(group_id=group))


def test_undo_points_and_snapshots_are_described(harness: GroupHarness) -> None:
    snapshot(harness)
    rewind(harness, position=2)
    rewind(harness, position=5)
    told = describe(harness)
    assert not told.is_under_way
    assert [known.name for known in told.snapshots] == ["s"]
    assert [(known.name, known.topics[0].partitions[0].offset) for known in told.undo_points] == [
        ("2", 2),
        ("1", 8),
    ]
    assert describe(harness, "h").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "position"),
    [(4, 0), (-1, 0), (AT_OFFSET, -1), (AT_TIME, -3), (BY_DURATION, -1)],
)
def test_an_invalid_position_is_refused(harness: GroupHarness, kind: int, position: int) -> None:
    assert rewind(harness, kind, position).error_code == ErrorCode.INVALID_REQUEST


def test_unknown_topics_and_partitions_are_named(harness: GroupHarness) -> None:
    for refused in (rewind(harness, topic="x"), rewind(harness, partition=2)):
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (topic,) = refused.topics
        assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rewind(harness, topic="x").error_message == "Topic 'x' does not exist."
    assert rewind(harness, partition=2).error_message == "Partition t-2 does not exist."


def test_partitions_that_are_not_in_the_snapshot_are_refused(harness: GroupHarness) -> None:
    snapshot(harness)
    harness.have_topic("u", 2, partitions=1)
    rewind(harness, topic="u")
    refused = to_snapshot(harness, 7)
    assert refused.error_message == "Snapshot s contains none of these partitions."
    harness.drop_topic("t")
    assert to_snapshot(harness).error_message == "The topics of snapshot s do not exist any more."


def test_a_rewind_of_deleted_topics_does_not_block_others(
    harness: GroupHarness,
) -> None:
    harness.have_topic("u", 2, partitions=1)
    rewind(harness, topic="u")
    rewind(harness, position=3)
    # There is a new topic of that name.
    harness.drop_topic("t")
    harness.have_topic("t", 3, partitions=2)
    assert undo(harness).topics == []
    assert [topic.name for topic in undo(harness).topics] == ["u"]


@pytest.mark.parametrize(
    "request_",
    [
        RewindGroupRequest(group_id="g"),
        RewindGroupRequest(group_id="g", target=4),
        RewindGroupRequest(group_id="g", target=TO_BEFORE, topics=[]),
    ],
)
def test_an_incomplete_or_contradictory_request_is_refused(
    harness: GroupHarness, request_: RewindGroupRequest
) -> None:
    response = harness.call(handle_rewind_group, request_)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message


def test_rewinding_needs_the_permissions_of_offset_commit(harness: GroupHarness) -> None:
    snapshot(harness)
    harness.deny(AclOperation.READ, TOPIC, "t")
    refused = rewind(harness)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert {at.error_code for at in refused.topics[0].partitions} == {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    harness.deny(AclOperation.READ, GROUP, "g")
    assert rewind(harness).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert snapshot(harness, "s2").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    harness.deny(AclOperation.DESCRIBE, TOPIC, "t")
    assert describe(harness).snapshots[0].topics == []
    harness.deny(AclOperation.DESCRIBE, GROUP, "g")
    assert describe(harness).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_too_many_partitions_are_refused_before_log_bounds_are_looked_up(
    harness: GroupHarness,
) -> None:
    every = RewindGroupRequestPartition(partition_index=ALL_PARTITIONS)
    topic = RewindGroupRequestTopic(name="t", partitions=[every] * 10_000)
    response = harness.call(handle_rewind_group, RewindGroupRequest(group_id="g", topics=[topic]))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message == "At most 2000 partitions can be rewound at once."
