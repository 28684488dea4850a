"""Fetch (1): versions 0 to 18.

v0-3 get message sets converted down; v4 isolation levels; v5 log start offsets; v7 incremental
sessions (KIP-227); v9 leader epoch fencing (KIP-320); v11 rack and preferred replica (KIP-392); v12
diverging epochs (KIP-595); v13 topic ids; v16 who leads instead (KIP-951). The router reads the
stores itself: no worker takes part, and large batches go from the store's file to the socket
without a copy.

Consumers of v11 and later may ask followers, which serve up to the high watermark that they have
heard of. Between that and its log's end a follower gives nothing and waits, as Kafka does; outside
of its log it says OFFSET_OUT_OF_RANGE without any offsets: upon that clients ask the leader, where
librdkafka would begin anew if it were told a high watermark above its offset.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from odradek.cluster.metadata.broker_configs import RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import BrokerImage, PartitionImage, TopicImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.replication.partition import ANY_EPOCH, check_read
from odradek.cluster.replication.read_replica import NO_REPLICA, preferred_read_replica
from odradek.node.router.addresses import address_of, endpoints_of, leader_for_clients
from odradek.node.router.authorizer import AclOperation
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import (
    CachedPartition,
    FetchContext,
    TopicKey,
    update_if_changed,
)
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.legacy_records import down_convert
from odradek.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from odradek.storage.reader import StoreReader

READ_COMMITTED = 1
_UNLIMITED = 2**31 - 1
_NOT_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _ReplicaSelection(NamedTuple):
    """Where whoever asks may read (KIP-392)."""

    may_follow: bool
    """From followers too."""
    rack: str
    """Where it stands, if it is to be sent to replicas there; else empty."""


@dataclass(slots=True)
class _ReadResult:
    """One look at all partitions of a fetch."""

    answers: list[tuple[CachedPartition, PartitionData]] = field(default_factory=list)
    ends: list[tuple[StoreReader, int, int, int]] = field(default_factory=list)
    record_bytes: int = 0
    must_respond: bool = False
    """Something is to be told at once: an error, a divergence, another replica to read from."""
    has_more: bool = False
    """Some partition gave less than it has: its segment ended, or a limit was reached."""
    holds: list[object] = field(default_factory=list)
    leaders: set[int] = field(default_factory=set)
    """Whom those shall ask who asked us in vain."""


async def handle_fetch(
    request: FetchRequest, context: RequestContext, services: Services
) -> FetchResponse:
    """Whole batches from the one that contains each offset; waits for `min_bytes` up to
    `max_wait_ms`."""
    version = context.api_version
    now_ms = services.now_ms()
    fetch = services.fetch_sessions.new_context(request, version, now_ms)
    if fetch.error_code:
        return FetchResponse(error_code=fetch.error_code, session_id=0)
    settings = broker_settings(services.image, services.node_id, services.static_configs)
    asked_bytes_max = request.max_bytes if version >= 3 else _UNLIMITED
    bytes_max = min(asked_bytes_max, settings.fetch_max_bytes)
    state = request.replica_state
    is_replica = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
    consumer = _ReplicaSelection(
        may_follow=version >= 11 and not is_replica,
        rack=request.rack_id
        if not is_replica and settings.replica_selector_class == RACK_AWARE_SELECTOR
        else "",
    )
    deadline_ms = now_ms + max(0, request.max_wait_ms)
    if not is_replica:
        services.readers.note(
            context.connection_id,
            context.client_id or "",
            context.client_host,
            fetch.partitions,
            session_id=fetch.session_id,
            is_reduced=not fetch.is_incremental or bool(request.forgotten_topics_data),
            is_read_committed=request.isolation_level == READ_COMMITTED,
            now_ms=now_ms,
        )
    while True:
        turn = _read_partitions(request, fetch, consumer, bytes_max, context, services)
        remaining_ms = deadline_ms - services.now_ms()
        if (
            turn.record_bytes >= request.min_bytes
            or turn.must_respond
            or turn.has_more
            or remaining_ms <= 0
            or not turn.ends
        ):
            break
        places = [(store, number) for _, store, number, _ in turn.ends]
        if not await services.fetch_purgatory.park(
            places, remaining_ms, partial(_has_advanced, turn), owner=context.connection_id
        ):
            # Nothing has moved, or nobody is there to be told: the last look is still true.
            break
    context.holds.extend(turn.holds)
    response = _response(fetch, turn, version)
    if turn.leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints_of(
                turn.leaders, services.image, context, services.node_id
            )
        ]
    return response


def _has_advanced(turn: _ReadResult) -> bool:
    for reader, _, number, end in turn.ends:  # noqa: SIM110 - a generator costs more than the rest
        if _progress_of(reader, number) != end:
            return True
    return False


def _progress_of(reader: StoreReader, number: int) -> int:
    # Whichever of the two ends a consumer waits for, it moves with or after the high watermark.
    status = reader.status
    return status.high_watermark(number) + status.last_stable_offset(number)


def _read_partitions(
    request: FetchRequest,
    fetch: FetchContext,
    consumer: _ReplicaSelection,
    bytes_max: int,
    context: RequestContext,
    services: Services,
) -> _ReadResult:
    turn = _ReadResult()
    by_id = context.api_version >= 13
    image = services.image
    topics = image.topics_by_id if by_id else image.topics_by_name
    allowed: dict[TopicKey, bool] = {}
    for wanted in fetch.partitions:
        topic: TopicImage | None = topics.get(wanted.topic)  # type: ignore[arg-type]  # key kind follows the version
        name = topic.name if topic is not None else str(wanted.topic)
        may_read = allowed.get(wanted.topic)
        if may_read is None:
            may_read = allowed[wanted.topic] = services.authorizer.is_topic_allowed(
                context, AclOperation.READ, name
            )
        data = PartitionData(partition_index=wanted.partition, high_watermark=-1)
        turn.answers.append((wanted, data))
        data.error_code = _fill(
            data,
            wanted,
            topic if may_read else None,
            turn,
            request,
            consumer,
            bytes_max,
            context,
            services,
        )
        if not may_read and not by_id:
            data.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if data.error_code:
            services.readers.record_error(
                context.connection_id, wanted.topic, wanted.partition, data.error_code
            )
            turn.must_respond = True
            if (
                data.error_code in _NOT_LEADER_ERRORS
                and topic is not None
                and context.api_version >= 16
            ):
                state = topic.partitions[wanted.partition]
                leader = leader_for_clients(state, services.controller.unreachable)
                turn.leaders.add(leader)
                data.current_leader = LeaderIdAndEpoch(
                    leader_id=leader, leader_epoch=state.leader_epoch
                )
    return turn


def _fill(
    data: PartitionData,
    wanted: CachedPartition,
    topic: TopicImage | None,
    turn: _ReadResult,
    request: FetchRequest,
    consumer: _ReplicaSelection,
    bytes_max: int,
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    version = context.api_version
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= wanted.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[wanted.partition]
    is_leader = partition.leader == services.node_id
    epoch = wanted.current_leader_epoch
    if not is_leader or epoch not in (partition.leader_epoch, ANY_EPOCH):
        refusal = check_read(partition, services.node_id, epoch, may_follow=consumer.may_follow)
        if refusal:
            return refusal
    place = services.logs.locate(topic.topic_id, wanted.partition)
    reader = services.logs.reader(place[0]) if place is not None else None
    if place is None or reader is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    store, number = place
    status = reader.status
    high_watermark = status.high_watermark(number)
    last_stable_offset = status.last_stable_offset(number)
    # As _progress_of has it. Read before the records: what moves meanwhile is seen as a move.
    end = high_watermark + last_stable_offset
    data.high_watermark = high_watermark
    data.last_stable_offset = last_stable_offset
    data.log_start_offset = status.log_start_offset(number)
    offset = wanted.fetch_offset
    data.aborted_transactions = None
    if offset < data.log_start_offset:
        return _out_of_range(data, is_leader=is_leader)
    if wanted.last_fetched_epoch >= 0:
        # Before the log's end is looked at: who has more of an epoch than we do must hear of it.
        end_epoch, end_offset = reader.end_offset_for_epoch(number, wanted.last_fetched_epoch)
        if end_epoch < 0:
            return _out_of_range(data, is_leader=is_leader)
        if end_epoch != wanted.last_fetched_epoch or end_offset < offset:
            data.diverging_epoch = FetchEpochEndOffset(epoch=end_epoch, end_offset=end_offset)
            turn.must_respond = True
            return ErrorCode.NONE
    if offset > status.log_end_offset(number):
        return _out_of_range(data, is_leader=is_leader)
    data.records = b""
    if consumer.rack and is_leader and offset <= high_watermark:
        data.preferred_read_replica = _find_preferred_replica(
            partition, wanted.partition, consumer, context, services
        )
        if data.preferred_read_replica != NO_REPLICA:
            turn.must_respond = True
            return ErrorCode.NONE
    is_committed_only = version >= 4 and request.isolation_level == READ_COMMITTED
    limit = min(high_watermark, last_stable_offset) if is_committed_only else high_watermark
    turn.ends.append((reader, store, number, end))
    if is_committed_only:
        data.aborted_transactions = []
    left = bytes_max - turn.record_bytes
    reached = offset
    if offset < limit and (left > 0 or turn.record_bytes == 0):
        result = reader.read(
            number,
            offset,
            max_bytes=max(0, min(left, wanted.partition_bytes_max)),
            end_offset=limit,
            min_one_batch=turn.record_bytes == 0 or version < 3,
        )
        if result.buffers:
            turn.record_bytes += result.byte_count
            reached = result.next_offset
            data.records = result.buffers
            if result.hold is not None:
                turn.holds.append(result.hold)
            if is_committed_only:
                data.aborted_transactions = [
                    AbortedTransaction(
                        producer_id=aborted.producer_id, first_offset=aborted.first_offset
                    )
                    for aborted in reader.aborted_transactions(number, offset, result.next_offset)
                ]
    turn.has_more |= reached < limit and turn.record_bytes > 0
    if version < 4 and reached > offset:
        return _convert_down(data, version, offset)
    return ErrorCode.NONE


def _out_of_range(data: PartitionData, *, is_leader: bool) -> ErrorCode:
    if not is_leader:
        data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    return ErrorCode.OFFSET_OUT_OF_RANGE


def _find_preferred_replica(
    state: PartitionImage,
    partition: int,
    consumer: _ReplicaSelection,
    context: RequestContext,
    services: Services,
) -> int:
    """Who had better be asked, NO_REPLICA if nobody. Where a connection has just broken, nobody is
    sent."""
    unreachable = services.controller.unreachable

    def is_reachable(broker: BrokerImage) -> bool:
        has_address = address_of(broker, context, services.node_id) is not None
        return has_address and broker.broker_id not in unreachable

    return preferred_read_replica(
        state,
        services.image.brokers,
        consumer.rack,
        partition=partition,
        is_reachable=is_reachable,
    )


def _convert_down(data: PartitionData, version: int, offset: int) -> ErrorCode:
    try:
        data.records = down_convert(data.records, 0 if version < 2 else 1, offset)  # type: ignore[arg-type]  # what read() gave
    except ApiError as error:
        data.records = b""
        return error.code
    except ProtocolError:
        data.records = b""
        return ErrorCode.CORRUPT_MESSAGE
    return ErrorCode.NONE


def _response(fetch: FetchContext, turn: _ReadResult, version: int) -> FetchResponse:
    by_id = version >= 13
    topics: list[FetchableTopicResponse] = []
    current: TopicKey | None = None
    partitions = fetch.session.partitions if fetch.session is not None else None
    for wanted, data in turn.answers:
        if fetch.session is not None:
            is_news = update_if_changed(
                wanted,
                has_records=bool(data.records)
                or data.diverging_epoch is not None
                or data.preferred_read_replica != NO_REPLICA,
                error_code=data.error_code,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if fetch.is_incremental and not is_news:
                continue
            if partitions is not None and data.records:
                # Who was served goes to the end, so that a full response starves nobody for ever.
                partitions.move_to_end((wanted.topic, wanted.partition))
        if wanted.topic != current:
            current = wanted.topic
            topics.append(
                FetchableTopicResponse(topic_id=wanted.topic)  # type: ignore[arg-type]  # key kind follows the version
                if by_id
                else FetchableTopicResponse(topic=wanted.topic)  # type: ignore[arg-type]
            )
        topics[-1].partitions.append(data)
    return FetchResponse(session_id=fetch.session_id, responses=topics)
