"""Writes the markers that end a transaction, into partitions on any broker.

Partitions led here get them through the workers, those of `__consumer_offsets` through the group
shard, because a marker changes what groups have committed. Other leaders get WriteTxnMarkers.

The decision of a transaction coordinator is final: a partition without a leader, an unreachable
broker or a full disk are retried with growing pauses, until all markers are written or the shard
has moved, whose new host starts again. A partition that was deleted needs no marker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from odradek.cluster.metadata.image import NO_LEADER
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.requests import EndProducerTransaction
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.transaction.records import by_topic
from odradek.coordinator.transaction.requests import MarkersWritten, WriteMarkers
from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.node.bus.messages import UNSENT, WriteMarker
from odradek.node.bus.reply import drive, start_coroutine
from odradek.node.router.backoff import exponential_backoff
from odradek.node.router.cooperative_iteration import gather_cooperatively
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest

log = get_logger(__name__)

_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 1.0
_PARTITIONS_PER_REQUEST: Final = 1_000

FINAL_ERROR_CODES: Final = frozenset(
    {
        ErrorCode.NONE,
        # The producer has a higher epoch: its transaction has ended there before.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""After these codes a partition needs no marker of this transaction any more."""


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

    def write(self, effect: WriteMarkers, context: EffectContext) -> None:
        """Write the markers, and report MarkersWritten to the shard."""
        self.pending_count += 1
        drive(self._write(effect, context), self._on_written)

    async def append(
        self,
        topic: str,
        partition: int,
        marker: TransactionMarker,
        transaction_version: int,
        *,
        expected_transaction: tuple[int, int] | None = None,
    ) -> int:
        """Write one marker into a partition that this broker leads; returns the error code.
        `transaction_version` and `expected_transaction` as in WriteMarker; shards of groups ignore
        the latter."""
        if topic == CONSUMER_OFFSETS:
            self._partition_verification.on_marker(marker.producer_id)
            try:
                return await self._group_coordinator.call_shard(
                    partition, EndProducerTransaction(marker, transaction_version)
                )
            except ApiError as error:
                return error.code
        known = self._metadata.image.topics_by_name.get(topic)
        location = self._logs.locate(known.topic_id, partition) if known is not None else None
        if location is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._partition_verification.on_marker(marker.producer_id)
        message = WriteMarker(
            UNSENT,
            *location,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.is_commit,
            transaction_version,
            expected_transaction=expected_transaction,
        )
        answer = await self._worker_client.send(message)
        return answer.error_code

    # -- inside -----------------------------------------------------------------------------------

    async def _write(self, effect: WriteMarkers, context: EffectContext) -> None:
        marker = TransactionMarker(
            effect.producer_id, effect.producer_epoch, context.coordinator_epoch, effect.is_commit
        )
        left = effect.partitions
        pauses = exponential_backoff(_RETRY_S_MIN, _RETRY_S_MAX)
        while left := await self._try(effect, left, marker):
            await self._pause(next(pauses))
            if not context.is_current():
                return
        done = MarkersWritten(effect.transactional_id, effect.producer_id, effect.producer_epoch)
        await context.report(done, self._pause)

    async def _try(
        self, effect: WriteMarkers, partitions: frozenset[Partition], marker: TransactionMarker
    ) -> frozenset[Partition]:
        """Write all markers at once; returns the partitions without one so far."""
        by_leader: dict[int, list[Partition]] = {}
        for partition in sorted(partitions):
            known = self._metadata.partition(*partition)
            if known is not None:
                by_leader.setdefault(known.leader, []).append(partition)
        left = set(by_leader.pop(NO_LEADER, ()))
        version = effect.transaction_version
        local = by_leader.pop(self._metadata.node_id, [])
        calls = [start_coroutine(self._append_all(local, marker, version))]
        for node_id, remote in by_leader.items():
            for start in range(0, len(remote), _PARTITIONS_PER_REQUEST):
                part = remote[start : start + _PARTITIONS_PER_REQUEST]
                calls.append(start_coroutine(self._send(node_id, part, marker, version)))
        for call in calls:
            for partition, code in (await call).items():
                if code not in FINAL_ERROR_CODES:
                    left.add(partition)
                    log.info(
                        "the marker of a transaction is not written yet",
                        transactional_id=effect.transactional_id,
                        topic=partition[0],
                        partition=partition[1],
                        error_code=ErrorCode(code).name,
                    )
        return frozenset(left)

    async def _append_all(
        self, partitions: list[Partition], marker: TransactionMarker, transaction_version: int
    ) -> dict[Partition, int]:
        """The error codes of partitions that this broker leads."""
        codes = await gather_cooperatively(
            self.append(name, index, marker, transaction_version) for name, index in partitions
        )
        return dict(zip(partitions, codes, strict=True))

    async def _send(
        self,
        node_id: int,
        partitions: list[Partition],
        marker: TransactionMarker,
        transaction_version: int,
    ) -> dict[Partition, int]:
        """The error codes of partitions that another broker leads."""
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.is_commit,
                    topics=by_topic(partitions),
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=transaction_version,
                )
            ]
        )
        try:
            response = await self._inter_broker_client.send(node_id, request)
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)
        codes: dict[Partition, int] = dict.fromkeys(partitions, ErrorCode.REQUEST_TIMED_OUT)
        for result in response.markers:
            for topic in result.topics:
                for found in topic.partitions:
                    codes[topic.name, found.partition_index] = found.error_code
        return codes

    def _on_written(self, _result: None, error: BaseException | None) -> None:
        self.pending_count -= 1
        if error is not None:
            log.error("markers could not be written", exc_info=error)
