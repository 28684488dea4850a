"""ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe: what they have in common.

Needs DESCRIBE on the group and on every topic that the description names. Without it the group is
not described, because a description that leaves out topics would be wrong (KIP-848). Each group
succeeds or fails by itself. Called by consumer_groups, share_groups and streams.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.node.router.handlers.shard_requests import ask_groups
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import groups, share, streams
from odradek.protocol.types import Request

D = TypeVar(
    "D",
    groups.ConsumerGroupDescribedGroup,
    share.ShareGroupDescribedGroup,
    streams.StreamsGroupDescribedGroup,
)
DescribeRequest: TypeAlias = (
    groups.ConsumerGroupDescribeRequest
    | share.ShareGroupDescribeRequest
    | streams.StreamsGroupDescribeRequest
)


async def describe_groups(
    request: DescribeRequest,
    context: RequestContext,
    services: Services,
    description: type[D],
    command: Callable[[str], Request[D]],
    topic_names: Callable[[D], Iterable[str]],
    *,
    is_enabled: bool = True,
) -> list[D]:
    """One description per group, in the order of the ids.

    `command` makes the shard's request for one group, which returns a `description`.
    `topic_names` yields the topics that a description names. Unless `is_enabled` (by the cluster's
    feature level) every group is answered with UNSUPPORTED_VERSION.
    """

    def refused(group_id: str, code: ErrorCode) -> D:
        return description(group_id=group_id, error_code=code, error_message=code.message)

    if not is_enabled:
        return [refused(group_id, ErrorCode.UNSUPPORTED_VERSION) for group_id in request.group_ids]
    answers = await ask_groups(command, request.group_ids, context, services, refused)
    authorizer = services.authorizer
    described = []
    async for group in iterate_cooperatively(answers):
        group_id = group.group_id
        if not group_id and group.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
            group = refused(group_id, ErrorCode.INVALID_GROUP_ID)
        if not group.error_code and not all(
            authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
            for name in set(topic_names(group))
        ):
            group = refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = authorizer.authorized_operations(
                context, ResourceType.GROUP, group_id
            )
        described.append(group)
    return described
