"""The APIs of classic groups through their handlers: permissions and versions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.handlers.groups import (
    handle_delete_groups,
    handle_describe_groups,
    handle_find_coordinator,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_list_groups,
    handle_sync_group,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS
from tests.support.group_harness import GroupHarness

GROUP = ResourceType.GROUP


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        yield harness


@pytest.fixture
def ready(harness: GroupHarness) -> GroupHarness:
    """With `__consumer_offsets`."""
    harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
    return harness


def join_request(group: str = "g", member: str = "", *, metadata: bytes = b"m") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def join(harness: GroupHarness, group: str = "g", *, version: int = 9) -> JoinGroupResponse:
    told = harness.call(handle_join_group, join_request(group), version)
    if told.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return told
    return harness.call(handle_join_group, join_request(group, told.member_id), version)


def sync_request(joined: JoinGroupResponse, group: str = "g") -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"all")
            for member in joined.members
        ],
    )


# -- FindCoordinator ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_first_find_coordinator_creates_the_topic(harness: GroupHarness, version: int) -> None:
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    if version < 4:
        request.coordinator_keys = []
    else:
        request.key = ""
    found = harness.call(handle_find_coordinator, request, version)
    places = found.coordinators if version >= 4 else [found]
    for place in places:
        assert (place.error_code, place.node_id) == (ErrorCode.NONE, 0)
        assert (place.host, place.port) == ("host-0", 9092)
    assert [place.key for place in found.coordinators] == ([] if version < 4 else ["g", "h"])
    topic = harness.image.topics_by_name["__consumer_offsets"]
    assert len(topic.partitions) == 5
    configs = harness.image.configs.of(ConfigResourceType.TOPIC, "__consumer_offsets")
    assert configs["cleanup.policy"] == "compact"


def test_concurrent_find_coordinators_create_one_topic(harness: GroupHarness) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    answers = [harness.begin(handle_find_coordinator, request, 6) for _ in range(5)]
    for answer in answers:
        assert harness.wait(answer).coordinators[0].error_code == ErrorCode.NONE


def test_without_the_topic_the_coordinator_is_not_available(harness: GroupHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    found = harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 3)
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (found.node_id, found.host, found.port) == (-1, "", -1)
    harness.link.failure = None
    found = harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 3)
    assert found.error_code == ErrorCode.NONE


@pytest.mark.parametrize("key_type", [2, 7])
def test_an_unknown_key_type_is_an_invalid_request(harness: GroupHarness, key_type: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
    [found] = harness.call(handle_find_coordinator, request, 6).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert found.error_message


def test_each_denied_key_has_its_own_error(harness: GroupHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, GROUP, "secret")
    request = FindCoordinatorRequest(coordinator_keys=["secret", "g"])
    found = harness.call(handle_find_coordinator, request, 6).coordinators
    assert [place.error_code for place in found] == [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.NONE,
    ]


# -- members --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_sends_heartbeats_and_leaves_in_every_version(
    ready: GroupHarness, version: int
) -> None:
    joined = join(ready, version=version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("test-")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    synced = ready.call(handle_sync_group, sync_request(joined), min(version, 5))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert ready.call(handle_heartbeat, heartbeat, min(version, 4)).error_code == ErrorCode.NONE
    leave = LeaveGroupRequest(group_id="g")
    if version <= 2:
        leave.member_id = joined.member_id
    else:
        leave.members = [MemberIdentity(member_id=joined.member_id)]
    left = ready.call(handle_leave_group, leave, min(version, 5))
    assert left.error_code == ErrorCode.NONE
    assert ready.call(handle_heartbeat, heartbeat, min(version, 4)).error_code == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_member_ids_are_new_each_time(ready: GroupHarness) -> None:
    ids = {
        ready.call(handle_join_group, join_request(f"g{index}"), 9).member_id for index in range(5)
    }
    assert len(ids) == 5


def test_a_waiting_join_is_answered_after_another_members_request(ready: GroupHarness) -> None:
    first = join(ready)
    told = ready.call(handle_join_group, join_request(), 9)
    parked = ready.begin(handle_join_group, join_request(member=told.member_id), 9)
    ready.turn_loop(0.01)
    assert not parked.done()
    again = ready.call(handle_join_group, join_request(member=first.member_id), 9)
    assert ready.wait(parked).generation_id == again.generation_id == 2


def test_members_need_read_on_the_group(ready: GroupHarness) -> None:
    ready.deny(AclOperation.READ, GROUP, "g")
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    joined = ready.call(handle_join_group, join_request(), 9)
    assert (joined.error_code, joined.protocol_name) == (denied, None)
    assert ready.call(handle_join_group, join_request(), 6).protocol_name == ""
    sync = SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range")
    assert ready.call(handle_sync_group, sync).error_code == denied
    assert ready.call(handle_heartbeat, HeartbeatRequest(group_id="g")).error_code == denied
    assert ready.call(handle_leave_group, LeaveGroupRequest(group_id="g")).error_code == denied


@pytest.mark.parametrize(("given", "missing"), [("consumer", None), (None, "range")])
def test_sync_needs_protocol_type_and_name_since_version_5(
    ready: GroupHarness, given: str | None, missing: str | None
) -> None:
    ready.deny(AclOperation.READ, GROUP, "g")
    request = SyncGroupRequest(group_id="g", protocol_type=given, protocol_name=missing)
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ready.call(handle_sync_group, request, 5).error_code == wrong
    assert ready.call(handle_sync_group, request, 4).error_code != wrong


def test_members_get_not_coordinator_where_the_shard_is_not_hosted(harness: GroupHarness) -> None:
    gone = ErrorCode.NOT_COORDINATOR
    assert harness.call(handle_join_group, join_request(), 9).error_code == gone
    sync = SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range")
    assert harness.call(handle_sync_group, sync).error_code == gone
    assert harness.call(handle_heartbeat, HeartbeatRequest(group_id="g")).error_code == gone
    assert harness.call(handle_leave_group, LeaveGroupRequest(group_id="g")).error_code == gone


def test_assignments_too_large_for_the_log_are_not_retriable(ready: GroupHarness) -> None:
    joined = join(ready)
    request = sync_request(joined)
    request.assignments[0].assignment = bytes(2_000_000)
    error = ready.call(handle_sync_group, request).error_code
    assert error == ErrorCode.UNKNOWN_SERVER_ERROR


# -- administration -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_each_group_is_described_by_itself(ready: GroupHarness, version: int) -> None:
    joined = join(ready)
    ready.call(handle_sync_group, sync_request(joined))
    ready.deny(AclOperation.DESCRIBE, GROUP, "secret")
    request = DescribeGroupsRequest(
        groups=["g", "no", "secret"], include_authorized_operations=version >= 3
    )
    stable, dead, secret = ready.call(handle_describe_groups, request, version).groups
    assert stable.group_state == "Stable"
    assert [member.client_host for member in stable.members] == ["/127.0.0.1"]
    has_operations = stable.authorized_operations != NO_AUTHORIZED_OPERATIONS
    assert has_operations == (version >= 3)
    assert dead.group_state == "Dead"
    assert dead.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    assert secret.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (secret.error_message is not None) == (version >= 6)
    assert secret.members == []


def test_coordinators_of_very_many_groups_are_found_in_turns(ready: GroupHarness) -> None:
    names = [f"g{index}" for index in range(2_000)]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=names)
    answer = ready.call_in_turns(handle_find_coordinator, request, ready.loop)
    assert [found.key for found in answer.coordinators] == names


def test_very_many_groups_are_described_and_deleted_in_turns(ready: GroupHarness) -> None:
    names = [f"g{index}" for index in range(2_000)]
    described = ready.call_in_turns(
        handle_describe_groups, DescribeGroupsRequest(groups=names), ready.loop
    )
    assert [group.group_id for group in described.groups] == names
    deleted = ready.call_in_turns(
        handle_delete_groups, DeleteGroupsRequest(groups_names=names), ready.loop
    )
    assert [result.group_id for result in deleted.results] == names


def test_describe_without_a_coordinator_fails_each_group(harness: GroupHarness) -> None:
    request = DescribeGroupsRequest(groups=["a", "b"])
    groups = harness.call(handle_describe_groups, request).groups
    assert [group.error_code for group in groups] == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("version", range(6))
def test_groups_of_all_shards_are_listed_once(ready: GroupHarness, version: int) -> None:
    names = [f"group-{index}" for index in range(12)]
    for name in names:
        join(ready, name)
    listed = ready.call(handle_list_groups, ListGroupsRequest(), version).groups
    assert sorted(group.group_id for group in listed) == sorted(names)
    expected = "CompletingRebalance" if version >= 4 else ""
    assert {group.group_state for group in listed} == {expected}
    assert {group.group_type for group in listed} == {"classic" if version >= 5 else ""}


def test_groups_without_describe_are_not_listed(ready: GroupHarness) -> None:
    for name in ("open", "secret"):
        join(ready, name)
    ready.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    ready.deny(AclOperation.DESCRIBE, GROUP, "secret")
    listed = ready.call(handle_list_groups, ListGroupsRequest()).groups
    assert [group.group_id for group in listed] == ["open"]


def test_listing_fails_while_a_shard_loads(ready: GroupHarness) -> None:
    ready.bus.is_away = True
    ready.restart_router()
    answer = ready.begin(handle_list_groups, ListGroupsRequest())
    assert ready.wait(answer).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ready.bus.come_back()
    ready.turn_loop(0.01)
    assert ready.call(handle_list_groups, ListGroupsRequest()).error_code == ErrorCode.NONE


def test_members_of_a_group_that_is_loaded_get_only_errors_that_clients_expect(
    ready: GroupHarness,
) -> None:
    # As Kafka answers Heartbeat, and SyncGroup before 4.0. At COORDINATOR_LOAD_IN_PROGRESS aiokafka
    # 0.14 ends its heartbeats for good, and Java's consumer fails.
    joined = join(ready)
    ready.bus.is_away = True
    ready.restart_router()
    alive = HeartbeatRequest(
        group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
    )
    heartbeat = ready.begin(handle_heartbeat, alive)
    sync = ready.begin(handle_sync_group, sync_request(joined))
    assert ready.wait(heartbeat).error_code == ErrorCode.NONE
    assert ready.wait(sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = ready.begin(handle_join_group, join_request(member=joined.member_id))
    assert ready.wait(again).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_without_the_topic_there_are_no_groups(harness: GroupHarness) -> None:
    listed = harness.call(handle_list_groups, ListGroupsRequest())
    assert (listed.error_code, listed.groups) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", range(4))
def test_each_group_is_deleted_by_itself(ready: GroupHarness, version: int) -> None:
    for name in ("full", "left"):
        joined = join(ready, name)
        ready.call(handle_sync_group, sync_request(joined, name))
    leave = LeaveGroupRequest(group_id="left", members=[MemberIdentity(member_id=joined.member_id)])
    ready.call(handle_leave_group, leave)
    ready.deny(AclOperation.DELETE, GROUP, "secret")
    request = DeleteGroupsRequest(groups_names=["full", "left", "no", "secret", "left"])
    results = ready.call(handle_delete_groups, request, version).results
    assert {result.group_id: result.error_code for result in results} == {
        "full": ErrorCode.NON_EMPTY_GROUP,
        "left": ErrorCode.NONE,
        "no": ErrorCode.GROUP_ID_NOT_FOUND,
        "secret": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }
    assert len(results) == 4
    messages = {result.group_id: result.error_message for result in results}
    assert (messages["full"] is not None) == (version >= 3)
    listed = ready.call(handle_list_groups, ListGroupsRequest()).groups
    assert [group.group_id for group in listed] == ["full"]
