"""Groups and their members: FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13),
SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups (42).

FindCoordinator 0-6: v1 key types and throttling, v4 several keys (KIP-699), v6 share groups
(KIP-932). JoinGroup 0-9: v1 rebalance timeout, v4 member ids given out first (KIP-394), v5 static
members (KIP-345), v7 protocol type (KIP-559), v8 reason (KIP-800), v9 skipped assignments
(KIP-814). SyncGroup 0-5: v3 static members, v5 protocol type and name (KIP-559). Heartbeat 0-4: v3
static members. LeaveGroup 0-5: v3 several members, v5 reasons. DescribeGroups 0-6: v3 authorized
operations, v4 instance ids, v6 errors with messages (KIP-1043). ListGroups 0-5: v4 states
(KIP-518), v5 types (KIP-848). DeleteGroups 0-3: v3 error messages.

What a group does is decided in coordinator.group; here stand who may ask, and how an answer looks
that no shard has given.
"""

from typing import Final

from odradek.cluster.metadata.image import NO_LEADER
from odradek.coordinator.group.requests import DeleteGroup, DescribeGroup
from odradek.coordinator.share.requests import ShareKey
from odradek.node.bus.reply import Reply
from odradek.node.router.addresses import address_of
from odradek.node.router.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

KEY_TYPE_GROUP: Final = 0
KEY_TYPE_TRANSACTION: Final = 1
KEY_TYPE_SHARE: Final = 2
_SHARE_KEYS_SINCE: Final = 6


# -- FindCoordinator ------------------------------------------------------------------------------


async def handle_find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext, services: Services
) -> FindCoordinatorResponse:
    """Where the shards of these keys are hosted. The first call creates their topic."""
    if context.api_version >= 4:
        coordinators = [
            await _find_coordinator(key, request.key_type, context, services)
            async for key in iterate_cooperatively(request.coordinator_keys)
        ]
        return FindCoordinatorResponse(coordinators=coordinators)
    found = await _find_coordinator(request.key, request.key_type, context, services)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find_coordinator(
    key: str, key_type: int, context: RequestContext, services: Services
) -> Coordinator:
    operation, resource, name, hashed = AclOperation.DESCRIBE, ResourceType.GROUP, key, key
    if key_type == KEY_TYPE_GROUP:
        coordinators = services.group_coordinator
        denial = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif key_type == KEY_TYPE_TRANSACTION:
        coordinators, resource = services.transaction_coordinator, ResourceType.TRANSACTIONAL_ID
        denial = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif key_type == KEY_TYPE_SHARE and context.api_version >= _SHARE_KEYS_SINCE:
        coordinators = services.share_coordinator
        operation, resource, name = AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        denial = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        return _coordinator_error(key, ErrorCode.INVALID_REQUEST)
    if not services.authorizer.is_allowed(context, operation, resource, name):
        return _coordinator_error(key, denial)
    try:
        if key_type == KEY_TYPE_SHARE:
            hashed = ShareKey.parse(key).text
        await coordinators.ensure_topic()
    except ApiError as error:
        return _coordinator_error(key, error.code)
    except ValueError:
        return _coordinator_error(key, ErrorCode.INVALID_REQUEST)
    node_id = coordinators.coordinator_of(hashed)
    broker = services.image.brokers.get(node_id)
    address = address_of(broker, context, services.node_id) if broker is not None else None
    if node_id == NO_LEADER or address is None:
        return _coordinator_error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=node_id, host=address[0], port=address[1])


def _coordinator_error(key: str, error_code: ErrorCode) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, port=-1, error_code=error_code, error_message=error_code.message
    )


# -- members --------------------------------------------------------------------------------------


async def handle_join_group(
    request: JoinGroupRequest, context: RequestContext, services: Services
) -> JoinGroupResponse:
    """Parks until the group's next generation has formed."""
    if not _is_allowed(AclOperation.READ, request.group_id, context, services):
        return _join_refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "", context)
    try:
        response = await services.group_coordinator.call(request.group_id, request, context)
    except ApiError as error:
        return _join_refused(member_error(error.code), request.member_id, context)
    assert isinstance(response, JoinGroupResponse)
    return response


def _join_refused(
    error_code: ErrorCode, member_id: str, context: RequestContext
) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error_code,
        member_id=member_id,
        # Null in error answers since KIP-559; clients that do not know it fail on null.
        protocol_name=None if context.api_version >= 7 else "",
    )


async def handle_sync_group(
    request: SyncGroupRequest, context: RequestContext, services: Services
) -> SyncGroupResponse:
    """Parks until the leader has brought the assignments and they are stored."""
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= 5 and not has_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not _is_allowed(AclOperation.READ, request.group_id, context, services):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        response = await services.group_coordinator.call(request.group_id, request, context)
    except ApiError as error:
        return SyncGroupResponse(error_code=member_error(error.code))
    assert isinstance(response, SyncGroupResponse)
    return response


