"""Requests of handlers to coordinator shards: one group, many groups, or all shards hosted here.

A shard that cannot answer (loading, moved away, record too large) fails the reply with an ApiError,
which the dispatcher turns into a response with that error code. Handlers catch it where one of many
groups fails, or where the API has its own form for errors. Called by the handlers of groups,
offsets, transactions and share groups.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively, unique_cooperatively
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Request

R = TypeVar("R")

GROUPS_IN_FLIGHT_MAX: Final = 2_000
"""Of one request: they share the commits of their shards. More would only wait in memory."""


async def answer_of(
    reply: Awaitable[R], *, too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
) -> R:
    """The shard's response. ApiError as `shard_error` if there is none."""
    try:
        return await reply
    except ApiError as error:
        raise shard_error(error, too_large) from None


def shard_error(error: ApiError, too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> ApiError:
    """The error of a shard, as a client gets it.

    `too_large` replaces MESSAGE_TOO_LARGE: the records do not fit into a batch, and a retry would
    fail again.
    """
    is_too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
    return ApiError(too_large, error.message) if is_too_large else error


async def ask_group(
    request: Request[R],
    group_id: str,
    context: RequestContext,
    services: Services,
    *,
    operation: AclOperation = AclOperation.READ,
    too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
) -> R:
    """The response of a group's shard. Needs `operation` on the group. ApiError as `answer_of`, and
    INVALID_GROUP_ID without an id, on every node: no coordinator would take it."""
    services.authorizer.authorize(context, operation, ResourceType.GROUP, group_id)
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    reply = services.group_coordinator.call(group_id, request, context)
    return await answer_of(reply, too_large=too_large)


def authorize_member(
    group_id: str, topic_names: Iterable[str], context: RequestContext, services: Services
) -> None:
    """ApiError unless the client has READ on the group and DESCRIBE on the topics it names, and
    INVALID_REQUEST if it names no group: on every node, as no coordinator would take it."""
    authorize = services.authorizer.authorize
    authorize(context, AclOperation.READ, ResourceType.GROUP, group_id)
    for name in topic_names:
        authorize(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    if not group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")


async def ask_groups(
    request_for: Callable[[str], Request[R]],
    group_ids: Sequence[str],
    context: RequestContext,
    services: Services,
    refuse: Callable[[str, ErrorCode], R],
    *,
    operation: AclOperation = AclOperation.DESCRIBE,
) -> list[R]:
    """One answer per group, in the order of the ids. Up to GROUPS_IN_FLIGHT_MAX requests are sent
    before any wait. A group that is named twice is answered once: its answer may be large."""
    unique = await unique_cooperatively(group_ids, context)
    answers = []
    for start in range(0, len(unique), GROUPS_IN_FLIGHT_MAX):
        some = unique[start : start + GROUPS_IN_FLIGHT_MAX]
        replies = [
            services.group_coordinator.call(group_id, request_for(group_id), context)
            if services.authorizer.is_group_allowed(context, operation, group_id)
            else None
            async for group_id in iterate_cooperatively(some, context)
        ]
        async for group_id, reply in iterate_cooperatively(zip(some, replies, strict=True)):
            if reply is None:
                answers.append(refuse(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            try:
                answers.append(await reply)
            except ApiError as error:
                answers.append(refuse(group_id, error.code))
    return answers


async def ask_hosted_shards(
    request: Request[R], coordinators: CoordinatorService[Any], context: RequestContext
) -> tuple[list[R], bool]:
    """The answers of all shards hosted here, and whether one could not answer (it is loading).

    A shard that has just moved away is left out: its new host lists it. ApiError
    (COORDINATOR_NOT_AVAILABLE) if this broker stops, and may have had shards that nobody hosts yet.
    """
    if coordinators.is_closed:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    replies = [
        coordinators.call_shard(shard, request, context) for shard in coordinators.hosted_shards()
    ]
    answers = []
    is_loading = False
    for reply in replies:
        try:
            answers.append(await reply)
        except ApiError as error:
            is_loading = is_loading or error.code is not ErrorCode.NOT_COORDINATOR
    return answers, is_loading
