"""Groups and their members: FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13),
SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups (42).

FindCoordinator 0-6: v1 key types and throttling, v4 several keys (KIP-699), v6 share groups
(KIP-932). JoinGroup 0-9: v1 rebalance timeout, v4 member ids given out first (KIP-394), v5 static
members (KIP-345), v7 protocol type (KIP-559), v8 reason (KIP-800), v9 skipped assignments
(KIP-814). SyncGroup 0-5: v3 static members, v5 protocol type and name (KIP-559). Heartbeat 0-4: v3
static members. LeaveGroup 0-5: v3 several members, v5 reasons. DescribeGroups 0-6: v3 authorized
operations, v4 instance ids, v6 errors with messages (KIP-1043). ListGroups 0-5: v4 states
(KIP-518), v5 types (KIP-848). DeleteGroups 0-3: v3 error messages.

The group's shard decides (coordinator.group). The handlers authorize and build error responses.
"""

from typing import Any, Final

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.coordinator.group.requests import DeleteGroup, DescribeGroup
from odradek.coordinator.share.requests import ShareKey
from odradek.node.router.addresses import address_of
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.node.router.handlers.shard_requests import ask_group, ask_groups, ask_hosted_shards
from odradek.node.router.shards.coordinator_service import CoordinatorService
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
    """The nodes that host the shards of these keys. The first call creates the internal topic."""
    if context.api_version >= 4:
        coordinators = [
            await _coordinator(key, request.key_type, context, services)
            async for key in iterate_cooperatively(request.coordinator_keys)
        ]
        return FindCoordinatorResponse(coordinators=coordinators)
    found = await _coordinator(request.key, request.key_type, context, services)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(
    key: str, key_type: int, context: RequestContext, services: Services
) -> Coordinator:
    try:
        return await _find_coordinator(key, key_type, context, services)
    except ApiError as error:
        code = error.code
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=code.message)


async def _find_coordinator(
    key: str, key_type: int, context: RequestContext, services: Services
) -> Coordinator:
    authorize, hashed = services.authorizer.authorize, key
    if key_type == KEY_TYPE_GROUP:
        authorize(context, AclOperation.DESCRIBE, ResourceType.GROUP, key)
        coordinators: CoordinatorService[Any] = services.group_coordinator
    elif key_type == KEY_TYPE_TRANSACTION:
        authorize(context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        coordinators = services.transaction_coordinator
    elif key_type == KEY_TYPE_SHARE and context.api_version >= _SHARE_KEYS_SINCE:
        authorize(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
        coordinators = services.share_coordinator
        try:
            hashed = ShareKey.parse(key).text
        except ValueError:
            raise ApiError(ErrorCode.INVALID_REQUEST) from None
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    await coordinators.ensure_topic()
    node_id = coordinators.coordinator_of(hashed)
    broker = services.image.brokers.get(node_id)
    address = address_of(broker, context, services.node_id) if broker is not None else None
    if address is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=node_id, host=address[0], port=address[1])


# -- members --------------------------------------------------------------------------------------


async def handle_join_group(
    request: JoinGroupRequest, context: RequestContext, services: Services
) -> JoinGroupResponse:
    """Answered when the next generation of the group has formed."""
    try:
        return await ask_group(request, request.group_id, context, services)
    except ApiError as error:
        is_denied = error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        return JoinGroupResponse(
            error_code=error.code,
            member_id="" if is_denied else request.member_id,
            # Null in error answers since KIP-559. Older clients fail on null.
            protocol_name=None if context.api_version >= 7 else "",
        )


async def handle_sync_group(
    request: SyncGroupRequest, context: RequestContext, services: Services
) -> SyncGroupResponse:
    """Answered when the leader has sent the assignments and they are stored."""
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= 5 and not has_protocol:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return await ask_group(request, request.group_id, context, services)
    except ApiError as error:
        if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        # Clients do not expect that error here. The rebalance is lost with the coordinator that
        # knew it: as in Kafka before 4.0 the member joins again.
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS) from None


async def handle_heartbeat(
    request: HeartbeatRequest, context: RequestContext, services: Services
) -> HeartbeatResponse:
    """Keep the member's session alive."""
    try:
        return await ask_group(request, request.group_id, context, services)
    except ApiError as error:
        if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        # As in Kafka: its session begins anew when the group is loaded. There are clients that end
        # their heartbeats at this error.
        return HeartbeatResponse()


async def handle_leave_group(
    request: LeaveGroupRequest, context: RequestContext, services: Services
) -> LeaveGroupResponse:
    """Members leave, or an administrator removes them."""
    return await ask_group(request, request.group_id, context, services)


# -- administration -------------------------------------------------------------------------------


async def handle_describe_groups(
    request: DescribeGroupsRequest, context: RequestContext, services: Services
) -> DescribeGroupsResponse:
    """Groups of which this node is the coordinator. Each succeeds or fails by itself."""
    groups = await ask_groups(
        DescribeGroup,
        request.groups,
        context,
        services,
        lambda group_id, code: DescribedGroup(group_id=group_id, error_code=code),
    )
    async for group in iterate_cooperatively(groups):
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = services.authorizer.authorized_operations(
                context, ResourceType.GROUP, group.group_id
            )
        if context.api_version >= 6 and group.error_code and not group.error_message:
            group.error_message = ErrorCode(group.error_code).message
    return DescribeGroupsResponse(groups=groups)


async def handle_list_groups(
    request: ListGroupsRequest, context: RequestContext, services: Services
) -> ListGroupsResponse:
    """The groups of all shards hosted here that the client may describe."""
    answers, is_loading = await ask_hosted_shards(request, services.group_coordinator, context)
    if is_loading:
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    authorizer = services.authorizer
    sees_all = authorizer.is_cluster_allowed(context, AclOperation.DESCRIBE)
    return ListGroupsResponse(
        groups=[
            group
            for answer in answers
            for group in answer.groups
            if sees_all
            or authorizer.is_group_allowed(context, AclOperation.DESCRIBE, group.group_id)
        ]
    )


async def handle_delete_groups(
    request: DeleteGroupsRequest, context: RequestContext, services: Services
) -> DeleteGroupsResponse:
    """Delete empty groups with their offsets. Each succeeds or fails by itself."""
    results = await ask_groups(
        DeleteGroup,
        request.groups_names,
        context,
        services,
        lambda group_id, code: DeletableGroupResult(
            group_id=group_id, error_code=code, error_message=code.message
        ),
        operation=AclOperation.DELETE,
    )
    return DeleteGroupsResponse(results=results)