async def handle_heartbeat(
    request: HeartbeatRequest, context: RequestContext, services: Services
) -> HeartbeatResponse:
    """A sign of life."""
    if not _is_allowed(AclOperation.READ, request.group_id, context, services):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        response = await services.group_coordinator.call(request.group_id, request, context)
    except ApiError as error:
        return HeartbeatResponse(error_code=member_error(error.code))
    assert isinstance(response, HeartbeatResponse)
    return response


async def handle_leave_group(
    request: LeaveGroupRequest, context: RequestContext, services: Services
) -> LeaveGroupResponse:
    """Members leave, or an administrator removes them."""
    if not _is_allowed(AclOperation.READ, request.group_id, context, services):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        response = await services.group_coordinator.call(request.group_id, request, context)
    except ApiError as error:
        return LeaveGroupResponse(error_code=member_error(error.code))
    assert isinstance(response, LeaveGroupResponse)
    return response


def member_error(error_code: ErrorCode) -> ErrorCode:
    """What a member is told when its shard could not answer."""
    if error_code is ErrorCode.MESSAGE_TOO_LARGE:
        # The assignments of the group fit into no record: trying again would not help.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error_code


def _is_allowed(
    operation: AclOperation, group_id: str, context: RequestContext, services: Services
) -> bool:
    return services.authorizer.is_allowed(context, operation, ResourceType.GROUP, group_id)


# -- administration -------------------------------------------------------------------------------


async def handle_describe_groups(
    request: DescribeGroupsRequest, context: RequestContext, services: Services
) -> DescribeGroupsResponse:
    """Groups of which this node is the coordinator; each succeeds or fails by itself."""
    waiting = [
        services.group_coordinator.call(group_id, DescribeGroup(group_id), context)
        if _is_allowed(AclOperation.DESCRIBE, group_id, context, services)
        else None
        async for group_id in iterate_cooperatively(request.groups)
    ]
    groups: list[DescribedGroup] = []
    async for group_id, reply in iterate_cooperatively(zip(request.groups, waiting, strict=True)):
        described = await _described(group_id, reply)
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = services.authorizer.authorized_operations(
                context, ResourceType.GROUP, group_id
            )
        if context.api_version >= 6 and described.error_code and not described.error_message:
            described.error_message = ErrorCode(described.error_code).message
        groups.append(described)
    return DescribeGroupsResponse(groups=groups)


async def _described(group_id: str, reply: Reply[DescribedGroup] | None) -> DescribedGroup:
    if reply is None:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        described = await reply
    except ApiError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    assert isinstance(described, DescribedGroup)
    return described


async def handle_list_groups(
    request: ListGroupsRequest, context: RequestContext, services: Services
) -> ListGroupsResponse:
    """The groups of all shards hosted here that the asker may see."""
    coordinators = services.group_coordinator
    waiting = [
        coordinators.call_shard(shard, request, context) for shard in coordinators.hosted_shards()
    ]
    listed: list[ListedGroup] = []
    is_loading = False
    for reply in waiting:
        try:
            response = await reply
        except ApiError as error:
            # A shard that has just moved away is listed by its new host.
            is_loading = is_loading or error.code is not ErrorCode.NOT_COORDINATOR
            continue
        assert isinstance(response, ListGroupsResponse)
        listed += response.groups
    if is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    sees_all = services.authorizer.is_allowed(
        context, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    )
    if not sees_all:
        listed = [
            group
            for group in listed
            if _is_allowed(AclOperation.DESCRIBE, group.group_id, context, services)
        ]
    return ListGroupsResponse(groups=listed)


async def handle_delete_groups(
    request: DeleteGroupsRequest, context: RequestContext, services: Services
) -> DeleteGroupsResponse:
    """Empty groups with their offsets; each succeeds or fails by itself."""
    group_ids = list(dict.fromkeys(request.groups_names))
    waiting = [
        services.group_coordinator.call(group_id, DeleteGroup(group_id), context)
        if _is_allowed(AclOperation.DELETE, group_id, context, services)
        else None
        async for group_id in iterate_cooperatively(group_ids)
    ]
    return DeleteGroupsResponse(
        results=[
            await _deleted(group_id, reply)
            async for group_id, reply in iterate_cooperatively(zip(group_ids, waiting, strict=True))
        ]
    )


async def _deleted(
    group_id: str, reply: Reply[DeletableGroupResult] | None
) -> DeletableGroupResult:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if reply is not None:
        try:
            result = await reply
        except ApiError as error:
            code = error.code
        else:
            assert isinstance(result, DeletableGroupResult)
            return result
    return DeletableGroupResult(group_id=group_id, error_code=code, error_message=code.message)
