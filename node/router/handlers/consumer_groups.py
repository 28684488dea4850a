"""Consumer groups of the newer protocol (KIP-848): ConsumerGroupHeartbeat (68),
ConsumerGroupDescribe (69).

ConsumerGroupHeartbeat 0-1: v1 subscriptions by regular expression, and member ids that clients
make (KIP-1082). ConsumerGroupDescribe 0-1: v1 tells which protocol a member speaks.

What a group does is decided in coordinator.group; here stand who may ask and see which topics, and
what an expression stands for.
"""

from collections.abc import Iterator

from odradek.coordinator.group.requests import ConsumerHeartbeat, DescribeConsumerGroup
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import GroupDescriber
from odradek.node.router.handlers.groups import member_error
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


async def handle_consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, services: Services
) -> ConsumerGroupHeartbeatResponse:
    """A member joins, goes on or leaves."""
    authorizer = services.authorizer
    if not authorizer.is_allowed(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for name in request.subscribed_topic_names or ():
        if not authorizer.is_allowed(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        heartbeat = ConsumerHeartbeat(request, _regex_names(request, context, services))
        response = await services.group_coordinator.call_for_heartbeat(
            request.group_id, heartbeat, context
        )
    except ApiError as error:
        return _refused(member_error(error.code), error.message)
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    return response


def _refused(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message or code.message)


def _regex_names(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, services: Services
) -> tuple[str, ...] | None:
    """What the request's expression stands for, of the topics that the asker may see."""
    regex = request.subscribed_topic_regex
    if not regex:
        return None
    names = services.patterns.matching_topics(regex, services.image.topics_by_name)
    return tuple(
        name
        for name in names
        if services.authorizer.is_allowed(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    )


async def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext, services: Services
) -> ConsumerGroupDescribeResponse:
    """Groups of which this node is the coordinator; each succeeds or fails by itself."""
    describing = GroupDescriber(
        description=ConsumerGroupDescribedGroup,
        command=DescribeConsumerGroup,
        topic_names=_topic_names,
        asks_for_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(
        groups=await describing.describe(request.group_ids, context, services)
    )


def _topic_names(described: ConsumerGroupDescribedGroup) -> Iterator[str]:
    """Every topic that the group's members have, are to have, or subscribe to."""
    for member in described.members:
        yield from member.subscribed_topic_names
        for assignment in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in assignment.topic_partitions)
