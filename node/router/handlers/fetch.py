"""Fetch (1): versions 0 to 18.

v0-3 return message sets, converted down. v4 adds isolation levels, v5 log start offsets, v7
incremental sessions (KIP-227), v9 leader epoch fencing (KIP-320), v11 rack and preferred replica
(KIP-392), v12 diverging epochs (KIP-595), v13 topic ids, v16 the current leader (KIP-951). The
router reads the stores itself, without a worker. Large batches go from the store's file to the
socket without a copy.

Consumers of v11 and later may fetch from followers, up to the high watermark that the follower
knows. Between that and its log end offset a follower returns nothing and waits, as Kafka does. An
offset outside its log gets OFFSET_OUT_OF_RANGE without any offsets: clients then ask the leader,
where librdkafka would reset if it saw a high watermark above its offset.
"""

from dataclasses import dataclass, field
from functools import partial

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.broker_settings import RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import BrokerImage, PartitionImage, TopicImage
from odradek.cluster.replication.partition import ANY_EPOCH, check_read
from odradek.cluster.replication.read_replica import NO_REPLICA, preferred_read_replica
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.addresses import address_of, endpoints_of, leader_for_clients
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import run_work, take_turn
from odradek.node.router.fetch_sessions import (
    CachedPartition,
    FetchContext,
    TopicKey,
    requested_partitions,
    requested_partitions_cooperatively,
    update_if_changed,
)
from odradek.node.router.logs import LocatedLog
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.legacy_records import down_convert
from odradek.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from odradek.protocol.messages.responses import LeaderIdAndEpoch
from odradek.storage.reader import ReadResult, StoreReader
from odradek.storage.transactions import AbortedTransactionRow

READ_COMMITTED = 1
CONVERTED_BYTES_MAX = 1 << 20
"""Bytes of messages that a partition returns to Fetch 0 to 3."""
PARTITIONS_PER_TURN = 100
"""Partitions that are read in one slice of the loop: about three milliseconds, if they have nothing
new."""
BATCHES_PER_TURN = 2_000
"""Batches after which a slice of the loop ends: a few milliseconds, however small they are. The
last partition of a slice may have twice as many."""
ABORTED_PER_TURN = 1_000
"""Aborted transactions after which a slice of the loop ends, and so do the records of a partition:
about three milliseconds."""
_UNLIMITED = 2**31 - 1
_RESPONSE_BYTES = 20
_PARTITION_BYTES = 40
"""Of a response without partitions, and of a partition without records and topic."""
NOT_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(slots=True)
class _ReadResult:
    """One pass over all partitions of a fetch."""

    answers: list[tuple[CachedPartition, PartitionData]] = field(default_factory=list)
    ends: list[tuple[LocatedLog, int]] = field(default_factory=list)
    """The partitions that were read, each with its progress then."""
    record_bytes: int = 0
    sent: list[tuple[TopicKey, int, int]] = field(default_factory=list)
    """For each partition with records: its topic, their bytes, and their number by offsets."""
    aborted_count: int = 0
    batch_count: int = 0
    must_respond: bool = False
    """Respond at once: there is an error, a diverging epoch or a preferred read replica."""
    has_more: bool = False
    """A partition returned less than it has: its segment ended, or a limit was reached."""
    holds: list[object] = field(default_factory=list)
    leaders: set[int] = field(default_factory=set)
    """The current leaders of partitions that this broker does not lead."""


