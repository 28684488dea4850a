"""Writes records that share groups reject or give up to their dead-letter topics (KIP-1191).

One record is written for each, with headers that say where it came from and why, and with its key,
value and headers if the group copies them. The topic must allow it in its configuration, have the
required prefix in its name, and exist; it can be created on first use.

The record stays in the state Archiving meanwhile, which is persisted: the next leader of the
partition writes it again, so that it may be written twice but is not lost. After GIVE_UP_S, or at
once if a retry cannot help, it is archived without being written; that is counted and logged.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.share.partition import DeadLetterRange
from odradek.node.router.backoff import exponential_backoff
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.node.router.topic_log import log_created_topics
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.protocol.records import Header, Record, build_batch, iter_batches, iter_records

log = get_logger(__name__)

ENABLE_CONFIG: Final = "errors.deadletterqueue.group.enable"
GIVE_UP_S: Final = 20.0
"""How long retriable errors are retried: the failover of a node takes about one second."""
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 1.0
_CREATE_TIMEOUT_MS: Final = 5_000
_APPEND_TIMEOUT_MS: Final = 5_000
_READ_BYTES: Final = 1 << 20
_BATCH_RECORDS_MAX: Final = 1_000
_RECORD_OVERHEAD: Final = 64
"""An upper bound of a record's size without the bytes of key, value and headers."""
_BATCH_OVERHEAD: Final = 128

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"

REJECTED: Final = b"A member of the group has rejected the record."
GIVEN_UP: Final = b"The record was delivered as often as the group allows."


class _UndeliverableError(Exception):
    """An operator has to act; the message says how."""


