"""Offsets of groups: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

OffsetCommit 0-10: v0 has no member, v1 a commit timestamp, v2-4 a retention time, v6 leader epochs
(KIP-320), v7 static members, v9 member epochs of KIP-848, v10 topic ids (KIP-848). OffsetFetch
0-10: v0 reports a missing offset as an error, v2 fetches all topics, v7 stable offsets only
(KIP-447), v8 several groups (KIP-709), v9 members, v10 topic ids. OffsetDelete 0 (KIP-496).

The handlers resolve and authorize topics. A shard gets only topics that exist, with name and id; it
decides whether the member may commit, and has the committed offsets. TxnOffsetCommit
(transactional_offsets.py) uses `commit_offsets` too.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.group.offsets.committed_offsets import (
    CommitResponse,
    refuse_commit_in_slices,
)
from odradek.coordinator.group.requests import FetchOffsets
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    iterate_cooperatively,
    run_in_slices,
    take_turn,
)
from odradek.node.router.handlers.shard_requests import ask_group
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from odradek.protocol.messages.partitions import (
    PartitionResult,
    TopicPartitionNumbers,
    TopicPartitionResults,
)
from odradek.protocol.messages.transactions import TxnOffsetCommitRequest
from odradek.protocol.types import ZERO_UUID, Uuid

PARTITIONS_PER_COMMAND: Final = 1_000
"""Partitions of a request in one command of its shard: ten milliseconds."""
OFFSETS_MAX: Final = 500_000
"""Offsets in one OffsetFetch response; groups beyond get POLICY_VIOLATION."""
_PARTITIONS_PER_ITEM: Final = 10
"""Partitions that OffsetDelete looks at in the time of one item of a LoopYielder."""
_TOPIC_IDS_SINCE: Final = 10
_SEVERAL_GROUPS_SINCE: Final = 8
_GROUP_ERRORS_SINCE: Final = 2

C = TypeVar("C", OffsetCommitRequest, TxnOffsetCommitRequest)


# -- OffsetCommit ---------------------------------------------------------------------------------


async def handle_offset_commit(
    request: OffsetCommitRequest, context: RequestContext, services: Services
) -> CommitResponse:
    """Store offsets. Each partition succeeds or fails by itself."""
    return await commit_offsets(
        request,
        lambda: services.group_coordinator.call(request.group_id, request, context),
        context,
        services,
        is_by_id=context.api_version >= _TOPIC_IDS_SINCE,
    )


async def commit_offsets(
    request: C,
    commit: Callable[[], Awaitable[CommitResponse]],
    context: RequestContext,
    services: Services,
    *,
    is_by_id: bool,
) -> CommitResponse:
    """One answer per partition of the request, in its order. For OffsetCommit and TxnOffsetCommit.

    The request is reduced to the partitions that exist and that the client may read, with names
    and ids. `commit` passes it to the shard, which answers each of them.
    """
    if not services.authorizer.is_group_allowed(context, AclOperation.READ, request.group_id):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return await run_in_slices(refuse_commit_in_slices(request, refusal))
    response = await run_in_slices(
        refuse_commit_in_slices(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )
    answers = iter([answer for topic in response.topics for answer in topic.partitions])
    valid: list[Any] = []
    valid_answers = []
    pace = LoopYielder(context)
    for topic in request.topics:
        await pace.step()
        found, error = resolve_topic(
            topic.name, topic.topic_id, AclOperation.READ, context, services, is_by_id=is_by_id
        )
        partition_count = len(found.partitions) if found is not None else 0
        kept = []
        for partition in topic.partitions:
            await pace.step()
            answer = next(answers)
            if 0 <= partition.partition_index < partition_count:
                kept.append(partition)
                valid_answers.append(answer)
            elif error:
                answer.error_code = error
            if len(kept) == PARTITIONS_PER_COMMAND and found is not None:
                # The shard decides a command at once: a long commit is several.
                named = type(topic)(name=found.name, topic_id=found.topic_id, partitions=kept)
                valid.append(named)
                kept = []
        if found is not None and kept:
            valid.append(type(topic)(name=found.name, topic_id=found.topic_id, partitions=kept))
    waiting = iter(valid_answers)
    for topics in _commands(valid):
        request.topics = topics
        try:
            committed = await commit()
            codes = [each.error_code for topic in committed.topics for each in topic.partitions]
        except ApiError as error:
            is_too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_too_large else error.code
            codes = [code] * sum(len(topic.partitions) for topic in topics)
        for error_code in codes:
            next(waiting).error_code = error_code
        if len(valid_answers) > PARTITIONS_PER_COMMAND:
            # A refusal is answered at once.
            await take_turn(context)
    return response


def _commands(topics: list[Any]) -> Iterator[list[Any]]:
    """The topics of a commit in parts of about PARTITIONS_PER_COMMAND partitions."""
    part: list[Any] = []
    count = 0
    for topic in topics:
        if part and count + len(topic.partitions) > PARTITIONS_PER_COMMAND:
            yield part
            part, count = [], 0
        part.append(topic)
        count += len(topic.partitions)
    if part:
        yield part


def resolve_topic(
    name: str,
    topic_id: Uuid,
    operation: AclOperation,
    context: RequestContext,
    services: Services,
    *,
    is_by_id: bool,
) -> tuple[TopicImage | None, ErrorCode]:
    """The topic that a request names, if it exists and the client may do `operation` on it.

    A name that is denied looks the same whether it exists or not; an id says which, as in Kafka.
    """
    image = services.image
    topic = image.topics_by_id.get(topic_id) if is_by_id else image.topics_by_name.get(name)
    requested = topic.name if topic is not None else name
    if is_by_id and topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    if not services.authorizer.is_topic_allowed(context, operation, requested):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic, ErrorCode.NONE


# -- OffsetFetch ----------------------------------------------------------------------------------


async def handle_offset_fetch(
    request: OffsetFetchRequest, context: RequestContext, services: Services
) -> OffsetFetchResponse:
    """Committed offsets: of one group up to v7, of several groups from v8."""
    if context.api_version >= _SEVERAL_GROUPS_SINCE:
        groups = []
        left = OFFSETS_MAX
        async for wanted in iterate_cooperatively(request.groups, context):
            fetch = FetchOffsets(
                wanted.group_id,
                wanted.topics,
                request.require_stable,
                wanted.member_id,
                wanted.member_epoch,
            )
            found = await _fetch_group(fetch, context, services)
            # A group may be named again and again, each time with all of its offsets.
            left -= sum(len(topic.partitions) for topic in found.topics)
            if left < 0:
                found = OffsetFetchResponseGroup(
                    group_id=wanted.group_id, error_code=ErrorCode.POLICY_VIOLATION
                )
            groups.append(found)
        return OffsetFetchResponse(groups=groups)
    topics = request.topics
    group = await _fetch_group(
        FetchOffsets(request.group_id, topics, request.require_stable), context, services
    )
    if group.error_code and context.api_version < _GROUP_ERRORS_SINCE:
        # These versions have no error code for the group, only one per partition.
        pace = LoopYielder(context)
        group.topics = [
            await _failed_topic(topic, group.error_code, pace) for topic in topics or ()
        ]
    if context.api_version == 0:
        # v0 read from ZooKeeper, and reported a missing offset as an unknown partition.
        for topic in group.topics:
            for partition in topic.partitions:
                if not partition.error_code and partition.committed_offset < 0:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetFetchResponse(error_code=group.error_code, topics=group.topics)


async def _fetch_group(
    fetch: FetchOffsets, context: RequestContext, services: Services
) -> OffsetFetchResponseGroup:
    group_id, topics = fetch.group_id, fetch.topics
    refused: dict[int, OffsetFetchResponseTopic] = {}
    others: list[list[OffsetFetchRequestTopic]] = []
    try:
        services.authorizer.authorize(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        if topics is not None:
            wanted, refused = await _split_by_authorization(topics, context, services)
            # The shard is called even if no topic is left: it checks the member id and epoch.
            first, *others = [*_fetch_commands(wanted)] or [[]]
            fetch = msgspec.structs.replace(fetch, topics=first)
        answer = await services.group_coordinator.call(group_id, fetch, context)
        for part in others:
            await take_turn(context)
            command = msgspec.structs.replace(fetch, topics=part)
            more = await services.group_coordinator.call(group_id, command, context)
            if more.error_code:
                return more
            _join(answer, more)
    except ApiError as error:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error.code)
    if answer.error_code:
        return answer
    if topics is None:
        answer.topics = [topic for topic in answer.topics if _is_visible(topic, context, services)]
    for at, topic in sorted(refused.items()):
        answer.topics.insert(at, topic)
    return answer


def _fetch_commands(
    topics: list[OffsetFetchRequestTopic],
) -> Iterator[list[OffsetFetchRequestTopic]]:
    """The topics of a fetch in parts of at most PARTITIONS_PER_COMMAND partitions."""
    part: list[OffsetFetchRequestTopic] = []
    left = PARTITIONS_PER_COMMAND
    for topic in topics:
        indexes = topic.partition_indexes
        start = 0
        while True:
            taken = indexes[start : start + left]
            part.append(
                OffsetFetchRequestTopic(
                    name=topic.name, topic_id=topic.topic_id, partition_indexes=taken
                )
            )
            start += len(taken)
            left -= max(1, len(taken))
            if left <= 0:
                yield part
                part, left = [], PARTITIONS_PER_COMMAND
            if start >= len(indexes):
                break
    if part:
        yield part


def _join(answer: OffsetFetchResponseGroup, part: OffsetFetchResponseGroup) -> None:
    """Add the answer to the next part. A topic may continue from one part to the next."""
    topics = answer.topics
    for topic in part.topics:
        last = topics[-1] if topics else None
        if last is not None and (last.name, last.topic_id) == (topic.name, topic.topic_id):
            last.partitions += topic.partitions
        else:
            topics.append(topic)


async def _split_by_authorization(
    topics: list[OffsetFetchRequestTopic], context: RequestContext, services: Services
) -> tuple[list[OffsetFetchRequestTopic], dict[int, OffsetFetchResponseTopic]]:
    """The topics for the shard, with name and id, and the refused ones by their index."""
    wanted: list[OffsetFetchRequestTopic] = []
    refused: dict[int, OffsetFetchResponseTopic] = {}
    is_by_id = context.api_version >= _TOPIC_IDS_SINCE
    pace = LoopYielder(context)
    for at, topic in enumerate(topics):
        await pace.step()
        found, error = resolve_topic(
            topic.name, topic.topic_id, AclOperation.DESCRIBE, context, services, is_by_id=is_by_id
        )
        if error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            # A topic that does not exist has no committed offset, which is no error.
            wanted.append(
                OffsetFetchRequestTopic(
                    name=found.name if found is not None else topic.name,
                    topic_id=found.topic_id if found is not None else ZERO_UUID,
                    partition_indexes=topic.partition_indexes,
                )
            )
        else:
            refused[at] = await _failed_topic(topic, error, pace)
    return wanted, refused


async def _failed_topic(
    topic: OffsetFetchRequestTopic, error_code: int, pace: LoopYielder
) -> OffsetFetchResponseTopic:
    partitions = []
    for index in topic.partition_indexes:
        await pace.step()
        partitions.append(
            OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata="", error_code=error_code
            )
        )
    return OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _is_visible(
    topic: OffsetFetchResponseTopic, context: RequestContext, services: Services
) -> bool:
    """Whether a topic belongs into the answer to "all topics". Completes its id.

    Offsets of a deleted topic of the same name are left out; they are removed later.
    """
    if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, topic.name):
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
    """Delete committed offsets of topics that the group does not subscribe to."""
    valid: list[TopicPartitionNumbers] = []
    refused: list[TopicPartitionResults] = []
    pace = LoopYielder(context)
    for topic in request.topics:
        await pace.step(1 + len(topic.partitions) // _PARTITIONS_PER_ITEM)
        found, error = resolve_topic(
            topic.name, ZERO_UUID, AclOperation.READ, context, services, is_by_id=False
        )
        count = len(found.partitions) if found is not None else 0
        known = [p for p in topic.partitions if 0 <= p.partition_index < count]
        valid += [
            TopicPartitionNumbers(
                name=topic.name, partitions=known[start : start + PARTITIONS_PER_COMMAND]
            )
            for start in range(0, len(known), PARTITIONS_PER_COMMAND)
        ]
        unknown = [
            PartitionResult(
                partition_index=partition.partition_index,
                error_code=error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for partition in topic.partitions
            if not 0 <= partition.partition_index < count
        ]
        if unknown:
            refused.append(TopicPartitionResults(name=topic.name, partitions=unknown))
    by_name: dict[str, TopicPartitionResults] = {}
    # Without a valid partition, too: the shard knows whether the group exists.
    for number, topics in enumerate([*_commands(valid)] or [[]]):
        response = await ask_group(
            OffsetDeleteRequest(group_id=request.group_id, topics=topics),
            request.group_id,
            context,
            services,
            operation=AclOperation.DELETE,
            too_large=ErrorCode.MESSAGE_TOO_LARGE,
        )
        if number and response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            # The commands before have deleted its last offsets, and with them the group.
            response = OffsetDeleteResponse(topics=[_nothing_deleted(topic) for topic in topics])
        if response.error_code:
            return response
        for deleted in response.topics:
            _add_results(by_name, deleted)
        if len(valid) > 1:
            await take_turn(context)
    for answer in refused:
        _add_results(by_name, answer)
    return OffsetDeleteResponse(topics=list(by_name.values()))


def _nothing_deleted(topic: TopicPartitionNumbers) -> TopicPartitionResults:
    return TopicPartitionResults(
        name=topic.name,
        partitions=[
            PartitionResult(partition_index=partition.partition_index)
            for partition in topic.partitions
        ],
    )


def _add_results(by_name: dict[str, TopicPartitionResults], answer: TopicPartitionResults) -> None:
    known = by_name.setdefault(answer.name, answer)
    if known is not answer:
        known.partitions += answer.partitions