async def handle_fetch(
    request: FetchRequest, context: RequestContext, services: Services
) -> FetchResponse:
    """Whole batches from the one that contains each offset on. Waits for `min_bytes` up to
    `max_wait_ms`."""
    version = context.api_version
    if context.is_long:
        requested = await requested_partitions_cooperatively(request, version)
    else:
        requested = requested_partitions(request, version)
    now_ms = services.now_ms()
    fetch = services.fetch_sessions.new_context(request, version, requested, now_ms)
    if fetch.error_code:
        return FetchResponse(error_code=fetch.error_code, session_id=0)
    if RequestTrace.current is not None:
        # The request itself names only what has changed in its session.
        RequestTrace.current.add_topics({each.topic for each in fetch.partitions})
    # Conversion to old formats may find errors later.
    context.may_have_errors = version < 4
    read = _FetchRead(request, context, services)
    deadline_ms = now_ms + max(0, request.max_wait_ms)
    if not read.is_replica:
        services.fetch_activity.record_fetch(
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
        result = _ReadResult()
        partitions = fetch.partitions
        start = read.read_partitions(partitions, 0, result)
        while start < len(partitions):
            await take_turn(context)
            start = read.read_partitions(partitions, start, result)
        remaining_ms = deadline_ms - services.now_ms()
        if (
            result.record_bytes >= read.min_bytes
            or result.must_respond
            or result.has_more
            or remaining_ms <= 0
            or not result.ends
        ):
            break
        if not await services.fetch_purgatory.park(
            [(log.store, log.number) for log, _ in result.ends],
            remaining_ms,
            partial(_has_advanced, result),
            owner=context.connection_id,
        ):
            # No partition advanced, or the client is gone. The last result still holds.
            break
    if services.client_quotas.is_active and services.client_quotas.is_fetch_throttled(
        context, _response_bytes(result)
    ):
        # The consumer asks again when it is not throttled any more. It does not learn of a session
        # that this request created.
        services.fetch_sessions.discard_new(fetch)
        return FetchResponse(session_id=fetch.session_id if fetch.is_incremental else 0)
    services.fetch_activity.record_sent(result.sent)
    if version < 4:
        await _convert_down(result.answers, version)
    context.holds.extend(result.holds)
    response = FetchResponse(session_id=fetch.session_id)
    answers = result.answers
    for start in range(0, len(answers), PARTITIONS_PER_TURN):
        if start:
            await take_turn(context)
        _add_answers(response, fetch, answers[start : start + PARTITIONS_PER_TURN], version)
    if result.leaders:
        response.node_endpoints = endpoints_of(
            result.leaders, services.image, context, services.node_id
        )
    return response


def _response_bytes(result: _ReadResult) -> int:
    """The size of the response, nearly: what quotas count."""
    partition_count = sum(1 for _, data in result.answers if data.records or data.error_code)
    return _RESPONSE_BYTES + partition_count * _PARTITION_BYTES + result.record_bytes


def _has_advanced(result: _ReadResult) -> bool:
    for log, progress in result.ends:  # noqa: SIM110 - a generator costs more than the rest
        if log.progress() != progress:
            return True
    return False


class _FetchRead:
    """The reads of one Fetch request. Waiting repeats them."""

    __slots__ = (
        "_bytes_max",
        "_can_read_followers",
        "_context",
        "_is_read_committed",
        "_node_id",
        "_rack",
        "_services",
        "_version",
        "is_replica",
        "min_bytes",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        services: Services,
    ) -> None:
        self._context = context
        self._services = services
        self._version = version = context.api_version
        self._node_id = services.metadata.node_id
        settings = services.metadata.broker_settings()
        asked_bytes_max = request.max_bytes if version >= 3 else _UNLIMITED
        self._bytes_max = min(asked_bytes_max, settings.fetch_max_bytes)
        if services.client_quotas.is_active:
            quota_bytes_max = services.client_quotas.fetch_bytes_max(context)
            self._bytes_max = min(self._bytes_max, quota_bytes_max)
        # More than that is never returned.
        self.min_bytes = min(request.min_bytes, self._bytes_max)
        self._is_read_committed = version >= 4 and request.isolation_level == READ_COMMITTED
        state = request.replica_state
        self.is_replica = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
        self._can_read_followers = version >= 11 and not self.is_replica
        is_rack_aware = settings.replica_selector_class == RACK_AWARE_SELECTOR
        # Empty unless the consumer is to be sent to a replica in its rack (KIP-392).
        self._rack = request.rack_id if is_rack_aware and not self.is_replica else ""

    def read_partitions(
        self, partitions: list[CachedPartition], start: int, result: _ReadResult
    ) -> int:
        """Read partitions of the fetch once, from `start` on, as many as one slice of the loop
        allows. Returns where the next slice starts."""
        context, services = self._context, self._services
        by_id = self._version >= 13
        image = services.metadata.image
        topics = image.topics_by_id if by_id else image.topics_by_name
        allowed: dict[TopicKey, bool] = {}
        stop = min(len(partitions), start + PARTITIONS_PER_TURN)
        aborted_max = result.aborted_count + ABORTED_PER_TURN
        batches_max = result.batch_count + BATCHES_PER_TURN
        while (
            start < stop and result.aborted_count < aborted_max and result.batch_count < batches_max
        ):
            wanted = partitions[start]
            start += 1
            topic: TopicImage | None = topics.get(wanted.topic)  # type: ignore[arg-type]  # key kind follows the version
            may_read = allowed.get(wanted.topic)
            if may_read is None:
                name = topic.name if topic is not None else wanted.topic
                if self.is_replica:
                    may_read = services.authorizer.is_cluster_allowed(
                        context, AclOperation.CLUSTER_ACTION
                    )
                else:
                    # An id that is unknown is no name that could be denied.
                    may_read = not isinstance(name, str) or services.authorizer.is_topic_allowed(
                        context, AclOperation.READ, name
                    )
                allowed[wanted.topic] = may_read
            data = PartitionData(partition_index=wanted.partition, high_watermark=-1)
            result.answers.append((wanted, data))
            error = self._read_partition(data, wanted, topic if may_read else None, result)
            if not may_read:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            data.error_code = error
            if error:
                result.must_respond = self._context.may_have_errors = True
                services.fetch_activity.record_error(
                    context.connection_id, wanted.topic, wanted.partition, error
                )
                if error in NOT_LEADER_ERRORS and topic is not None and self._version >= 16:
                    partition = topic.partitions[wanted.partition]
                    leader = leader_for_clients(partition, services.controller.unreachable)
                    result.leaders.add(leader)
                    data.current_leader = LeaderIdAndEpoch(
                        leader_id=leader, leader_epoch=partition.leader_epoch
                    )
        return start

    def _read_partition(
        self,
        data: PartitionData,
        wanted: CachedPartition,
        topic: TopicImage | None,
        result: _ReadResult,
    ) -> ErrorCode:
        """Check that this broker can serve the partition, then the offset; then read."""
        if topic is None:
            is_by_id = self._version >= 13
            return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not 0 <= wanted.partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        services = self._services
        partition = topic.partitions[wanted.partition]
        is_leader = partition.leader == self._node_id
        epoch = wanted.current_leader_epoch
        if not is_leader or epoch not in (partition.leader_epoch, ANY_EPOCH):
            refusal = check_read(
                partition, self._node_id, epoch, may_follow=self._can_read_followers
            )
            if refusal is ErrorCode.OFFSET_NOT_AVAILABLE and not self._rack:
                # The consumer was not sent here because of its rack: it came while this was the
                # leader. Not every client looks for the leader after OFFSET_NOT_AVAILABLE.
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if refusal:
                return refusal
        log = services.logs.open(topic.topic_id, wanted.partition)
        if log is None:
            return services.missing_log_error
        reader, _, number = log
        status = reader.status
        data.high_watermark = high_watermark = status.high_watermark(number)
        data.last_stable_offset = status.last_stable_offset(number)
        data.log_start_offset = log_start_offset = status.log_start_offset(number)
        data.aborted_transactions = None
        offset = wanted.fetch_offset
        # The epoch is compared before the log end offset: a reader that has more of an epoch gets
        # the diverging epoch, not OFFSET_OUT_OF_RANGE.
        if (
            offset < log_start_offset
            or (wanted.last_fetched_epoch >= 0 and not _has_epoch(data, wanted, log))
            or (data.diverging_epoch is None and offset > status.log_end_offset(number))
        ):
            if not is_leader:
                data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if data.diverging_epoch is not None:
            result.must_respond = True
            return ErrorCode.NONE
        data.records = b""
        if self._rack and is_leader and offset <= high_watermark:
            data.preferred_read_replica = self._preferred_replica(partition, wanted.partition)
            if data.preferred_read_replica != NO_REPLICA:
                result.must_respond = True
                return ErrorCode.NONE
        return self._read_records(data, wanted, log, result)

    def _read_records(
        self, data: PartitionData, wanted: CachedPartition, log: LocatedLog, result: _ReadResult
    ) -> ErrorCode:
        offset, high_watermark = wanted.fetch_offset, data.high_watermark
        # As LocatedLog.progress: taken before the records are read, so that no advance is missed.
        result.ends.append((log, high_watermark + data.last_stable_offset))
        limit = high_watermark
        if self._is_read_committed:
            limit = min(high_watermark, data.last_stable_offset)
            data.aborted_transactions = []
        left = self._bytes_max - result.record_bytes
        if offset >= limit or (left <= 0 and result.record_bytes):
            result.has_more |= offset < limit and result.record_bytes > 0
            return ErrorCode.NONE
        reader, _, number = log
        read = reader.read(
            number,
            offset,
            max_bytes=max(0, min(left, wanted.partition_bytes_max)),
            end_offset=limit,
            min_one_batch=result.record_bytes == 0 or self._version < 3,
        )
        reached = offset
        if read.buffers:
            if self._is_read_committed:
                read, aborted = _with_aborted(reader, number, offset, read)
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                    for each in aborted
                ]
                result.aborted_count += len(aborted)
            result.record_bytes += read.byte_count
            result.batch_count += read.batch_count
            reached = read.next_offset
            result.sent.append((wanted.topic, read.byte_count, reached - offset))
            data.records = read.buffers
            if read.hold is not None:
                result.holds.append(read.hold)
        result.has_more |= reached < limit and result.record_bytes > 0
        return ErrorCode.NONE

    def _preferred_replica(self, partition: PartitionImage, index: int) -> int:
        """The replica that the consumer should read from (KIP-392), NO_REPLICA for this one. A
        broker whose connection has just broken is not chosen."""
        services = self._services
        unreachable = services.controller.unreachable

        def is_reachable(broker: BrokerImage) -> bool:
            has_address = address_of(broker, self._context, self._node_id) is not None
            return has_address and broker.broker_id not in unreachable

        return preferred_read_replica(
            partition,
            services.image.brokers,
            self._rack,
            partition=index,
            is_reachable=is_reachable,
        )


