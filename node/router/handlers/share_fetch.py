"""ShareFetch (78): versions 1 and 2.

A member acquires records from the partitions of its share session, in result, and gets the batches
that hold them as they are in the log: without a copy of large ones, and without batches of which
nothing was acquired. Acknowledgements in the request are processed first. v2 adds the acquire mode
(KIP-1206) and the renewal of locks (KIP-1222), which fetches nothing.

A fetch waits for records as in Fetch, but in order of arrival: new and released records wake only
as many waiting fetches as there are records for (fetch_purgatory.py).
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from odradek.coordinator.share.acquisition import AcquiredRange, AcquireOptions
from odradek.node.router.addresses import endpoints_of
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively, take_turn
from odradek.node.router.fetch_purgatory import ExclusiveWatch
from odradek.node.router.handlers.share_acknowledge import (
    AcknowledgeOutcome,
    ShareMemberContext,
    current_leader_for,
    find_led_partition,
    process_acknowledgements,
    share_member_context,
)
from odradek.node.router.logs import LocatedLog
from odradek.node.router.share.partitions import HostedSharePartition
from odradek.node.router.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSession,
    TopicIdPartition,
)
from odradek.node.router.share.share_partition_log import SharePartitionRead
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)

BATCH_OPTIMIZED = 0
RECORD_LIMIT = 1
"""The acquire mode in which the number of records is a strict limit (KIP-1206)."""

BATCHES_PER_TURN = 1_000
"""Batches that are read, or acquired from, in one slice of the loop: about ten milliseconds."""


@dataclass(slots=True)
class _ReadResult:
    """One pass over all partitions of a session."""

    reads: list[tuple[HostedSharePartition, SharePartitionRead]] = field(default_factory=list)
    errors: dict[TopicIdPartition, ErrorCode] = field(default_factory=dict)
    ends: list[tuple[LocatedLog, int]] = field(default_factory=list)
    watches: list[ExclusiveWatch] = field(default_factory=list)
    byte_count: int = 0


@dataclass(slots=True)
class _AcquireResult:
    """What was acquired, by partition in the order of acquisition, and the errors."""

    acquired: dict[TopicIdPartition, ShareFetchPartitionData] = field(default_factory=dict)
    errors: dict[TopicIdPartition, ErrorCode] = field(default_factory=dict)
    record_count: int = 0


async def handle_share_fetch(
    request: ShareFetchRequest, context: RequestContext, services: Services
) -> ShareFetchResponse:
    """Process acknowledgements, then acquire records; waits up to `max_wait_ms`."""
    caller = share_member_context(request.group_id, request.member_id, context, services)
    _check(request)
    is_first = request.share_session_epoch == INITIAL_EPOCH
    if is_first and any(
        requested.acknowledgement_batches
        for topic in request.topics
        for requested in topic.partitions
    ):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A new share session has no records to acknowledge (epoch 0).",
        )
    session = services.share_sessions.for_fetch(
        request, caller.group_id, caller.member_id, context.connection_id
    )
    is_renewal = request.is_renew_ack
    processed = process_acknowledgements(request.topics, caller, is_renewal=is_renewal)
    outcomes = [outcome async for outcome in iterate_cooperatively(processed, context)]
    acquisition = _AcquireResult()
    if request.share_session_epoch == FINAL_EPOCH:
        services.share_sessions.close(session)
        services.share_partitions.release(session, was_delivered=False)
    elif request.max_records > 0 and request.max_bytes > 0 and not is_renewal:
        acquisition = await _acquire_records(request, session, caller)
    return await _response(acquisition, outcomes, caller)


def _check(request: ShareFetchRequest) -> None:
    """ApiError if the request is invalid. The session does not change then."""
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(limits):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A request that renews locks fetches nothing: MaxWaitMs, MinBytes, MaxBytes and"
            " MaxRecords must be 0.",
        )
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown share acquire mode {request.share_acquire_mode}; use 0 (batch optimized)"
            " or 1 (record limit).",
        )


async def _acquire_records(
    request: ShareFetchRequest, session: ShareSession, caller: ShareMemberContext
) -> _AcquireResult:
    context, services = caller.context, caller.services
    settings = services.metadata.broker_settings()
    bytes_max = min(request.max_bytes, settings.fetch_max_bytes)
    deadline_ms = services.now_ms() + max(0, request.max_wait_ms)
    acquisition = _AcquireResult()
    while session.is_open:
        result = await _read_partitions(session, request.max_records, bytes_max, caller)
        remaining_ms = deadline_ms - services.now_ms()
        is_over = remaining_ms <= 0 or not result.ends
        if result.byte_count >= request.min_bytes or result.errors or is_over:
            is_any = await _acquire(result, request, session, acquisition, caller)
            if acquisition.record_count or result.errors or is_over or request.min_bytes <= 0:
                break
            if is_any:
                # Only markers and gaps: records may follow. Yield to the event loop first.
                await asyncio.sleep(0)
                continue
        if not await services.fetch_purgatory.park(
            (),
            remaining_ms,
            partial(_has_advanced, result),
            owner=context.connection_id,
            exclusive_watches=result.watches,
        ):
            # No partition advanced. There may still be less than `min_bytes`.
            deadline_ms = 0
    return acquisition


def _has_advanced(result: _ReadResult) -> bool:
    return any(log.progress() != progress for log, progress in result.ends)


async def _read_partitions(
    session: ShareSession, records_max: int, bytes_max: int, caller: ShareMemberContext
) -> _ReadResult:
    partitions = caller.services.share_partitions
    result = _ReadResult()
    record_count = batch_count = 0
    async for topic_partition in iterate_cooperatively(list(session.partitions), caller.context):
        partition, log, error = find_led_partition(topic_partition, caller)
        if partition is None or log is None:
            result.errors[topic_partition] = error
            continue
        hosted = partitions.get(caller.group_id, topic_partition, partition)
        if hosted.error_code:
            result.errors[topic_partition] = hosted.error_code
            continue
        # Taken before the records are read, so that no advance is missed.
        result.ends.append((log, log.progress()))
        result.watches.append(
            ExclusiveWatch(
                hosted.key,
                (log.store, log.number),
                partial(partitions.has_acquirable_records, hosted.key),
            )
        )
        if record_count >= records_max or (result.byte_count and result.byte_count >= bytes_max):
            continue
        read = partitions.read(
            hosted,
            records_max - record_count,
            max(0, bytes_max - result.byte_count),
            min_one_batch=result.byte_count == 0,
        )
        if read is not None:
            result.reads.append((hosted, read))
            batch_count += read.result.batch_count
            if batch_count >= BATCHES_PER_TURN:
                batch_count = 0
                await take_turn(caller.context)
            result.byte_count += read.result.byte_count
            record_count += sum(batch.end - max(batch.start, read.offset) for batch in read.batches)
    return result


async def _acquire(
    result: _ReadResult,
    request: ShareFetchRequest,
    session: ShareSession,
    acquisition: _AcquireResult,
    caller: ShareMemberContext,
) -> bool:
    """Acquire from what was read, unless the session has ended meanwhile. Returns whether anything
    was read."""
    acquisition.errors = result.errors
    is_exact = request.share_acquire_mode == RECORD_LIMIT
    batch_count = 0
    for hosted, read in result.reads:
        left = request.max_records - acquisition.record_count
        if left <= 0:
            break
        if batch_count >= BATCHES_PER_TURN:
            batch_count = 0
            await take_turn(caller.context)
        if not session.is_open:
            break
        batch_count += read.result.batch_count
        options = AcquireOptions(
            records_max=left,
            batch_size=request.batch_size if request.batch_size > 0 else left,
            is_exact=is_exact,
        )
        partitions = caller.services.share_partitions
        acquired = partitions.acquire(hosted, read, caller.member_id, options)
        if not acquired:
            continue
        topic_partition = hosted.key.topic_partition
        acquisition.acquired[topic_partition] = ShareFetchPartitionData(
            partition_index=topic_partition.partition,
            records=_records(read, acquired),
            acquired_records=[
                AcquiredRecords(
                    first_offset=found.start,
                    last_offset=found.end - 1,
                    delivery_count=found.delivery_count,
                )
                for found in acquired
            ],
        )
        acquisition.record_count += sum(found.end - found.start for found in acquired)
        if read.result.hold is not None:
            caller.context.holds.append(read.result.hold)
        # A partition that returned records goes to the end: a full response would starve those
        # behind it.
        if topic_partition in session.partitions:
            session.partitions.move_to_end(topic_partition)
    return bool(result.reads)


def _records(read: SharePartitionRead, acquired: list[AcquiredRange]) -> list[bytes | memoryview]:
    """The batches that hold acquired records, without a copy. Adjacent batches stay one buffer."""
    pieces: list[bytes | memoryview] = []
    buffers = read.result.buffers
    current, start, end = -1, 0, 0
    ranges = iter(acquired)
    wanted = next(ranges, None)
    for index, span in read.spans:
        while wanted is not None and wanted.end <= span.start:
            wanted = next(ranges, None)
        if wanted is None:
            break
        if wanted.start >= span.end:
            continue
        if index == current and span.at == end:
            end = span.at + span.size
            continue
        if current >= 0:
            pieces.append(memoryview(buffers[current])[start:end])
        current, start, end = index, span.at, span.at + span.size
    if current >= 0:
        pieces.append(memoryview(buffers[current])[start:end])
    return pieces


async def _response(
    acquisition: _AcquireResult, outcomes: list[AcknowledgeOutcome], caller: ShareMemberContext
) -> ShareFetchResponse:
    services = caller.services
    answers = acquisition.acquired
    leaders: set[int] = set()
    for topic_partition, code in acquisition.errors.items():
        answer = _answer(answers, topic_partition)
        answer.error_code = code
        answer.current_leader = current_leader_for(topic_partition, code, leaders, services)
    for topic_partition, outcome, message in outcomes:
        code = outcome if isinstance(outcome, ErrorCode) else await outcome
        answer = _answer(answers, topic_partition)
        answer.acknowledge_error_code = code
        answer.acknowledge_error_message = message
        if not answer.error_code:
            answer.current_leader = current_leader_for(topic_partition, code, leaders, services)
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for topic_partition, answer in answers.items():
        topic = topics.get(topic_partition.topic_id)
        if topic is None:
            topic = topics[topic_partition.topic_id] = ShareFetchableTopicResponse(
                topic_id=topic_partition.topic_id
            )
        topic.partitions.append(answer)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=services.share_partitions.group_settings(
            caller.group_id
        ).lock_duration_ms,
        responses=list(topics.values()),
        node_endpoints=endpoints_of(leaders, services.image, caller.context, services.node_id),
    )


def _answer(
    answers: dict[TopicIdPartition, ShareFetchPartitionData], topic_partition: TopicIdPartition
) -> ShareFetchPartitionData:
    answer = answers.get(topic_partition)
    if answer is None:
        answer = answers[topic_partition] = ShareFetchPartitionData(
            partition_index=topic_partition.partition, records=b""
        )
    return answer
