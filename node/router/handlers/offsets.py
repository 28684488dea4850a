"""ListOffsets (2), versions 0 to 11, and OffsetForLeaderEpoch (23), versions 0 to 4.

ListOffsets: v0 returns a list of offsets; v1 one offset with its timestamp; v2 isolation levels; v4
leader epochs; v5 OFFSET_NOT_AVAILABLE while a new leader does not know its high watermark yet
(KIP-207); v7 the offset of the largest timestamp (KIP-734); v8 and v9 local and tiered offsets
(KIP-405, 1005); v11 earliest pending upload. There is no tiered storage here, so the earliest local
offset is the earliest offset. OffsetForLeaderEpoch (KIP-101, 279, 320) returns the end offset of
the largest epoch up to the requested one. The router reads both from the stores itself.
"""

from collections import Counter

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.image import PartitionImage, TopicImage
from odradek.cluster.replication.partition import check_leader
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, run_work
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from odradek.storage.reader import StoreReader

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
"""As in Kafka: any replica answers, with its log end offset. For tools that compare replicas."""
_SINCE_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1


async def handle_list_offsets(
    request: ListOffsetsRequest, context: RequestContext, services: Services
) -> ListOffsetsResponse:
    """One offset per partition: an end, or the first record at or after a timestamp."""
    pace = LoopYielder(context)
    times_named: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for wanted in topic.partitions:
            await pace.step()
            times_named[topic.name, wanted.partition_index] += 1
    topics = []
    for topic in request.topics:
        await pace.step()
        image = services.image.topics_by_name.get(topic.name)
        is_allowed = services.authorizer.is_topic_allowed(
            context, AclOperation.DESCRIBE, topic.name
        )
        answers = []
        for wanted in topic.partitions:
            await pace.step()
            answer = ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, timestamp=-1, offset=-1
            )
            if not is_allowed:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif times_named[topic.name, wanted.partition_index] > 1:
                answer.error_code = ErrorCode.INVALID_REQUEST
            else:
                answer.error_code = await _list(answer, wanted, image, request, context, services)
            answers.append(answer)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _list(
    answer: ListOffsetsPartitionResponse,
    wanted: ListOffsetsPartition,
    topic: TopicImage | None,
    request: ListOffsetsRequest,
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    version = context.api_version
    located = locate_leader(
        topic,
        wanted.partition_index,
        wanted.current_leader_epoch,
        services,
        is_any_replica=request.replica_id == DEBUGGING_REPLICA_ID,
    )
    if isinstance(located, ErrorCode):
        return located
    partition, reader, number = located
    status = reader.status
    is_for_client = request.replica_id == CONSUMER_REPLICA_ID
    is_committed_only = version >= 2 and request.isolation_level == _READ_COMMITTED
    if not is_for_client:
        end = status.log_end_offset(number)
    elif is_committed_only:
        end = status.last_stable_offset(number)
    else:
        end = status.high_watermark(number)
    start = status.log_start_offset(number)
    timestamp = wanted.timestamp
    if version == 0:
        return await _list_old(answer, wanted, reader, number, start=start, end=end)
    if timestamp < 0 and version < _SINCE_VERSION.get(timestamp, 2**15):
        return ErrorCode.UNSUPPORTED_VERSION
    answer.leader_epoch = partition.leader_epoch
    match timestamp:
        case -1:
            if is_for_client and _is_end_unknown(partition, reader, number):
                return _not_available(answer, version)
            answer.offset = end
        case -2 | -4:
            answer.offset = start
            answer.leader_epoch = reader.epoch_at(number, start)
        case -5 | -6:
            # No tiered storage: no offset, as in Kafka without remote storage.
            answer.leader_epoch = -1
        case _:
            found = await run_work(
                reader.max_timestamp_offset(number, end_offset=end)
                if timestamp == MAX_TIMESTAMP
                else reader.offset_for_timestamp(number, timestamp, end_offset=end)
            )
            if found is None:
                if is_for_client and _is_end_unknown(partition, reader, number):
                    # The record may be above the high watermark that this leader knows.
                    return _not_available(answer, version)
                answer.leader_epoch = -1
            else:
                answer.offset, answer.timestamp, answer.leader_epoch = found
    return ErrorCode.NONE


def _is_end_unknown(partition: PartitionImage, reader: StoreReader, number: int) -> bool:
    """Whether this leader is new and its high watermark is still below the start of its epoch. An
    end offset returned now could be lower than one that the previous leader returned (KIP-207)."""
    high_watermark = reader.status.high_watermark(number)
    if high_watermark == reader.status.log_end_offset(number):
        return False
    return high_watermark < reader.epoch_start(number, partition.leader_epoch)


def _not_available(answer: ListOffsetsPartitionResponse, version: int) -> ErrorCode:
    answer.leader_epoch = -1
    return ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE


async def _list_old(
    answer: ListOffsetsPartitionResponse,
    wanted: ListOffsetsPartition,
    reader: StoreReader,
    number: int,
    *,
    start: int,
    end: int,
) -> ErrorCode:
    """Version 0: offsets in descending order, at most `max_num_offsets`."""
    if wanted.timestamp == LATEST:
        offsets = [end, start] if end != start else [end]
    elif wanted.timestamp == EARLIEST:
        offsets = [start]
    else:
        found = await run_work(
            reader.offset_for_timestamp(number, wanted.timestamp, end_offset=end)
        )
        offsets = [start] if found is None or found[0] <= start else [found[0], start]
    answer.old_style_offsets = offsets[: max(0, wanted.max_num_offsets)]
    return ErrorCode.NONE


def locate_leader(
    topic: TopicImage | None,
    index: int,
    current_leader_epoch: int,
    services: Services,
    *,
    is_any_replica: bool = False,
) -> tuple[PartitionImage, StoreReader, int] | ErrorCode:
    """The partition, with the reader of its store and its number there, if this node leads it in
    the client's leader epoch. With `is_any_replica`, also if it is a follower."""
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[index]
    refusal = check_leader(partition, services.node_id, current_leader_epoch)
    is_here = is_any_replica and services.node_id in partition.replicas
    if refusal and not (is_here and refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER):
        return refusal
    log = services.logs.open(topic.topic_id, index)
    if log is None:
        return services.missing_log_error
    return partition, log.reader, log.number


async def handle_offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext, services: Services
) -> OffsetForLeaderEpochResponse:
    """The end offset of the largest epoch up to each requested one, or (-1, -1).

    Needs DESCRIBE on the topics, or CLUSTER_ACTION, as a broker has."""
    is_broker = services.authorizer.is_cluster_allowed(context, AclOperation.CLUSTER_ACTION)
    pace = LoopYielder(context)
    topics = []
    for topic in request.topics:
        await pace.step()
        image = services.image.topics_by_name.get(topic.topic)
        is_allowed = is_broker or services.authorizer.is_topic_allowed(
            context, AclOperation.DESCRIBE, topic.topic
        )
        answers = []
        for wanted in topic.partitions:
            await pace.step()
            answers.append(
                _epoch_end(wanted, image, services)
                if is_allowed
                else EpochEndOffset(
                    partition=wanted.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
            )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(
    wanted: OffsetForLeaderPartition, topic: TopicImage | None, services: Services
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition, leader_epoch=-1, end_offset=-1)
    located = locate_leader(topic, wanted.partition, wanted.current_leader_epoch, services)
    if isinstance(located, ErrorCode):
        answer.error_code = located
        return answer
    partition, reader, number = located
    if wanted.leader_epoch == partition.leader_epoch:
        answer.leader_epoch = partition.leader_epoch
        answer.end_offset = reader.status.log_end_offset(number)
    elif wanted.leader_epoch < partition.leader_epoch:
        answer.leader_epoch, answer.end_offset = reader.end_offset_for_epoch(
            number, wanted.leader_epoch
        )
    return answer