def _with_aborted(
    reader: StoreReader, number: int, offset: int, read: ReadResult
) -> tuple[ReadResult, list[AbortedTransactionRow]]:
    """The records from `offset` on, fewer if very many transactions among them were aborted, and
    the aborted transactions."""
    aborted = reader.aborted_transactions(
        number, offset, read.next_offset, count_max=ABORTED_PER_TURN
    )
    if len(aborted) < ABORTED_PER_TURN:
        return read, aborted
    end_offset = aborted[ABORTED_PER_TURN - 1].last_offset + 1
    if end_offset >= read.next_offset:
        return read, aborted
    shorter = reader.read(
        number, offset, max_bytes=read.byte_count, end_offset=end_offset, min_one_batch=True
    )
    if shorter.buffers:
        return shorter, aborted
    # Compaction has removed the records of all these transactions.
    return read, reader.aborted_transactions(number, offset, read.next_offset)


def _has_epoch(data: PartitionData, wanted: CachedPartition, log: LocatedLog) -> bool:
    """Whether the log knows the epoch of the last fetched record. Sets `diverging_epoch` if that
    epoch ends here before the fetch offset (KIP-595)."""
    epoch = wanted.last_fetched_epoch
    end_epoch, end_offset = log.reader.end_offset_for_epoch(log.number, epoch)
    if end_epoch >= 0 and (end_epoch != epoch or end_offset < wanted.fetch_offset):
        data.diverging_epoch = FetchEpochEndOffset(epoch=end_epoch, end_offset=end_offset)
    return end_epoch >= 0


