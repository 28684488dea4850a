"""Offsets of groups: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

OffsetCommit 0-10: v0 knows no members, v1 names the time of the commit, v2-4 how long it is kept,
v6 leader epochs (KIP-320), v7 static members, v9 members of the newer protocol, v10 topic ids
(KIP-848). OffsetFetch 0-10: v0 answers what is not committed with an error, v2 fetches all, v7
stable offsets only (KIP-447), v8 several groups (KIP-709), v9 members, v10 topic ids. OffsetDelete
0 (KIP-496).

Whether a topic exists and who may see it is decided here, so that a shard gets names and ids of
topics that do; whether the group may commit, and what it has committed, is the shard's to say.
"""

from typing import Final

import msgspec

from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.group.requests import FetchOffsets
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from odradek.protocol.types import ZERO_UUID, Uuid

_TOPIC_IDS_SINCE: Final = 10
_SEVERAL_GROUPS_SINCE: Final = 8
_GROUP_ERRORS_SINCE: Final = 2

_Codes = dict[tuple[int, int], int]
"""Error codes by (index of the topic in the request, partition)."""


# -- OffsetCommit ---------------------------------------------------------------------------------


async def handle_offset_commit(
    request: OffsetCommitRequest, context: RequestContext, services: Services
) -> OffsetCommitResponse:
    """Store positions; each partition succeeds or fails by itself."""
    if not services.authorizer.is_allowed(
        context, AclOperation.READ, ResourceType.GROUP, request.group_id
    ):
        return _commit_answer(request.topics, {}, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    codes: _Codes = {}
    valid: list[OffsetCommitRequestTopic] = []
    valid_indexes: list[int] = []
    for at, topic in enumerate(request.topics):
        found, error = _resolve(topic.name, topic.topic_id, AclOperation.READ, context, services)
        partition_count = len(found.partitions) if found is not None else 0
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        kept = []
        for partition in topic.partitions:
            index = partition.partition_index
            if error is ErrorCode.NONE and 0 <= index < partition_count:
                kept.append(partition)
            else:
                codes[at, index] = error or unknown
        if found is not None and kept:
            valid.append(
                OffsetCommitRequestTopic(name=found.name, topic_id=found.topic_id, partitions=kept)
            )
            valid_indexes.append(at)
    refusal = ErrorCode.NONE
    if valid:
        refusal = await _commit_valid(request, valid, valid_indexes, codes, context, services)
    return _commit_answer(request.topics, codes, refusal)


async def _commit_valid(
    request: OffsetCommitRequest,
    valid: list[OffsetCommitRequestTopic],
    valid_indexes: list[int],
    codes: _Codes,
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    """Commit what exists; fills in the codes, or returns the error that holds for all of it."""
    commit = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=valid,
    )
    try:
        response = await services.group_coordinator.call(request.group_id, commit, context)
    except ApiError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return error.code
    assert isinstance(response, OffsetCommitResponse)
    for at, topic in zip(valid_indexes, response.topics, strict=True):
        for partition in topic.partitions:
            codes[at, partition.partition_index] = partition.error_code
    return ErrorCode.NONE


def _commit_answer(
    topics: list[OffsetCommitRequestTopic], codes: _Codes, otherwise: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get((at, partition.partition_index), otherwise),
                    )
                    for partition in topic.partitions
                ],
            )
            for at, topic in enumerate(topics)
        ]
    )


def _resolve(
    name: str, topic_id: Uuid, operation: AclOperation, context: RequestContext, services: Services
) -> tuple[TopicImage | None, ErrorCode]:
    """The topic that a request means, if it exists and the asker may do that to it.

    What may not be seen must look as if it were not there, or as if it might be.
    """
    image = services.image
    is_by_id = context.api_version >= _TOPIC_IDS_SINCE
    topic = image.topics_by_id.get(topic_id) if is_by_id else image.topics_by_name.get(name)
    asked = topic.name if topic is not None else name
    if is_by_id and topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    if not services.authorizer.is_allowed(context, operation, ResourceType.TOPIC, asked):
        hidden = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return None, hidden
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic, ErrorCode.NONE


# -- OffsetFetch ----------------------------------------------------------------------------------


async def handle_offset_fetch(
    request: OffsetFetchRequest, context: RequestContext, services: Services
) -> OffsetFetchResponse:
    """Committed positions, of one group up to v7 and of several from v8 on."""
    if context.api_version >= _SEVERAL_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[
                await _fetch_group(
                    FetchOffsets(
                        group.group_id,
                        group.topics,
                        request.require_stable,
                        group.member_id,
                        group.member_epoch,
                    ),
                    context,
                    services,
                )
                async for group in iterate_cooperatively(request.groups)
            ]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    fetch = FetchOffsets(request.group_id, topics, request.require_stable)
    group = await _fetch_group(fetch, context, services)
    if group.error_code and context.api_version < _GROUP_ERRORS_SINCE:
        # There is no room for the group's error but in every partition.
        group.topics = [_failed_topic(topic, group.error_code) for topic in topics or ()]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[_partition_before_v8(fetched, context) for fetched in topic.partitions],
            )
            for topic in group.topics
        ],
    )