class DeadLetterQueue:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataCache,
        controller: ControllerLink,
        logs: Logs,
        inter_broker_client: InterBrokerClient,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._logs = logs
        self._now_ms = now_ms
        self._inter_broker_client = inter_broker_client
        self._loop = loop
        self.written_count = 0
        """Records that were written to dead-letter topics."""
        self.dropped_count = 0
        """Records that could not be written."""

    async def write_records(
        self,
        group_id: str,
        topic_partition: TopicIdPartition,
        dead_letters: DeadLetterRange,
        group_settings: ShareGroupSettings,
    ) -> None:
        """Write records of a partition to the group's dead-letter topic. Returns when they are
        written, or given up."""
        source = self._metadata.image.topics_by_id.get(topic_partition.topic_id)
        if source is None:
            return
        if source.name == group_settings.dead_letter_topic:
            self.dropped_count += dead_letters.end - dead_letters.start
            return
        deadline = self._loop.time() + GIVE_UP_S
        offset = dead_letters.start
        pauses = exponential_backoff(RETRY_S_MIN, RETRY_S_MAX)
        while offset < dead_letters.end:
            try:
                topic = await self._topic(group_settings.dead_letter_topic)
                partition = topic_partition.partition % len(topic.partitions)
                batch, end, count = self._batch(
                    group_id, source, topic_partition, dead_letters, offset, topic, group_settings
                )
                if count:
                    await self._append(topic, partition, batch)
                self.written_count += count
                offset = end
                pauses = exponential_backoff(RETRY_S_MIN, RETRY_S_MAX)
            except (ApiError, _UndeliverableError) as error:
                if isinstance(error, _UndeliverableError) or self._loop.time() >= deadline:
                    self.dropped_count += dead_letters.end - offset
                    log.warning(
                        "records of a share group were not written to its dead-letter queue",
                        topic=source.name,
                        partition=topic_partition.partition,
                        offset=offset,
                        end_offset=dead_letters.end,
                        group=group_id,
                        dead_letter_topic=group_settings.dead_letter_topic,
                        reason=str(error),
                    )
                    return
                await asyncio.sleep(next(pauses))

    # -- inside -----------------------------------------------------------------------------------

    async def _topic(self, name: str) -> TopicImage:
        metadata = self._metadata
        settings = metadata.broker_settings()
        prefix = settings.errors_deadletterqueue_topic_name_prefix
        if not name:
            raise _UndeliverableError("The group has no dead-letter topic any more.")
        if not name.startswith(prefix):
            raise _UndeliverableError(
                f"The names of dead-letter topics must start with {prefix!r}."
            )
        topic = metadata.image.topics_by_name.get(name)
        if topic is None:
            if not settings.errors_deadletterqueue_auto_create_topics_enable:
                raise _UndeliverableError(
                    f"The topic does not exist. Create it with {ENABLE_CONFIG}=true."
                )
            await self._create(name)
            topic = metadata.image.topics_by_name.get(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not metadata.topic_settings(name).errors_deadletterqueue_group_enable:
            raise _UndeliverableError(
                f"The topic does not allow it. Set {ENABLE_CONFIG}=true on it."
            )
        return topic

    async def _create(self, name: str) -> None:
        topic = NewTopic(name, uuid.uuid4().bytes, configs=((ENABLE_CONFIG, "true"),))
        reply = await self._controller.submit(CreateTopics((topic,)), _CREATE_TIMEOUT_MS)
        [result] = reply.results
        log_created_topics(reply.results, {"cause": "the dead-letter queue"})
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(ErrorCode(result.error_code), result.error_message)

    def _batch(
        self,
        group_id: str,
        source: TopicImage,
        topic_partition: TopicIdPartition,
        dead_letters: DeadLetterRange,
        start: int,
        topic: TopicImage,
        group_settings: ShareGroupSettings,
    ) -> tuple[bytes, int, int]:
        """A batch for the offsets from `start` on, the first offset after it, and its record
        count."""
        settings = self._metadata.topic_settings(topic.name)
        remaining_bytes = settings.max_message_bytes - _BATCH_OVERHEAD
        now_ms = self._now_ms()
        base = (
            (TOPIC, source.name.encode()),
            (PARTITION, str(topic_partition.partition).encode()),
        )
        rest = (
            (GROUP, group_id.encode()),
            (DELIVERY_COUNT, str(dead_letters.delivery_count).encode()),
            (MESSAGE, REJECTED if dead_letters.is_rejected else GIVEN_UP),
        )
        records: list[Record] = []
        for source_record in self._source_records(
            topic_partition, start, dead_letters.end, copies=group_settings.copies_dead_letters
        ):
            headers: tuple[Header, ...] = (
                *base,
                (OFFSET, str(source_record.offset).encode()),
                *rest,
                *source_record.headers,
            )
            copy = Record(len(records), now_ms, source_record.key, source_record.value, headers)
            size = _record_size(copy)
            if size > remaining_bytes and not records:
                # Too large for a copy: write where it is.
                copy = Record(0, now_ms, None, None, headers[:6])
                size = _record_size(copy)
            remaining_bytes -= size
            if remaining_bytes < 0 or len(records) == _BATCH_RECORDS_MAX:
                return build_batch(records), source_record.offset, len(records)
            records.append(copy)
        return build_batch(records) if records else b"", dead_letters.end, len(records)

    def _source_records(
        self, topic_partition: TopicIdPartition, start: int, end: int, *, copies: bool
    ) -> Iterator[Record]:
        """The records [start, end), with their content if it is copied. Records that were deleted
        or compacted meanwhile are left out of copies."""
        if not copies:
            for offset in range(start, end):
                yield Record(offset, 0, None, None)
            return
        located = self._logs.open(*topic_partition)
        if located is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        reader, _, number = located
        offset = max(start, reader.status.log_start_offset(number))
        while offset < end:
            result = reader.read(number, offset, max_bytes=_READ_BYTES, end_offset=end)
            if not result.buffers:
                return
            for buffer in result.buffers:
                view = memoryview(buffer)
                for at, header in iter_batches(view):
                    if header.is_control:
                        continue
                    try:
                        for record in iter_records(view[at:], header):
                            if offset <= record.offset < end:
                                yield record
                    except ProtocolError:
                        log.warning(
                            "the records of a batch could not be read for the dead-letter queue",
                            offset=header.base_offset,
                        )
            offset = result.next_offset

    async def _append(self, topic: TopicImage, partition: int, batch: bytes) -> None:
        leader = topic.partitions[partition].leader
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=_APPEND_TIMEOUT_MS,
            topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=[data])],
        )
        response = await self._inter_broker_client.send(leader, request)
        code = response.responses[0].partition_responses[0].error_code
        if code:
            raise ApiError(ErrorCode(code))


def _record_size(record: Record) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
