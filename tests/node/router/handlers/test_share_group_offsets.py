"""Describe, alter and delete start offsets of share groups, through handlers and coordinators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.features import SHARE_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.coordinator.share.requests import ReadShareState, ShareKey, WriteShareState
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.share_group_offsets import (
    handle_alter_share_group_offsets,
    handle_delete_share_group_offsets,
    handle_describe_share_group_offsets,
)
from odradek.node.router.handlers.share_groups import handle_share_group_heartbeat
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.partitions import (
    PartitionOffset,
    TopicName,
    TopicOffsets,
    TopicPartitions,
)
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponseGroup,
    ShareGroupHeartbeatRequest,
)
from tests.support.group_harness import GroupHarness
from tests.support.stores import batch_of

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
Where = dict[tuple[str, int], tuple[int, int, int]]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    """With `__consumer_offsets`, and topics to read."""
    with GroupHarness(tmp_path, static={"group.share.assignment.interval.ms": "0"}) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="s"), 0)
        harness.have_topic("a", 101, 2)
        harness.have_topic("b", 102, 1)
        harness.controller.write(FeatureLevelChanged(SHARE_VERSION, 1))
        harness.follow()
        yield harness


def alter(
    harness: GroupHarness, offsets: dict[str, dict[int, int]], *, group: str = "s"
) -> AlterShareGroupOffsetsResponse:
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            TopicOffsets(
                name=name,
                partitions=[
                    PartitionOffset(partition_index=index, offset=offset)
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in offsets.items()
        ],
    )
    return harness.call(handle_alter_share_group_offsets, request)


def codes(response: AlterShareGroupOffsetsResponse) -> dict[tuple[str, int], int]:
    assert response.error_code == ErrorCode.NONE, response
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.responses
        for partition in topic.partitions
    }


def delete_offsets(
    harness: GroupHarness, *topics: str, group: str = "s"
) -> DeleteShareGroupOffsetsResponse:
    request = DeleteShareGroupOffsetsRequest(
        group_id=group,
        topics=[TopicName(name=name) for name in topics],
    )
    return harness.call(handle_delete_share_group_offsets, request)


def describe(
    harness: GroupHarness,
    topics: dict[str, list[int]] | None = None,
    *,
    group: str = "s",
    version: int = 1,
) -> DescribeShareGroupOffsetsResponseGroup:
    asked = DescribeShareGroupOffsetsRequestGroup(
        group_id=group,
        topics=None
        if topics is None
        else [
            TopicPartitions(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    [found] = harness.call(handle_describe_share_group_offsets, request, version).groups
    return found


def where(found: DescribeShareGroupOffsetsResponseGroup) -> Where:
    """(start offset, lag, error code) by topic and partition."""
    assert found.error_code == ErrorCode.NONE, found
    return {
        (topic.topic_name, partition.partition_index): (
            partition.start_offset,
            partition.lag,
            partition.error_code,
        )
        for topic in found.topics
        for partition in topic.partitions
    }


def heartbeat(harness: GroupHarness, epoch: int) -> int:
    request = ShareGroupHeartbeatRequest(
        group_id="s",
        member_id="m",
        member_epoch=epoch,
        subscribed_topic_names=["a"] if epoch == 0 else None,
    )
    return harness.call(handle_share_group_heartbeat, request).error_code


def test_altered_offsets_are_described_with_the_lag(harness: GroupHarness) -> None:
    harness.append("a", batch_of(5))
    assert codes(alter(harness, {"a": {0: 2, 1: 0, 7: 1}, "none": {0: 1}})) == {
        ("a", 0): ErrorCode.NONE,
        ("a", 1): ErrorCode.NONE,
        ("a", 7): UNKNOWN,
        ("none", 0): UNKNOWN,
    }
    found = where(describe(harness))
    assert found == {("a", 0): (2, 3, 0), ("a", 1): (0, 0, 0)}
    old = where(describe(harness, version=0))
    assert {told[1] for told in old.values()} == {-1}


def test_the_lag_counts_committed_records_that_are_not_delivered(harness: GroupHarness) -> None:
    harness.append("a", batch_of(9))
    alter(harness, {"a": {0: 2}})
    states, topic_id = harness.services.share_persister, harness.image.topics_by_name["a"].topic_id
    known = harness.result(states.call(ReadShareState(ShareKey("s", topic_id, 0), 0)))
    harness.result(
        states.call(
            WriteShareState(
                ShareKey("s", topic_id, 0),
                state_epoch=known.state_epoch,
                leader_epoch=0,
                start_offset=3,
                delivery_complete_count=4,
                batches=(),
            )
        )
    )
    assert where(describe(harness)) == {("a", 0): (3, 9 - 3 - 4, 0)}


def test_a_partition_that_was_never_read_has_no_offset(harness: GroupHarness) -> None:
    assert where(describe(harness)) == {}
    asked = {"a": [0], "none": [0]}
    assert where(describe(harness, asked)) == {("a", 0): (-1, -1, 0), ("none", 0): (-1, -1, 0)}


def test_offsets_of_topics_are_deleted(harness: GroupHarness) -> None:
    alter(harness, {"a": {0: 2}, "b": {0: 1}})
    response = delete_offsets(harness, "a", "none")
    assert response.error_code == ErrorCode.NONE
    assert [(topic.topic_name, topic.error_code) for topic in response.responses] == [
        ("a", ErrorCode.NONE),
        ("none", UNKNOWN),
    ]
    assert set(where(describe(harness))) == {("b", 0)}
    assert delete_offsets(harness, "a", group="nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_with_members_cannot_be_changed(harness: GroupHarness) -> None:
    assert heartbeat(harness, 0) == ErrorCode.NONE
    assert alter(harness, {"a": {0: 1}}).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete_offsets(harness, "a").error_code == ErrorCode.NON_EMPTY_GROUP
    assert heartbeat(harness, -1) == ErrorCode.NONE
    assert codes(alter(harness, {"a": {0: 1}})) == {("a", 0): ErrorCode.NONE}


def test_an_empty_group_id_is_invalid(harness: GroupHarness) -> None:
    for response in (
        alter(harness, {"a": {0: 1}}, group=""),
        delete_offsets(harness, "a", group=""),
        describe(harness, group=""),
    ):
        assert response.error_code == ErrorCode.INVALID_GROUP_ID
        assert response.error_message


def test_an_empty_request_has_an_empty_response(harness: GroupHarness) -> None:
    assert alter(harness, {}).responses == []
    assert delete_offsets(harness).responses == []
    assert describe(harness, {}).topics == []


def test_permissions_on_the_group_and_on_the_topics_are_needed(harness: GroupHarness) -> None:
    alter(harness, {"a": {0: 2}, "b": {0: 1}})
    harness.deny(AclOperation.READ, TOPIC, "b")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes(alter(harness, {"a": {0: 2}, "b": {0: 1}})) == {("a", 0): 0, ("b", 0): denied}
    assert [topic.error_code for topic in delete_offsets(harness, "b").responses] == [denied]
    harness.deny(AclOperation.DESCRIBE, TOPIC, "b")
    assert set(where(describe(harness))) == {("a", 0)}
    assert where(describe(harness, {"b": [0]})) == {("b", 0): (-1, -1, denied)}
    for operation, ask in (
        (AclOperation.READ, lambda: alter(harness, {"a": {0: 1}}, group="secret")),
        (AclOperation.DELETE, lambda: delete_offsets(harness, "a", group="secret")),
        (AclOperation.DESCRIBE, lambda: describe(harness, group="secret")),
    ):
        harness.deny(operation, GROUP, "secret")
        assert ask().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_share_groups_can_be_switched_off(harness: GroupHarness) -> None:
    harness.controller.write(FeatureLevelChanged(SHARE_VERSION, 0))
    harness.follow()
    for response in (
        alter(harness, {"a": {0: 1}}),
        delete_offsets(harness, "a"),
        describe(harness),
    ):
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_very_many_groups_are_described_in_turns(harness: GroupHarness) -> None:
    names = [f"g{index}" for index in range(2_000)]
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=name) for name in names]
    )
    answer = harness.call_in_turns(handle_describe_share_group_offsets, request, harness.loop)
    assert [group.group_id for group in answer.groups] == names
