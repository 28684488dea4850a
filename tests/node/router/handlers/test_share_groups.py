"""ShareGroupHeartbeat and ShareGroupDescribe through their handlers and coordinators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.features import SHARE_VERSION
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.coordinator.share.requests import ShareStateSummary
from odradek.node.bus.reply import start_coroutine
from odradek.node.router.handlers.groups import (
    handle_delete_groups,
    handle_describe_groups,
    handle_find_coordinator,
    handle_list_groups,
)
from odradek.node.router.handlers.share_groups import (
    handle_share_group_describe,
    handle_share_group_heartbeat,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from odradek.protocol.messages.share import (
    ShareGroupDescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, Uuid
from tests.support.group_harness import GroupHarness

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    """With `__consumer_offsets`, and topics to read."""
    with GroupHarness(tmp_path, static={"group.share.assignment.interval.ms": "0"}) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="s"), 0)
        harness.have_topic("xa", 101, 2)
        harness.have_topic("xb", 102, 1)
        have_share_groups(harness, 1)
        yield harness


def have_share_groups(harness: GroupHarness, level: int) -> None:
    harness.controller.write(FeatureLevelChanged(SHARE_VERSION, level))
    harness.follow()


def heartbeat(
    harness: GroupHarness,
    epoch: int = 0,
    member_id: str = "m",
    *,
    group: str = "s",
    topics: list[str] | None = None,
) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        subscribed_topic_names=["xa"] if topics is None and epoch == 0 else topics,
    )
    return harness.call(handle_share_group_heartbeat, request)


def describe(
    harness: GroupHarness, *groups: str, ops: bool = False
) -> list[ShareGroupDescribedGroup]:
    request = ShareGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=ops)
    return harness.call(handle_share_group_describe, request).groups


def partition_count(response: ShareGroupHeartbeatResponse) -> int:
    assert response.assignment is not None
    return sum(len(topic.partitions) for topic in response.assignment.topic_partitions)


def joined(harness: GroupHarness, *, group: str = "s", topics: list[str] | None = None) -> int:
    """A member joins and sends heartbeats until it has all partitions; returns its epoch."""
    epoch = heartbeat(harness, group=group, topics=topics).member_epoch
    for _ in range(200):
        response = heartbeat(harness, epoch, group=group)
        epoch = response.member_epoch
        if response.assignment is not None and response.assignment.topic_partitions:
            return epoch
        harness.turn_loop(0.005)
    raise AssertionError("no partitions were assigned")


def state_epoch_of(harness: GroupHarness, group: str, topic_id: Uuid, index: int) -> int:
    """The state epoch at the share coordinator, 0 without a state."""
    asked = start_coroutine(harness.services.share_persister.summaries(group, [(topic_id, index)]))
    summary = harness.result(asked)[topic_id, index]
    assert isinstance(summary, ShareStateSummary)
    return summary.state_epoch


def test_a_member_gets_partitions_once_their_states_are_initialized(
    harness: GroupHarness,
) -> None:
    first = heartbeat(harness)
    assert (first.error_code, first.member_epoch, partition_count(first)) == (0, 2, 0)
    assert joined(harness, topics=["xa", "xb"]) > 1
    again = heartbeat(harness)
    assert partition_count(again) == 2


def test_a_member_continues_after_a_router_restart(harness: GroupHarness) -> None:
    epoch = joined(harness)
    harness.restart_router()
    again = heartbeat(harness, epoch)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, epoch)
    assert partition_count(heartbeat(harness)) == 2


def test_pending_initializations_are_repeated_after_a_router_restart(
    harness: GroupHarness,
) -> None:
    heartbeat(harness)
    harness.restart_router()
    assert joined(harness) > 1


def test_a_topic_created_later_is_assigned(harness: GroupHarness) -> None:
    epoch = joined(harness, topics=["xa", "xc"])
    harness.have_topic("xc", 103, 4)
    for _ in range(200):
        response = heartbeat(harness, epoch)
        epoch = response.member_epoch
        if response.assignment is not None and partition_count(response) == 6:
            return
        harness.turn_loop(0.005)
    raise AssertionError("the new topic's partitions were not assigned")


def test_errors_have_a_message(harness: GroupHarness) -> None:
    refused = heartbeat(harness, 5, "stranger")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Share group s not found."
    assert heartbeat(harness, topics=[]).error_code == ErrorCode.INVALID_REQUEST


def test_groups_are_listed_described_and_deleted_with_their_states(harness: GroupHarness) -> None:
    joined(harness)
    request = ListGroupsRequest(types_filter=["share"], states_filter=["stable"])
    [listed] = harness.call(handle_list_groups, request).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == ("s", "share", "share")
    [described] = describe(harness, "s", ops=True)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert described.authorized_operations > 0
    assert [member.member_id for member in described.members] == ["m"]
    [classic] = harness.call(handle_describe_groups, DescribeGroupsRequest(groups=["s"])).groups
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.error_message == "Group s is not a classic group."
    delete = DeleteGroupsRequest(groups_names=["s"])
    [result] = harness.call(handle_delete_groups, delete).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    heartbeat(harness, -1)
    xa = harness.image.topics_by_name["xa"].topic_id
    assert state_epoch_of(harness, "s", xa, 0) > 0
    [result] = harness.call(handle_delete_groups, delete).results
    assert result.error_code == ErrorCode.NONE
    assert state_epoch_of(harness, "s", xa, 0) == 0
    assert harness.call(handle_list_groups, ListGroupsRequest()).groups == []


def test_each_group_is_described_by_itself(harness: GroupHarness) -> None:
    heartbeat(harness)
    codes = {group.group_id: group.error_code for group in describe(harness, "s", "", "none")}
    assert codes == {
        "s": ErrorCode.NONE,
        "": ErrorCode.INVALID_GROUP_ID,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_a_heartbeat_needs_read_on_the_group_and_describe_on_the_topics(
    harness: GroupHarness,
) -> None:
    harness.deny(AclOperation.READ, GROUP, "secret")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "xb")
    assert heartbeat(harness, group="secret").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (
        heartbeat(harness, topics=["xa", "xb"]).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    assert heartbeat(harness).error_code == ErrorCode.NONE


def test_describing_needs_describe_on_the_group_and_all_its_topics(harness: GroupHarness) -> None:
    joined(harness)
    joined(harness, group="other", topics=["xb"])
    harness.deny(AclOperation.DESCRIBE, GROUP, "secret")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "xb")
    described = describe(harness, "s", "other", "secret")
    assert [group.error_code for group in described] == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]
    assert described[1].members == []
    assert described[0].authorized_operations == NO_AUTHORIZED_OPERATIONS


def test_group_configs_take_effect_at_once(harness: GroupHarness) -> None:
    epoch = joined(harness)
    assert heartbeat(harness, epoch).heartbeat_interval_ms == 200
    harness.controller.set_config(ConfigResourceType.GROUP, "s", share_heartbeat_interval_ms="7000")
    harness.follow()
    assert heartbeat(harness, epoch).heartbeat_interval_ms == 7_000


def test_share_groups_can_be_switched_off(harness: GroupHarness) -> None:
    heartbeat(harness)
    have_share_groups(harness, 0)
    assert heartbeat(harness).error_code == ErrorCode.UNSUPPORTED_VERSION
    [group] = describe(harness, "s")
    assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
