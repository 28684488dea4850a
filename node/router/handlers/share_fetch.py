"""ShareFetch (78): versions 1 and 2.

A member acquires records from the partitions of its share session, in turn, and gets the batches
of the log that hold them: as they lie there, without a copy of large ones, and without those of
which nothing was acquired. Acknowledgements ride along and are taken first. v2 adds the acquire
mode (KIP-1206) and the renewal of locks (KIP-1222), which fetches nothing.

What is not there yet is waited for as in Fetch, but in line: what comes, and what others release,
wakes as many of those who wait as it is enough for.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.share.acquisition import AcquiredRange, AcquireOptions
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_purgatory import ExclusiveWatch
from odradek.node.router.handlers.share_acknowledge import (
    AcknowledgeOutcome,
    ShareMemberContext,
    current_leader_for,
    find_led_partition,
    leader_endpoints,
    process_acknowledgements,
    share_member_context,
)
from odradek.node.router.logs import StoreLocation
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
from odradek.storage.reader import StoreReader

BATCH_OPTIMIZED = 0
RECORD_LIMIT = 1
"""The acquire mode in which the number of records is a limit and not a wish (KIP-1206)."""


@dataclass(slots=True)
class _ReadResult:
    """One look at all partitions of a session."""

    readings: list[tuple[HostedSharePartition, SharePartitionRead]] = field(default_factory=list)
    errors: dict[TopicIdPartition, ErrorCode] = field(default_factory=dict)
    ends: list[tuple[StoreReader, StoreLocation, int]] = field(default_factory=list)
    lines: list[ExclusiveWatch] = field(default_factory=list)
    byte_count: int = 0


@dataclass(slots=True)
class _AcquireResult:
    """What was acquired, by partition in the order in which it was, and why not."""

    acquired: dict[TopicIdPartition, ShareFetchPartitionData] = field(default_factory=dict)
    errors: dict[TopicIdPartition, ErrorCode] = field(default_factory=dict)
    record_count: int = 0


async def handle_share_fetch(
    request: ShareFetchRequest, context: RequestContext, services: Services
) -> ShareFetchResponse:
    """Take acknowledgements, then acquire records; waits for `min_bytes` up to `max_wait_ms`."""
    caller = share_member_context(request.group_id, request.member_id, context, services)
    _check(request)
    is_first = request.share_session_epoch == INITIAL_EPOCH
    if is_first and any(_has_acknowledgements(request)):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "A new session holds nothing that could be acknowledged."
        )
    session = services.share_sessions.for_fetch(
        request, caller.group_id, caller.member_id, context.connection_id
    )
    is_renewal = request.is_renew_ack
    outcomes = list(process_acknowledgements(request.topics, caller, is_renewal=is_renewal))
    acquisition = _AcquireResult()
    if request.share_session_epoch == FINAL_EPOCH:
        services.share_sessions.close(session)
        services.share_partitions.release(session, was_delivered=False)
    elif request.max_records > 0 and request.max_bytes > 0 and not is_renewal:
        acquisition = await _acquire_records(request, session, caller)
    return await _response(acquisition, outcomes, caller)


def _check(request: ShareFetchRequest) -> None:
    """Whether the request is one at all; else ApiError, and the session stays as it is."""
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(limits):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Who renews locks fetches nothing: the wait, bytes and records must be 0.",
        )
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{request.share_acquire_mode} is no acquire mode: 0 is by batch, 1 by record limit.",
        )


async def _acquire_records(
    request: ShareFetchRequest, session: ShareSession, caller: ShareMemberContext
) -> _AcquireResult:
    context, services = caller.context, caller.services
    settings = broker_settings(services.image, services.node_id, services.static_configs)
    bytes_max = min(request.max_bytes, settings.fetch_max_bytes)
    deadline_ms = services.now_ms() + max(0, request.max_wait_ms)
    acquisition = _AcquireResult()
    while session.is_open:
        turn = _read_partitions(session, request.max_records, bytes_max, caller)
        remaining_ms = deadline_ms - services.now_ms()
        is_over = remaining_ms <= 0 or not turn.ends
        if turn.byte_count >= request.min_bytes or turn.errors or is_over:
            is_any = _acquire(turn, request, session, acquisition, caller)
            if acquisition.record_count or turn.errors or is_over or request.min_bytes <= 0:
                break
            if is_any:
                # Nothing but markers and holes: there may be more behind them. Others have a turn.
                await asyncio.sleep(0)
                continue
        if not await services.fetch_purgatory.park(
            (),
            remaining_ms,
            partial(_has_advanced, turn),
            owner=context.connection_id,
            lines=turn.lines,
        ):
            # Nothing has moved. There may be something all the same, though less than was wanted.
            deadline_ms = 0
    return acquisition


def _has_advanced(turn: _ReadResult) -> bool:
    return any(_progress_of(reader, place[1]) != end for reader, place, end in turn.ends)


def _progress_of(reader: StoreReader, number: int) -> int:
    return reader.status.high_watermark(number) + reader.status.last_stable_offset(number)


def _read_partitions(
    session: ShareSession, records_max: int, bytes_max: int, caller: ShareMemberContext
) -> _ReadResult:
    services = caller.services
    partitions = services.share_partitions
    turn = _ReadResult()
    record_count = 0
    for place in list(session.partitions):
        found = find_led_partition(place, caller)
        if found.error_code or found.state is None:
            turn.errors[place] = found.error_code
            continue
        hosted = partitions.get(caller.group_id, place, found.state)
        if hosted.error_code:
            turn.errors[place] = hosted.error_code
            continue
        at = partitions.place(place)
        reader = services.logs.reader(at[0]) if at is not None else None
        if at is None or reader is None:
            turn.errors[place] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            continue
        # Read before the records: what moves meanwhile is seen as a move.
        turn.ends.append((reader, at, _progress_of(reader, at[1])))
        turn.lines.append(
            ExclusiveWatch(hosted.key, at, partial(partitions.has_acquirable_records, hosted.key))
        )
        if record_count >= records_max or (turn.byte_count and turn.byte_count >= bytes_max):
            continue
        reading = partitions.read(
            hosted,
            records_max - record_count,
            max(0, bytes_max - turn.byte_count),
            min_one_batch=turn.byte_count == 0,
        )
        if reading is not None:
            turn.readings.append((hosted, reading))
            turn.byte_count += reading.result.byte_count
            record_count += sum(
                batch.end - max(batch.start, reading.offset) for batch in reading.batches
            )
    return turn


def _acquire(
    turn: _ReadResult,
    request: ShareFetchRequest,
    session: ShareSession,
    acquisition: _AcquireResult,
    caller: ShareMemberContext,
) -> bool:
    """Acquire from what was read; whether anything was read at all."""
    acquisition.errors = turn.errors
    is_exact = request.share_acquire_mode == RECORD_LIMIT
    for hosted, reading in turn.readings:
        left = request.max_records - acquisition.record_count
        if left <= 0:
            break
        options = AcquireOptions(
            records_max=left,
            batch_size=request.batch_size if request.batch_size > 0 else left,
            is_exact=is_exact,
        )
        partitions = caller.services.share_partitions
        acquired = partitions.acquire(hosted, reading, caller.member_id, options)
        if not acquired:
            continue
        place = hosted.key.place
        acquisition.acquired[place] = ShareFetchPartitionData(
            partition_index=place.partition,
            records=_records(reading, acquired),
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
        if reading.result.hold is not None:
            caller.context.holds.append(reading.result.hold)
        # Who was served goes to the end, so that a full response starves nobody for ever.
        session.partitions.move_to_end(place)
    return bool(turn.readings)


def _records(
    reading: SharePartitionRead, acquired: list[AcquiredRange]
) -> list[bytes | memoryview]:
    """The batches that hold acquired records; neighbours stay one buffer, and nothing is copied."""
    pieces: list[bytes | memoryview] = []
    buffers = reading.result.buffers
    current, start, end = -1, 0, 0
    ranges = iter(acquired)
    wanted = next(ranges, None)
    for index, span in reading.spans:
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
    for place, code in acquisition.errors.items():
        answer = _answer(answers, place)
        answer.error_code = code
        answer.current_leader = current_leader_for(place, code, leaders, services)
    for place, outcome, message in outcomes:
        code = outcome if isinstance(outcome, ErrorCode) else await outcome
        answer = _answer(answers, place)
        answer.acknowledge_error_code = code
        answer.acknowledge_error_message = message
        if not answer.error_code:
            answer.current_leader = current_leader_for(place, code, leaders, services)
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for place, answer in answers.items():
        topic = topics.get(place.topic_id)
        if topic is None:
            topic = topics[place.topic_id] = ShareFetchableTopicResponse(topic_id=place.topic_id)
        topic.partitions.append(answer)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=services.share_partitions.group_settings(
            caller.group_id
        ).lock_duration_ms,
        responses=list(topics.values()),
        node_endpoints=leader_endpoints(leaders, caller),
    )


def _answer(
    answers: dict[TopicIdPartition, ShareFetchPartitionData], place: TopicIdPartition
) -> ShareFetchPartitionData:
    answer = answers.get(place)
    if answer is None:
        answer = answers[place] = ShareFetchPartitionData(
            partition_index=place.partition, records=b""
        )
    return answer


def _has_acknowledgements(request: ShareFetchRequest) -> list[bool]:
    return [
        bool(asked.acknowledgement_batches)
        for topic in request.topics
        for asked in topic.partitions
    ]
