"""Ends transactions in partitions: on this node through the workers and the group coordinator, on
others through their routers.

A decision of a transaction coordinator is carried out for ever: a partition without a leader, a
node that is away, a full disk are tried again with growing pauses, until all is done or the shard
that asked has moved, whose new host asks again. A partition that was deleted meanwhile counts as
done. The markers of `__consumer_offsets` are written by the group shard that owns the partition,
because they change what groups have committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from odradek.cluster.metadata.image import NO_LEADER
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.requests import EndProducerTransaction
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.transaction.requests import MarkersWritten, WriteMarkers
from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.node.bus.reply import Reply, drive, start_coroutine
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

R = TypeVar("R")

log = logging.getLogger(__name__)

_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 1.0
_PARTITIONS_PER_REQUEST: Final = 1_000

FINAL_ERROR_CODES: Final = frozenset(
    {
        ErrorCode.NONE,
        # The producer has gone on with a higher epoch: its transaction has ended there before.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""Answers after which a partition needs no further marker of this transaction."""


class MarkerWriter:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: Logs,
        worker_client: WorkerClient,
        inter_broker_client: InterBrokerClient,
        group_coordinator: CoordinatorService[GroupShard],
        partition_verification: PartitionVerification,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits for so many seconds."""
        self._metadata = metadata
        self._logs = logs
        self._worker_client = worker_client
        self._group_coordinator = group_coordinator
        self._partition_verification = partition_verification
        self._inter_broker_client = inter_broker_client
        self._pause = pause
        self.pending_count = 0
        """Transactions whose markers are being written."""

    def write(self, asked: WriteMarkers, context: EffectContext) -> None:
        """Write the markers and tell the shard that asked."""
        self.pending_count += 1
        drive(self._write(asked, context), self._on_written)

    async def append(
        self,
        topic: str,
        partition: int,
        marker: TransactionMarker,
        transaction_version: int,
        *,
        expected_transaction: tuple[int, int] | None = None,
    ) -> int:
        """The error code of one marker in a partition that this node leads. `expected_transaction`
        as in WriteMarker; the shards of groups do not look at it."""
        if topic == CONSUMER_OFFSETS:
            self._partition_verification.ended(marker.producer_id)
            try:
                return await self._group_coordinator.call_shard(
                    partition, EndProducerTransaction(marker)
                )
            except ApiError as error:
                return error.code
        known = self._metadata.image.topics_by_name.get(topic)
        place = self._logs.locate(known.topic_id, partition) if known is not None else None
        if place is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._partition_verification.ended(marker.producer_id)
        answer = await self._worker_client.write_marker(
            store=place[0],
            number=place[1],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_commit=marker.is_commit,
            transaction_version=transaction_version,
            expected_transaction=expected_transaction,
        )
        return answer.error_code

    # -- inside -----------------------------------------------------------------------------------

    async def _write(self, asked: WriteMarkers, context: EffectContext) -> None:
        left = asked.partitions
        pause_s = _RETRY_S_MIN
        while left := await self._try(asked, left, context.coordinator_epoch):
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)
            if not context.is_current():
                return
        done = MarkersWritten(asked.transactional_id, asked.producer_id, asked.producer_epoch)
        await context.report(done, self._pause)

    async def _try(
        self, asked: WriteMarkers, partitions: frozenset[Partition], coordinator_epoch: int
    ) -> frozenset[Partition]:
        """Write all markers at once; what is left to be done."""
        image = self._metadata.image
        marker = TransactionMarker(
            asked.producer_id, asked.producer_epoch, coordinator_epoch, asked.is_commit
        )
        waiting: list[tuple[Partition, Reply[int]]] = []
        by_leader: dict[int, list[Partition]] = {}
        left: set[Partition] = set()
        for partition in sorted(partitions):
            name, index = partition
            topic = image.topics_by_name.get(name)
            if topic is None or index >= len(topic.partitions):
                continue
            leader = topic.partitions[index].leader
            if leader == self._metadata.node_id:
                begun = start_coroutine(self.append(name, index, marker, asked.transaction_version))
                waiting.append((partition, begun))
            elif leader == NO_LEADER:
                left.add(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for node_id, theirs in by_leader.items():
            for start in range(0, len(theirs), _PARTITIONS_PER_REQUEST):
                part = theirs[start : start + _PARTITIONS_PER_REQUEST]
                waiting += self._send_to_leader(node_id, part, marker, asked.transaction_version)
        for partition, written in waiting:
            code = await written
            if code not in FINAL_ERROR_CODES:
                left.add(partition)
                log.info(
                    "the marker of %s is not in %s-%d yet: %s",
                    asked.transactional_id,
                    *partition,
                    ErrorCode(code).name,
                )
        return frozenset(left)

    def _send_to_leader(
        self,
        node_id: int,
        partitions: list[Partition],
        marker: TransactionMarker,
        transaction_version: int,
    ) -> list[tuple[Partition, Reply[int]]]:
        """Have another node write its markers: a reply for each."""
        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.is_commit,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in topics.items()
                    ],
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=transaction_version,
                )
            ]
        )
        replies: dict[Partition, Reply[int]] = {partition: Reply() for partition in partitions}
        asked = self._inter_broker_client.send(node_id, request)

        def settle() -> None:
            codes: dict[Partition, int] = {}
            try:
                response = asked.result()
            except ApiError as error:
                otherwise = error.code
            else:
                otherwise = ErrorCode.REQUEST_TIMED_OUT
                for result in response.markers:
                    for topic in result.topics:
                        for found in topic.partitions:
                            codes[topic.name, found.partition_index] = found.error_code
            for partition, reply in replies.items():
                reply.resolve(codes.get(partition, otherwise))

        asked.on_done(settle)
        return list(replies.items())

    def _on_written(self, _result: None, error: BaseException | None) -> None:
        self.pending_count -= 1
        if error is not None:
            log.error("markers could not be written", exc_info=error)
