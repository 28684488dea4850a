"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through their handlers and coordinators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.authorizer import NOT_ASKED, Operation, ResourceType
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
from tests.support.group_room import GroupRoom

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def room(tmp_path: Path) -> Iterator[GroupRoom]:
    """With the topic that holds the groups, and topics to read."""
    with GroupRoom(tmp_path, static={"group.consumer.assignment.interval.ms": "0"}) as room:
        room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        room.have_topic("xa", 101, 2)
        room.have_topic("xb", 102, 1)
        yield room


def join(
    room: GroupRoom,
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
    return room.call(handle_consumer_group_heartbeat, request, version)


def beat(
    room: GroupRoom, epoch: int, member_id: str = "m", *, group: str = "g"
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
    return room.call(handle_consumer_group_heartbeat, request)


def describe(room: GroupRoom, *groups: str, ops: bool = False) -> list[ConsumerGroupDescribedGroup]:
    request = ConsumerGroupDescribeRequest(
        group_ids=list(groups), include_authorized_operations=ops
    )
    return room.call(handle_consumer_group_describe, request).groups


def partition_count(response: ConsumerGroupHeartbeatResponse) -> int:
    assert response.assignment is not None
    return sum(len(topic.partitions) for topic in response.assignment.topic_partitions)


def test_a_member_joins_and_goes_on(room: GroupRoom) -> None:
    joined = join(room)
    assert (joined.error_code, joined.member_epoch, partition_count(joined)) == (0, 1, 2)
    assert beat(room, 1).error_code == ErrorCode.NONE
    assert join(room, "", group="old", version=0).member_id


def test_a_member_goes_on_when_the_router_was_restarted(room: GroupRoom) -> None:
    join(room)
    room.restart_router()
    again = beat(room, 1)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, 1)


def test_errors_come_with_a_message(room: GroupRoom) -> None:
    refused = beat(room, 5, "stranger")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Group g not found."
    assert join(room, regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_expression_stands_for_topics_as_they_come_and_go(room: GroupRoom) -> None:
    assert partition_count(join(room, regex="x.*")) == 3
    room.have_topic("xc", 103, 4)
    room.turn_loop()
    assert partition_count(beat(room, 1)) == 7


def test_topics_that_were_made_while_the_coordinator_moved_are_found(room: GroupRoom) -> None:
    join(room, regex="x.*")
    room.coordinators.close()
    room.have_topic("xc", 103, 4)
    room.restart_router()
    beat(room, 1)
    [group] = describe(room, "g")
    assert group.group_epoch == 2
    assert {each.topic_name for each in group.members[0].target_assignment.topic_partitions} == {
        "xa",
        "xb",
        "xc",
    }


def test_a_topic_that_is_dropped_is_taken_away(room: GroupRoom) -> None:
    join(room, topics=["xa", "xb"])
    room.drop_topic("xb")
    room.turn_loop()
    assert [each.group_epoch for each in describe(room, "g")] == [2]


def test_the_group_must_be_readable_and_the_topics_must_be_visible(room: GroupRoom) -> None:
    room.deny(Operation.READ, GROUP, "secret")
    room.deny(Operation.DESCRIBE, TOPIC, "xb")
    assert join(room, group="secret").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert join(room, topics=["xa", "xb"]).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # An expression stands for what its author may see.
    assert partition_count(join(room, regex="x.*")) == 2


def test_describing_needs_the_group_and_all_of_its_topics(room: GroupRoom) -> None:
    join(room)
    join(room, group="other", topics=["xb"])
    room.deny(Operation.DESCRIBE, GROUP, "secret")
    room.deny(Operation.DESCRIBE, TOPIC, "xb")
    codes = [group.error_code for group in describe(room, "g", "other", "secret", "none", "")]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    ]
    assert all(not group.members for group in describe(room, "other"))


def test_operations_are_told_to_who_asks_for_them(room: GroupRoom) -> None:
    join(room)
    assert describe(room, "g")[0].authorized_operations == NOT_ASKED
    assert describe(room, "g", ops=True)[0].authorized_operations > 0


def test_settings_of_a_group_hold_from_when_they_are_set(room: GroupRoom) -> None:
    join(room)
    assert beat(room, 1).heartbeat_interval_ms == 200
    room.controller.set_config(ConfigResourceType.GROUP, "g", consumer_heartbeat_interval_ms="6000")
    room.follow()
    assert beat(room, 1).heartbeat_interval_ms == 6_000


def test_members_of_all_groups_share_the_rate_of_heartbeats(room: GroupRoom) -> None:
    for number in range(60):
        join(room, group=f"g{number}")
    assert beat(room, 1, group="g0").heartbeat_interval_ms == 300


def test_groups_are_listed_by_their_type(room: GroupRoom) -> None:
    join(room)
    listed = room.call(handle_list_groups, ListGroupsRequest(types_filter=["consumer"])).groups
    assert [(each.group_id, each.group_type) for each in listed] == [("g", "consumer")]
