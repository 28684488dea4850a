"""ShareAcknowledge (79): versions 1 and 2. Also the acknowledgements in ShareFetch.

v2 can renew locks (KIP-1222). The acknowledgements for a partition succeed or fail as a whole, and
are answered when they are durable.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import PartitionImage
from odradek.coordinator.share.acknowledgements import batches_error
from odradek.node.bus.reply import Reply
from odradek.node.router.addresses import endpoints_of, leader_for_clients
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.node.router.handlers.fetch import NOT_LEADER_ERRORS
from odradek.node.router.logs import LocatedLog
from odradek.node.router.share.sessions import FINAL_EPOCH, TopicIdPartition
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareLeaderIdAndEpoch,
    ShareRequestTopic,
)


class PartitionLookup(NamedTuple):
    """A partition that this node leads, with its log; or the error."""

    partition: PartitionImage | None
    log: LocatedLog | None
    error_code: ErrorCode


class AcknowledgeOutcome(NamedTuple):
    """The outcome of one partition's acknowledgements: an error code, or a reply with it."""

    topic_partition: TopicIdPartition
    outcome: ErrorCode | Reply[ErrorCode]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareMemberContext:
    """The member that sent a request, with the request's context."""

    group_id: str
    member_id: str
    context: RequestContext
    services: Services


async def handle_share_acknowledge(
    request: ShareAcknowledgeRequest, context: RequestContext, services: Services
) -> ShareAcknowledgeResponse:
    """Process acknowledgements. With epoch -1 the session is closed afterwards."""
    caller = share_member_context(request.group_id, request.member_id, context, services)
    session = services.share_sessions.for_acknowledge(
        request, caller.group_id, caller.member_id, context.connection_id
    )
    processed = process_acknowledgements(request.topics, caller, is_renewal=request.is_renew_ack)
    outcomes = [outcome async for outcome in iterate_cooperatively(processed, context)]
    if request.share_session_epoch == FINAL_EPOCH:
        services.share_sessions.close(session)
        services.share_partitions.release(session, was_delivered=False)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=services.share_partitions.group_settings(
            caller.group_id
        ).lock_duration_ms
    )
    leaders: set[int] = set()
    async for topic_partition, outcome, message in iterate_cooperatively(outcomes, context):
        code = outcome if isinstance(outcome, ErrorCode) else await outcome
        if not response.responses or response.responses[-1].topic_id != topic_partition.topic_id:
            response.responses.append(
                ShareAcknowledgeTopicResponse(topic_id=topic_partition.topic_id)
            )
        answer = ShareAcknowledgePartitionData(
            partition_index=topic_partition.partition, error_code=code, error_message=message
        )
        answer.current_leader = current_leader_for(topic_partition, code, leaders, services)
        response.responses[-1].partitions.append(answer)
    response.node_endpoints = endpoints_of(leaders, services.image, context, services.node_id)
    return response


def share_member_context(
    group_id: str | None, member_id: str | None, context: RequestContext, services: Services
) -> ShareMemberContext:
    """The context of a member's request. ApiError without ids or READ on the group."""
    if not group_id or not member_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "The group id and the member id must not be empty."
        )
    services.authorizer.authorize(context, AclOperation.READ, ResourceType.GROUP, group_id)
    return ShareMemberContext(group_id, member_id, context, services)


def process_acknowledgements(
    topics: Iterable[ShareRequestTopic], caller: ShareMemberContext, *, is_renewal: bool
) -> Iterator[AcknowledgeOutcome]:
    """Start to process all acknowledgements of a request, in its order."""
    partitions = caller.services.share_partitions
    may_renew = is_renewal and partitions.group_settings(caller.group_id).may_renew
    for topic in topics:
        for requested in topic.partitions:
            batches = requested.acknowledgement_batches
            if not batches:
                continue
            topic_partition = TopicIdPartition(topic.topic_id, requested.partition_index)
            code = find_led_partition(topic_partition, caller).error_code
            if code:
                yield AcknowledgeOutcome(topic_partition, code)
                continue
            fault = batches_error(batches, may_renew=may_renew)
            if fault is not None:
                yield AcknowledgeOutcome(topic_partition, ErrorCode.INVALID_REQUEST, fault)
                continue
            outcome = partitions.acknowledge(
                caller.group_id, caller.member_id, topic_partition, batches
            )
            yield AcknowledgeOutcome(topic_partition, outcome)


def find_led_partition(
    topic_partition: TopicIdPartition, caller: ShareMemberContext
) -> PartitionLookup:
    """The partition, if this node leads it and the client may read it."""
    services = caller.services
    topic = services.image.topics_by_id.get(topic_partition.topic_id)
    if topic is None:
        return PartitionLookup(None, None, ErrorCode.UNKNOWN_TOPIC_ID)
    if not services.authorizer.is_topic_allowed(caller.context, AclOperation.READ, topic.name):
        return PartitionLookup(None, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not 0 <= topic_partition.partition < len(topic.partitions):
        return PartitionLookup(None, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[topic_partition.partition]
    log = services.logs.open(*topic_partition)
    if partition.leader != services.node_id or log is None:
        return PartitionLookup(None, None, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return PartitionLookup(partition, log, ErrorCode.NONE)


def current_leader_for(
    topic_partition: TopicIdPartition, code: int, leaders: set[int], services: Services
) -> ShareLeaderIdAndEpoch:
    """The current leader, which is added to `leaders`; none unless `code` says that it moved."""
    state = services.image.partition(*topic_partition)
    if code not in NOT_LEADER_ERRORS or state is None:
        return ShareLeaderIdAndEpoch()
    leader = leader_for_clients(state, services.controller.unreachable)
    leaders.add(leader)
    return ShareLeaderIdAndEpoch(leader_id=leader, leader_epoch=state.leader_epoch)
