"""Consumer groups with the protocol of KIP-848: ConsumerGroupHeartbeat (68),
ConsumerGroupDescribe (69).

ConsumerGroupHeartbeat 0-1: v1 subscriptions by regular expression, and member ids that clients
make (KIP-1082). ConsumerGroupDescribe 0-1: v1 has the protocol of each member.

The group's shard decides (coordinator.group). The handlers authorize and resolve the regular
expression.
"""

from collections.abc import Iterator

from odradek.cluster.metadata.acls import AclOperation
from odradek.coordinator.group.requests import ConsumerHeartbeat, DescribeConsumerGroup
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import describe_groups
from odradek.node.router.handlers.shard_requests import authorize_member, shard_error
from odradek.protocol.errors import ApiError
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
    """A member joins, sends a heartbeat or leaves."""
    names = request.subscribed_topic_names or ()
    authorize_member(request.group_id, names, context, services)
    regex = request.subscribed_topic_regex
    heartbeat = ConsumerHeartbeat(
        request, _regex_names(regex, context, services) if regex else None
    )
    try:
        return await services.group_coordinator.call_for_heartbeat(
            request.group_id, heartbeat, context
        )
    except ApiError as error:
        raise shard_error(error) from None


def _regex_names(regex: str, context: RequestContext, services: Services) -> tuple[str, ...]:
    """The topics that match a member's regular expression and that it may describe."""
    names = services.patterns.matching_topics(regex, services.image.topics_by_name)
    return tuple(
        name
        for name in names
        if services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
    )


async def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext, services: Services
) -> ConsumerGroupDescribeResponse:
    """Groups that this node coordinates. Each succeeds or fails by itself."""
    groups = await describe_groups(
        request,
        context,
        services,
        ConsumerGroupDescribedGroup,
        DescribeConsumerGroup,
        _topic_names,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _topic_names(described: ConsumerGroupDescribedGroup) -> Iterator[str]:
    """Every topic that the group's members own, will own, or subscribe to."""
    for member in described.members:
        yield from member.subscribed_topic_names
        for assignment in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in assignment.topic_partitions)
