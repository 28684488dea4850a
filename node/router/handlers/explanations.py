"""ExplainGroup (20002, version 1) and ExplainTopic (20003, versions 0 to 2): the state of a group,
and of the partitions that it reads.

Private APIs (protocol/messages/diagnostics.py). Coordinators have members and commits, leaders
have logs and open transactions, and every node has its fetching clients. The command line combines
the three (node/cli/findings.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.group.requests import ExplainGroup
from odradek.coordinator.share.partition import SharePartition
from odradek.coordinator.share.state_batches import RecordState
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.node.router.handlers.shard_requests import ask_groups, ask_hosted_shards
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    ExplainedCommits,
    ExplainedGroup,
    ExplainedLock,
    ExplainedPartition,
    ExplainedReader,
    ExplainedSharePartition,
    ExplainedTopicPartitions,
    ExplainGroupRequest,
    ExplainGroupResponse,
    ExplainTopicRequest,
    ExplainTopicRequestTopic,
    ExplainTopicResponse,
)
from odradek.protocol.messages.groups import ListGroupsRequest
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader

T = TypeVar("T")

GROUPS_MAX: Final = 200
"""Groups in one response to a request for all groups: the router has one loop."""
LOCKS_MAX: Final = 20
"""Locks listed for one group in one partition."""


async def handle_explain_group(
    request: ExplainGroupRequest, context: RequestContext, services: Services
) -> ExplainGroupResponse:
    """Groups that this node coordinates. Needs DESCRIBE on each. Topics that the client may not
    describe are left out, as in OffsetFetch."""
    response = ExplainGroupResponse(now=services.group_coordinator.now_ms())
    wanted = request.group_ids
    if wanted is None:
        wanted = await _next_groups(response, request.after, context, services)

    def refuse(group_id: str, code: ErrorCode) -> ExplainedGroup:
        if request.group_ids is None:
            # The group has moved to another coordinator since it was listed.
            response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ExplainedGroup(group_id=group_id, error_code=code)

    response.groups = await ask_groups(
        lambda group_id: ExplainGroup(group_id, with_events=request.include_events),
        list(dict.fromkeys(wanted)),
        context,
        services,
        refuse,
    )
    await _hide_topics(response.groups, context, services)
    return response


async def _hide_topics(
    groups: Iterable[ExplainedGroup], context: RequestContext, services: Services
) -> None:
    pace = LoopYielder(context)

    async def shown(topics: Sequence[T], name_of: Callable[[T], str]) -> list[T]:
        await pace.step()
        kept = []
        for topic in topics:
            await pace.step()
            if services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name_of(topic)):
                kept.append(topic)
        return kept

    for group in groups:
        group.topics = await shown(group.topics, str)
        group.commits = await shown(group.commits, _name)
        for member in group.members:
            member.owned = await shown(member.owned, _name)
            member.to_revoke = await shown(member.to_revoke, _name)


def _name(topic: ExplainedCommits | TopicPartitions) -> str:
    return topic.name


async def _next_groups(
    response: ExplainGroupResponse, after: str | None, context: RequestContext, services: Services
) -> list[str]:
    """The next page of the groups of all shards hosted here that the client may describe."""
    answers, is_loading = await ask_hosted_shards(
        ListGroupsRequest(), services.group_coordinator, context
    )
    if is_loading:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    names = sorted(
        group.group_id
        for answer in answers
        for group in answer.groups
        if (after is None or group.group_id > after)
        and services.authorizer.is_group_allowed(context, AclOperation.DESCRIBE, group.group_id)
    )
    response.has_more = len(names) > GROUPS_MAX
    return names[:GROUPS_MAX]


# -- ExplainTopic ---------------------------------------------------------------------------------


async def handle_explain_topic(
    request: ExplainTopicRequest, context: RequestContext, services: Services
) -> ExplainTopicResponse:
    """The partitions of which this node has a replica. Needs DESCRIBE on the topic. Who reads it is
    for those who have READ, as who writes it is in DescribeProducers; what a share group has
    acquired, and what waits for the group of an archive, for those with DESCRIBE on the group."""
    return ExplainTopicResponse(
        topics=[
            await _topic(requested, context, services)
            async for requested in iterate_cooperatively(request.topics)
        ],
        storage_problem=services.storage_problem or services.log_dir_problem or None,
    )


async def _topic(
    requested: ExplainTopicRequestTopic, context: RequestContext, services: Services
) -> ExplainedTopicPartitions:
    explained = ExplainedTopicPartitions(name=requested.name)
    topic = services.image.topics_by_name.get(requested.name)
    if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, requested.name):
        explained.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic is None:
        explained.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        known = range(len(topic.partitions))
        indexes = known if requested.partitions is None else requested.partitions
        readers: Mapping[int, Sequence[ExplainedReader]] = {}
        if services.authorizer.is_topic_allowed(context, AclOperation.READ, topic.name):
            readers = services.fetch_activity.of_topic(
                topic.name, topic.topic_id, services.now_ms()
            )
        explained.partitions = [
            _partition(topic, index, readers.get(index, ()), context, services)
            if index in known
            else ExplainedPartition(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            async for index in iterate_cooperatively(dict.fromkeys(indexes))
        ]
    return explained


def _partition(
    topic: TopicImage,
    index: int,
    readers: Sequence[ExplainedReader],
    context: RequestContext,
    services: Services,
) -> ExplainedPartition:
    state = topic.partitions[index]
    settings = services.metadata.topic_settings(topic.name)
    explained = ExplainedPartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=list(state.replicas),
        in_sync_replicas=list(state.in_sync_replicas),
        min_in_sync_replicas=min(settings.min_insync_replicas, len(state.replicas)),
    )
    if services.node_id not in state.replicas:
        explained.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return explained
    explained.readers = list(readers)
    if state.leader == services.node_id:
        log = services.logs.open(topic.topic_id, index)
        if log is None:
            explained.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return explained
        here = TopicIdPartition(topic.topic_id, index)
        clock_ms = services.share_partitions.now_ms()
        explained.sharing = [
            _explain_share_partition(group_id, machine, clock_ms)
            for group_id, machine in services.share_partitions.at(here)
            if services.authorizer.is_group_allowed(context, AclOperation.DESCRIBE, group_id)
        ]
        group = settings.archive_group
        if group and services.authorizer.is_group_allowed(context, AclOperation.DESCRIBE, group):
            explained.archive_group = group
            archived = services.archive_groups.archived(topic.topic_id, index)
            if archived is not None and archived.group == group:
                explained.archived_offset = archived.archived_offset
                explained.archive_held_bytes = archived.held_bytes
        try:
            _fill_from_log(explained, log.reader, log.number, services.now_ms())
        except StorageError:
            explained.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return explained


def _explain_share_partition(
    group_id: str, machine: SharePartition, now_ms: int
) -> ExplainedSharePartition:
    sharing = ExplainedSharePartition(
        group_id=group_id, start_offset=machine.start_offset, end_offset=machine.end_offset
    )
    for run in machine.runs():
        count = run.end - run.start
        match run.state:
            case RecordState.AVAILABLE if run.deadline_ms > now_ms:
                sharing.delayed_count += count
            case RecordState.AVAILABLE:
                sharing.available_count += count
            case RecordState.ARCHIVING:
                sharing.archiving_count += count
            case RecordState.ACQUIRED:
                sharing.acquired_count += count
                if len(sharing.locks) < LOCKS_MAX:
                    sharing.locks.append(
                        ExplainedLock(
                            member_id=run.member_id,
                            start_offset=run.start,
                            end_offset=run.end,
                            delivery_count=run.delivery_count,
                            left_ms=max(run.deadline_ms - now_ms, 0),
                        )
                    )
            case _:
                pass  # done with
    return sharing


def _fill_from_log(
    explained: ExplainedPartition, reader: StoreReader, number: int, now_ms: int
) -> None:
    status = reader.status
    explained.log_start_offset = status.log_start_offset(number)
    explained.log_end_offset = status.log_end_offset(number)
    explained.high_watermark = status.high_watermark(number)
    explained.last_stable_offset = status.last_stable_offset(number)
    if explained.last_stable_offset >= explained.high_watermark:
        return
    # Producer state is read only if a transaction is open.
    holding = min(
        (found for found in reader.producers(number) if found.transaction_start_offset >= 0),
        key=lambda found: found.transaction_start_offset,
        default=None,
    )
    if holding is not None:
        explained.open_producer_id = holding.producer_id
        explained.open_since_offset = holding.transaction_start_offset
        explained.open_silent_ms = max(now_ms - holding.last_timestamp, 0)
