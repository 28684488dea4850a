"""Describes groups of the newer kinds: each succeeds or fails by itself, very many in turns.

Whoever asks may see a group (DESCRIBE) and every topic that its description names; else the group
is not described, because a description without some of its topics would be a wrong one (KIP-848).
Called by consumer_groups, share_groups and streams.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from odradek.node.bus.reply import Reply
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
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
    """How groups of one kind are described: `command` asks the shard for a group's description,
    which is a `description`, `topic_names` reads off what it names; `asks_for_operations` says
    whether the request wants to know what the asker may do with the group."""

    description: type[D]
    command: Callable[[str], Request[D]]
    topic_names: Callable[[D], Iterable[str]]
    asks_for_operations: bool

    async def describe(
        self, group_ids: Sequence[str], context: RequestContext, services: Services
    ) -> list[D]:
        """The descriptions in the order of the ids."""
        is_allowed = services.authorizer.is_allowed
        waiting = [
            services.group_coordinator.call(group_id, self.command(group_id), context)
            if is_allowed(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
            else None
            async for group_id in iterate_cooperatively(group_ids)
        ]
        described: list[D] = []
        async for group_id, reply in iterate_cooperatively(zip(group_ids, waiting, strict=True)):
            group = await self._described(group_id, reply, context, services)
            if self.asks_for_operations and not group.error_code:
                group.authorized_operations = services.authorizer.authorized_operations(
                    context, ResourceType.GROUP, group_id
                )
            described.append(group)
        return described

    async def _described(
        self,
        group_id: str,
        reply: Reply[D] | None,
        context: RequestContext,
        services: Services,
    ) -> D:
        if reply is None:
            return self.refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not group_id:
            return self.refused(group_id, ErrorCode.INVALID_GROUP_ID)
        try:
            group = await reply
        except ApiError as error:
            return self.refused(group_id, error.code)
        is_allowed = services.authorizer.is_allowed
        if not group.error_code and not all(
            is_allowed(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
            for name in set(self.topic_names(group))
        ):
            return self.refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return group

    def refused(self, group_id: str, code: ErrorCode) -> D:
        """A group of which nothing can be told but why."""
        return self.description(group_id=group_id, error_code=code, error_message=code.message)