def _partition_before_v8(
    fetched: OffsetFetchResponsePartitions, context: RequestContext
) -> OffsetFetchResponsePartition:
    error = fetched.error_code
    if context.api_version == 0 and not error and fetched.committed_offset < 0:
        # v0 read from ZooKeeper, where nothing was no answer.
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetFetchResponsePartition(
        partition_index=fetched.partition_index,
        committed_offset=fetched.committed_offset,
        committed_leader_epoch=fetched.committed_leader_epoch,
        metadata=fetched.metadata,
        error_code=error,
    )


async def _fetch_group(
    fetch: FetchOffsets, context: RequestContext, services: Services
) -> OffsetFetchResponseGroup:
    group_id, topics = fetch.group_id, fetch.topics
    answer = OffsetFetchResponseGroup(group_id=group_id)
    if not services.authorizer.is_allowed(
        context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id
    ):
        answer.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return answer
    wanted = None
    refused: dict[int, OffsetFetchResponseTopics] = {}
    if topics is not None:
        wanted, refused = _split_by_authorization(topics, context, services)
    # Also if no topic is left: whether the asker may ask is the shard's to say.
    admitted = msgspec.structs.replace(fetch, topics=wanted)
    try:
        response = await services.group_coordinator.call(group_id, admitted, context)
    except ApiError as error:
        answer.error_code = error.code
        return answer
    assert isinstance(response, OffsetFetchResponseGroup)
    if response.error_code != ErrorCode.NONE:
        return response
    answer = response
    if topics is None:
        answer.topics = [topic for topic in answer.topics if _is_visible(topic, context, services)]
    for at, topic in sorted(refused.items()):
        answer.topics.insert(at, topic)
    return answer


def _split_by_authorization(
    topics: list[OffsetFetchRequestTopics], context: RequestContext, services: Services
) -> tuple[list[OffsetFetchRequestTopics], dict[int, OffsetFetchResponseTopics]]:
    """The topics to ask the shard for, by name and id; and the answers of the others by place."""
    wanted: list[OffsetFetchRequestTopics] = []
    refused: dict[int, OffsetFetchResponseTopics] = {}
    for at, topic in enumerate(topics):
        found, error = _resolve(
            topic.name, topic.topic_id, AclOperation.DESCRIBE, context, services
        )
        if error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            # Nothing is committed on what does not exist, and that is no error.
            wanted.append(
                OffsetFetchRequestTopics(
                    name=found.name if found is not None else topic.name,
                    topic_id=found.topic_id if found is not None else ZERO_UUID,
                    partition_indexes=topic.partition_indexes,
                )
            )
        else:
            refused[at] = _failed_topic(topic, error)
    return wanted, refused


def _failed_topic(topic: OffsetFetchRequestTopics, error_code: int) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=error_code
            )
            for index in topic.partition_indexes
        ],
    )


def _is_visible(
    topic: OffsetFetchResponseTopics, context: RequestContext, services: Services
) -> bool:
    """Whether a topic belongs into the answer for all; completes its id.

    Offsets on an earlier topic of the same name wait for their removal.
    """
    if not services.authorizer.is_allowed(
        context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name
    ):
        return False
    found = services.image.topics_by_name.get(topic.name)
    if found is None:
        return context.api_version < _TOPIC_IDS_SINCE
    is_current = topic.topic_id in (ZERO_UUID, found.topic_id)
    topic.topic_id = found.topic_id
    return is_current


# -- OffsetDelete ---------------------------------------------------------------------------------


async def handle_offset_delete(
    request: OffsetDeleteRequest, context: RequestContext, services: Services
) -> OffsetDeleteResponse:
    """Forget positions on topics that the group does not read."""
    if not services.authorizer.is_allowed(
        context, AclOperation.DELETE, ResourceType.GROUP, request.group_id
    ):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    valid: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        found, error = _resolve(topic.name, ZERO_UUID, AclOperation.READ, context, services)
        count = len(found.partitions) if found is not None else 0
        known = [p for p in topic.partitions if 0 <= p.partition_index < count]
        if known:
            valid.append(OffsetDeleteRequestTopic(name=topic.name, partitions=known))
        unknown = [
            OffsetDeleteResponsePartition(
                partition_index=partition.partition_index,
                error_code=error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for partition in topic.partitions
            if not 0 <= partition.partition_index < count
        ]
        if unknown:
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=unknown))
    delete = OffsetDeleteRequest(group_id=request.group_id, topics=valid)
    try:
        response = await services.group_coordinator.call(request.group_id, delete, context)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
    assert isinstance(response, OffsetDeleteResponse)
    if not response.error_code:
        _merge(response.topics, refused)
    return response


def _merge(
    topics: list[OffsetDeleteResponseTopic], others: list[OffsetDeleteResponseTopic]
) -> None:
    by_name = {topic.name: topic for topic in topics}
    for other in others:
        topic = by_name.get(other.name)
        if topic is None:
            topics.append(other)
        else:
            topic.partitions += other.partitions
