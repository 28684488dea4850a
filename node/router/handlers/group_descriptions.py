"""ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe: what they have in common.

Needs DESCRIBE on the group and on every topic that the description names. Without it the group is
not described, because a description that leaves out topics would be wrong (KIP-848). Each group
succeeds or fails by itself. Called by consumer_groups, share_groups and streams.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from odradek.node.router.authorizer import AclOperation, ResourceType
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescriber(Generic[D]):
    """How groups of one type are described.

    `command` asks the shard for one group's description, an object of class `description`.
    `topic_names` yields the topics that a description names. `asks_for_operations` says whether the
    request includes the authorized operations. Unless `is_enabled` (by the cluster's feature level)
    every group is answered with UNSUPPORTED_VERSION.
    """

    description: type[D]
    command: Callable[[str], Request[D]]
    topic_names: Callable[[D], Iterable[str]]
    asks_for_operations: bool
    is_enabled: bool = True

    async def describe(
        self, group_ids: Sequence[str], context: RequestContext, services: Services
    ) -> list[D]:
        """The descriptions in the order of the ids."""
        if not self.is_enabled:
            code = ErrorCode.UNSUPPORTED_VERSION
            return [self.refused(group_id, code) for group_id in group_ids]
        answers = await ask_groups(self.command, group_ids, context, services, self.refused)
        authorizer = services.authorizer
        described = []
        async for group in iterate_cooperatively(answers):
            group_id = group.group_id
            if not group_id and group.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
                group = self.refused(group_id, ErrorCode.INVALID_GROUP_ID)
            if not group.error_code and not all(
                authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
                for name in set(self.topic_names(group))
            ):
                group = self.refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if self.asks_for_operations and not group.error_code:
                group.authorized_operations = authorizer.authorized_operations(
                    context, ResourceType.GROUP, group_id
                )
            described.append(group)
        return described

    def refused(self, group_id: str, code: ErrorCode) -> D:
        """A description that has only an error."""
        return self.description(group_id=group_id, error_code=code, error_message=code.message)
