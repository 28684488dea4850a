"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through their handlers and coordinators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.handlers.consumer_groups import (
    handle_consumer_group_describe,
    handle_consumer_group_heartbeat,
)
from odradek.node.router.handlers.groups import handle_find_coordinator, handle_list_groups
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS
from tests.support.group_harness import GroupHarness

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    """With `__consumer_offsets`, and topics to read."""
    with GroupHarness(tmp_path, static={"group.consumer.assignment.interval.ms": "0"}) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("xa", 101, 2)
        harness.have_topic("xb", 102, 1)
        yield harness


def join(
    harness: GroupHarness,
    member_id: str = "m",
    *,
    group: str = "g",
    topics: list[str] | None = None,
    regex: str | None = None,
    version: int = 1,
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["xa"] if topics is None and regex is None else topics,
        subscribed_topic_regex=regex,
        topic_partitions=[],
    )
    return harness.call(handle_consumer_group_heartbeat, request, version)


def heartbeat(
    harness: GroupHarness, epoch: int, member_id: str = "m", *, group: str = "g"
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
    return harness.call(handle_consumer_group_heartbeat, request)


def describe(
    harness: GroupHarness, *groups: str, ops: bool = False
) -> list[ConsumerGroupDescribedGroup]:
    request = ConsumerGroupDescribeRequest(
        group_ids=list(groups), include_authorized_operations=ops
    )
    return harness.call(handle_consumer_group_describe, request).groups


def partition_count(response: ConsumerGroupHeartbeatResponse) -> int:
    assert response.assignment is not None
    return sum(len(topic.partitions) for topic in response.assignment.topic_partitions)


def test_a_member_joins_and_sends_heartbeats(harness: GroupHarness) -> None:
    joined = join(harness)
    assert (joined.error_code, joined.member_epoch, partition_count(joined)) == (0, 2, 2)
    assert heartbeat(harness, 2).error_code == ErrorCode.NONE
    assert join(harness, "", group="old", version=0).member_id


def test_a_member_continues_after_a_router_restart(harness: GroupHarness) -> None:
    join(harness)
    harness.restart_router()
    again = heartbeat(harness, 2)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, 2)


def test_errors_have_a_message(harness: GroupHarness) -> None:
    refused = heartbeat(harness, 5, "stranger")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Group g not found."
    assert join(harness, regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_regular_expression_matches_topics_as_they_are_created_and_deleted(
    harness: GroupHarness,
) -> None:
    assert partition_count(join(harness, regex="x.*")) == 3
    harness.have_topic("xc", 103, 4)
    harness.turn_loop()
    assert partition_count(heartbeat(harness, 2)) == 7


def test_topics_created_while_the_coordinator_moved_are_assigned(harness: GroupHarness) -> None:
    join(harness, regex="x.*")
    harness.coordinators.close()
    harness.have_topic("xc", 103, 4)
    harness.restart_router()
    heartbeat(harness, 2)
    [group] = describe(harness, "g")
    assert group.group_epoch == 3
    assert {each.topic_name for each in group.members[0].target_assignment.topic_partitions} == {
        "xa",
        "xb",
        "xc",
    }


def test_a_deleted_topic_is_revoked(harness: GroupHarness) -> None:
    join(harness, topics=["xa", "xb"])
    harness.drop_topic("xb")
    harness.turn_loop()
    assert [each.group_epoch for each in describe(harness, "g")] == [3]


def test_a_heartbeat_needs_read_on_the_group_and_describe_on_the_topics(
    harness: GroupHarness,
) -> None:
    harness.deny(AclOperation.READ, GROUP, "secret")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "xb")
    assert join(harness, group="secret").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert join(harness, topics=["xa", "xb"]).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # A regular expression matches only topics that the member may describe.
    assert partition_count(join(harness, regex="x.*")) == 2


def test_describing_needs_describe_on_the_group_and_all_its_topics(harness: GroupHarness) -> None:
    join(harness)
    join(harness, group="other", topics=["xb"])
    harness.deny(AclOperation.DESCRIBE, GROUP, "secret")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "xb")
    codes = [group.error_code for group in describe(harness, "g", "other", "secret", "none", "")]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    ]
    assert all(not group.members for group in describe(harness, "other"))


def test_authorized_operations_are_included_on_request(harness: GroupHarness) -> None:
    join(harness)
    assert describe(harness, "g")[0].authorized_operations == NO_AUTHORIZED_OPERATIONS
    assert describe(harness, "g", ops=True)[0].authorized_operations > 0


def test_group_configs_take_effect_at_once(harness: GroupHarness) -> None:
    join(harness)
    assert heartbeat(harness, 2).heartbeat_interval_ms == 200
    harness.controller.set_config(
        ConfigResourceType.GROUP, "g", consumer_heartbeat_interval_ms="6000"
    )
    harness.follow()
    assert heartbeat(harness, 2).heartbeat_interval_ms == 6_000


def test_the_heartbeat_rate_is_shared_by_the_members_of_all_groups(harness: GroupHarness) -> None:
    for number in range(60):
        join(harness, group=f"g{number}")
    assert heartbeat(harness, 2, group="g0").heartbeat_interval_ms == 300


def test_groups_can_be_listed_by_type(harness: GroupHarness) -> None:
    join(harness)
    listed = harness.call(handle_list_groups, ListGroupsRequest(types_filter=["consumer"])).groups
    assert [(each.group_id, each.group_type) for each in listed] == [("g", "consumer")]
