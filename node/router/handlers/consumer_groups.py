"""Consumer groups of the newer protocol (KIP-848): ConsumerGroupHeartbeat (68),
ConsumerGroupDescribe (69).

ConsumerGroupHeartbeat 0-1: v1 subscriptions by regular expression, and member ids that clients
make (KIP-1082). ConsumerGroupDescribe 0-1: v1 tells which protocol a member speaks.

What a group does is decided in coordinator.group; here stand who may ask and see which topics, and
what an expression stands for.
"""

from coordinator.group.requests import DescribeConsumerGroup, Heartbeat
from node.bus.reply import Reply
from node.router.authorizer import Operation, ResourceType
from node.router.context import RequestContext, Services
from node.router.handlers.groups import member_error
from protocol.errors import ApiError, ErrorCode
from protocol.messages.groups import (
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
    if not authorizer.check(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for name in request.subscribed_topic_names or ():
        if not authorizer.check(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        heartbeat = Heartbeat(request, _regex_names(request, context, services))
        response = await services.coordinators.call_for_member(request.group_id, heartbeat, context)
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
    names = services.patterns.topics_of(regex, services.image.topics_by_name)
    return tuple(
        name
        for name in names
        if services.authorizer.check(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
    )


async def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext, services: Services
) -> ConsumerGroupDescribeResponse:
    """Groups of which this node is the coordinator; each succeeds or fails by itself."""
    waiting = [
        services.coordinators.call(group_id, DescribeConsumerGroup(group_id), context)
        if services.authorizer.check(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        else None
        for group_id in request.group_ids
    ]
    groups: list[ConsumerGroupDescribedGroup] = []
    for group_id, reply in zip(request.group_ids, waiting, strict=True):
        described = await _described(group_id, reply, context, services)
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = services.authorizer.authorized_operations(
                context, ResourceType.GROUP, group_id
            )
        groups.append(described)
    return ConsumerGroupDescribeResponse(groups=groups)


async def _described(
    group_id: str, reply: Reply[object] | None, context: RequestContext, services: Services
) -> ConsumerGroupDescribedGroup:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if reply is not None:
        if not group_id:
            code = ErrorCode.INVALID_GROUP_ID
        else:
            try:
                described = await reply
            except ApiError as error:
                code = error.code
            else:
                assert isinstance(described, ConsumerGroupDescribedGroup)
                if described.error_code or _may_see(described, context, services):
                    return described
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ConsumerGroupDescribedGroup(
        group_id=group_id, error_code=code, error_message=code.message
    )


def _may_see(
    described: ConsumerGroupDescribedGroup, context: RequestContext, services: Services
) -> bool:
    """Whether the asker may know of every topic that the group reads."""
    names = {
        topic.topic_name
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    names.update(name for member in described.members for name in member.subscribed_topic_names)
    return all(
        services.authorizer.check(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
        for name in names
    )
