"""Share groups and their members (KIP-932): ShareGroupHeartbeat (76), ShareGroupDescribe (77), both
v1.

What a group does is decided in coordinator.group; here stand who may ask and see which topics.
"""

from cluster.metadata.features import SHARE_VERSION
from coordinator.group.share.requests import DescribeShareGroup
from node.bus.reply import Reply
from node.router.authorizer import Operation, ResourceType
from node.router.context import RequestContext, Services
from node.router.handlers.groups import member_error
from node.router.pacing import in_turns
from protocol.errors import ApiError, ErrorCode
from protocol.messages.share import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def are_share_groups_on(services: Services) -> bool:
    """Whether the cluster has switched share groups on (share.version)."""
    return services.image.features.get(SHARE_VERSION, 0) >= 1


async def handle_share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext, services: Services
) -> ShareGroupHeartbeatResponse:
    """A member joins, goes on or leaves."""
    if not are_share_groups_on(services):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    may, names = services.authorizer.check, request.subscribed_topic_names or ()
    if not may(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not all(may(context, Operation.DESCRIBE, ResourceType.TOPIC, name) for name in set(names)):
        return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        response = await services.coordinators.call_for_member(request.group_id, request, context)
    except ApiError as error:
        return _refused(member_error(error.code), error.message)
    assert isinstance(response, ShareGroupHeartbeatResponse)
    return response


def _refused(code: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=code, error_message=message or code.message)


async def handle_share_group_describe(
    request: ShareGroupDescribeRequest, context: RequestContext, services: Services
) -> ShareGroupDescribeResponse:
    """Groups of which this node is the coordinator; each succeeds or fails by itself."""
    is_on, may = are_share_groups_on(services), services.authorizer.check
    waiting = [
        services.coordinators.call(group_id, DescribeShareGroup(group_id), context)
        if is_on and may(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        else None
        async for group_id in in_turns(request.group_ids)
    ]
    groups: list[DescribedGroup] = []
    denial = ErrorCode.GROUP_AUTHORIZATION_FAILED if is_on else ErrorCode.UNSUPPORTED_VERSION
    async for group_id, reply in in_turns(zip(request.group_ids, waiting, strict=True)):
        described = await _described(group_id, reply, denial, context, services)
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = services.authorizer.authorized_operations(
                context, ResourceType.GROUP, group_id
            )
        groups.append(described)
    return ShareGroupDescribeResponse(groups=groups)


async def _described(
    group_id: str,
    reply: Reply[object] | None,
    denial: ErrorCode,
    context: RequestContext,
    services: Services,
) -> DescribedGroup:
    code = denial
    if reply is not None:
        if not group_id:
            code = ErrorCode.INVALID_GROUP_ID
        else:
            try:
                described = await reply
            except ApiError as error:
                code = error.code
            else:
                assert isinstance(described, DescribedGroup)
                if described.error_code or _may_see(described, context, services):
                    return described
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribedGroup(group_id=group_id, error_code=code, error_message=code.message)


def _may_see(described: DescribedGroup, context: RequestContext, services: Services) -> bool:
    """Whether the asker may know of every topic that the group reads."""
    names = {
        topic.topic_name
        for member in described.members
        for topic in member.assignment.topic_partitions
    }
    names.update(name for member in described.members for name in member.subscribed_topic_names)
    return all(
        services.authorizer.check(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
        for name in names
    )
