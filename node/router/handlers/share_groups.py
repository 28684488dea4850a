"""Share groups and their members (KIP-932): ShareGroupHeartbeat (76), ShareGroupDescribe (77), both
v1.

The group's shard decides (coordinator.group). The handlers authorize.
"""

from collections.abc import Iterator

from odradek.cluster.metadata.features import SHARE_VERSION
from odradek.coordinator.group.share.requests import DescribeShareGroup
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import describe_groups
from odradek.node.router.handlers.shard_requests import answer_of, authorize_member
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    ShareGroupDescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def is_share_group_protocol_enabled(services: Services) -> bool:
    """Whether the feature share.version is 1 or higher."""
    return services.image.features.get(SHARE_VERSION, 0) >= 1


async def handle_share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext, services: Services
) -> ShareGroupHeartbeatResponse:
    """A member joins, sends a heartbeat or leaves."""
    if not is_share_group_protocol_enabled(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    names = frozenset(request.subscribed_topic_names or ())
    authorize_member(request.group_id, names, context, services)
    return await answer_of(
        services.group_coordinator.call_for_heartbeat(request.group_id, request, context)
    )


async def handle_share_group_describe(
    request: ShareGroupDescribeRequest, context: RequestContext, services: Services
) -> ShareGroupDescribeResponse:
    """Groups that this node coordinates. Each succeeds or fails by itself."""
    groups = await describe_groups(
        request,
        context,
        services,
        ShareGroupDescribedGroup,
        DescribeShareGroup,
        _topic_names,
        is_enabled=is_share_group_protocol_enabled(services),
    )
    return ShareGroupDescribeResponse(groups=groups)


def _topic_names(described: ShareGroupDescribedGroup) -> Iterator[str]:
    """Every topic that the group's members are assigned or subscribe to."""
    for member in described.members:
        yield from member.subscribed_topic_names
        yield from (topic.topic_name for topic in member.assignment.topic_partitions)