async def _convert_down(answers: list[tuple[CachedPartition, PartitionData]], version: int) -> None:
    """Message sets of old formats instead of batches, as many messages as are converted soon."""
    for wanted, data in answers:
        if not data.records:
            continue
        batches, data.records = data.records, b""
        work = down_convert(
            batches,  # type: ignore[arg-type]  # what read() gave
            0 if version < 2 else 1,
            wanted.fetch_offset,
            bytes_max=CONVERTED_BYTES_MAX,
        )
        try:
            data.records = await run_work(work)
        except ApiError as error:
            data.error_code = error.code
        except ProtocolError:
            data.error_code = ErrorCode.CORRUPT_MESSAGE


def _add_answers(
    response: FetchResponse,
    fetch: FetchContext,
    answers: list[tuple[CachedPartition, PartitionData]],
    version: int,
) -> None:
    """Add partitions to the response, and note in the session what it says of them."""
    by_id = version >= 13
    topics = response.responses
    current: TopicKey | None = None
    if topics:
        current = topics[-1].topic_id if by_id else topics[-1].topic
    session = fetch.session
    for wanted, data in answers:
        if session is not None:
            is_changed = update_if_changed(
                wanted,
                has_records=bool(data.records)
                or data.diverging_epoch is not None
                or data.preferred_read_replica != NO_REPLICA,
                error_code=data.error_code,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if fetch.is_incremental and not is_changed:
                continue
            if data.records:
                # A partition that returned records goes to the end: a full response would starve
                # those behind it.
                session.partitions.move_to_end((wanted.topic, wanted.partition))
        if wanted.topic != current:
            current = wanted.topic
            topics.append(
                FetchableTopicResponse(topic_id=wanted.topic)  # type: ignore[arg-type]  # key kind follows the version
                if by_id
                else FetchableTopicResponse(topic=wanted.topic)  # type: ignore[arg-type]
            )
        topics[-1].partitions.append(data)
