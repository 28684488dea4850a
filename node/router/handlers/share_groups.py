"""Share groups and their members (KIP-932): ShareGroupHeartbeat (76), ShareGroupDescribe (77), both
v1.

What a group does is decided in coordinator.group; here stand who may ask and see which topics.
"""

from collections.abc import Iterator

from odradek.cluster.metadata.features import SHARE_VERSION
from odradek.coordinator.group.share.requests import DescribeShareGroup
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import GroupDescriber
from odradek.node.router.handlers.groups import member_error
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    ShareGroupDescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def is_share_group_protocol_enabled(services: Services) -> bool:
    """Whether the cluster has switched share groups on (share.version)."""
    return services.image.features.get(SHARE_VERSION, 0) >= 1


async def handle_share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext, services: Services
) -> ShareGroupHeartbeatResponse:
    """A member joins, goes on or leaves."""
    if not is_share_group_protocol_enabled(services):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    is_allowed, names = services.authorizer.is_allowed, request.subscribed_topic_names or ()
    if not is_allowed(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not all(
        is_allowed(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in set(names)
    ):
        return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        response = await services.group_coordinator.call_for_heartbeat(
            request.group_id, request, context
        )
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
    describing = GroupDescriber(
        description=ShareGroupDescribedGroup,
        command=DescribeShareGroup,
        topic_names=_topic_names,
        asks_for_operations=request.include_authorized_operations,
    )
    if not is_share_group_protocol_enabled(services):
        code = ErrorCode.UNSUPPORTED_VERSION
        groups = [describing.refused(group_id, code) for group_id in request.group_ids]
    else:
        groups = await describing.describe(request.group_ids, context, services)
    return ShareGroupDescribeResponse(groups=groups)


def _topic_names(described: ShareGroupDescribedGroup) -> Iterator[str]:
    """Every topic that the group's members have or subscribe to."""
    for member in described.members:
        yield from member.subscribed_topic_names
        yield from (topic.topic_name for topic in member.assignment.topic_partitions)
