"""Finds hanging transactions in partitions that this broker leads, and aborts them if configured.

A round reads shared memory only, unless the last stable offset of a partition has not moved since
the round before. Then its worker lists the open transactions, and if one is late, the
transaction coordinators of all brokers list theirs. What counts as proof is in
coordinator.transaction.hanging_transactions. A round proves nothing if a coordinator does not
answer or moves.

A transaction is aborted by a marker that the worker writes only if the transaction is unchanged, so
that an active producer loses nothing. In `__consumer_offsets`, where the group's shard writes
markers, the transaction is looked up right before.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from odradek.cluster.metadata.image import NO_LEADER
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.transaction.hanging_transactions import (
    HangingTransactionDetector,
    OpenPartitionTransaction,
    Unfinished,
    is_late,
)
from odradek.coordinator.transaction.records import partitions_of
from odradek.coordinator.transaction.transaction_metadata import Partition, TransactionState
from odradek.node.bus.messages import UNSENT, DescribeProducers, ProducersDescribed
from odradek.node.bus.reply import drive
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

log = get_logger(__name__)

_SLICE_COUNT: Final = 500
"""Partitions checked before the loop runs other tasks: half a millisecond."""
_PAUSE_S: Final = 0.001
_UNFINISHED: Final = [
    state.label
    for state in TransactionState
    if state is TransactionState.ONGOING or state.is_prepared
]


class Watchdog:
    """See the module's docstring. Call `follow` after every change of the settings."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: Logs,
        worker_client: WorkerClient,
        inter_broker_client: InterBrokerClient,
        markers: MarkerWriter,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._worker_client = worker_client
        self._inter_broker_client = inter_broker_client
        self._markers = markers
        self._now_ms = now_ms
        self._loop = loop
        self._detector = HangingTransactionDetector()
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = 0.0
        self._is_closed = False
        self.ended_count = 0
        """Transactions that were aborted."""

    @property
    def hanging_count(self) -> int:
        """Hanging transactions in partitions that this broker leads."""
        return len(self._detector.hanging)

    def start(self) -> None:
        """Schedule the next round."""
        self._interval_s = self._interval()
        self._timer = self._loop.call_later(self._interval_s, self._start_round)

    def follow(self) -> None:
        """Use a new interval from now on."""
        if self._timer is not None and self._interval_s != self._interval():
            self._timer.cancel()
            self.start()

    def close(self) -> None:
        """Stop."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def run_round(self) -> None:
        """Search once."""
        detector = self._detector
        examined = detector.begin_round(await self._stalled_partitions())
        if not examined:
            return
        settings = self._metadata.broker_settings()
        limit_ms = settings.transaction_max_timeout_ms + settings.transaction_watchdog_margin_ms
        now_ms = self._now_ms()
        late = [
            found
            for partition in examined
            for found in await self._open_transactions(partition)
            if is_late(found, now_ms=now_ms, limit_ms=limit_ms)
        ]
        unfinished: Unfinished | None = {}
        if late:
            unfinished = await self._known_to_coordinators({found.producer_id for found in late})
        if unfinished is None:
            return
        for found in detector.end_round(examined, late, unfinished):
            log.warning(
                "hanging transaction: no coordinator has it, and read_committed consumers wait",
                topic=found.partition[0],
                partition=found.partition[1],
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                offset=found.start_offset,
                duration_ms=now_ms - found.last_timestamp_ms,
                action="it is aborted (transaction.watchdog.abort.enable)"
                if settings.transaction_watchdog_abort_enable
                else f"abort it with: odradek txn abort {found.partition[0]} {found.partition[1]}"
                f" --start-offset {found.start_offset}",
            )
        if settings.transaction_watchdog_abort_enable:
            for found in [found for found in detector.hanging if found.partition in examined]:
                await self._abort(found)

    # -- inside -----------------------------------------------------------------------------------

    def _interval(self) -> float:
        return self._metadata.broker_settings().transaction_watchdog_interval_ms / 1000

    def _start_round(self) -> None:
        self._timer = None
        drive(self.run_round(), self._on_round_done)

    def _on_round_done(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("the search for hanging transactions failed", exc_info=error)
        if not self._is_closed:
            self.start()

    async def _stalled_partitions(self) -> Mapping[Partition, int]:
        """The last stable offsets of the partitions led here that have an open transaction."""
        stalled: dict[Partition, int] = {}
        count = 0
        for topic in list(self._metadata.image.topics_by_id.values()):
            for index, known in enumerate(topic.partitions):
                count += 1
                if count % _SLICE_COUNT == 0:
                    await asyncio.sleep(_PAUSE_S)
                if known.leader != self._metadata.node_id:
                    continue
                located = self._logs.open(topic.topic_id, index)
                if located is None:
                    continue
                status, number = located.reader.status, located.number
                stable = status.last_stable_offset(number)
                if stable < status.high_watermark(number):
                    stalled[topic.name, index] = stable
        return stalled

    async def _open_transactions(self, partition: Partition) -> list[OpenPartitionTransaction]:
        """The open transactions of a partition; none if it is led elsewhere by now."""
        name, index = partition
        topic = self._metadata.image.topics_by_name.get(name)
        location = self._logs.locate(topic.topic_id, index) if topic is not None else None
        if location is None:
            return []
        described = await self._worker_client.send(DescribeProducers(UNSENT, *location))
        if not isinstance(described, ProducersDescribed):
            return []
        return [
            OpenPartitionTransaction(
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.transaction_start_offset,
                producer.last_timestamp,
            )
            for producer in described.producers
            if producer.transaction_start_offset >= 0
        ]

    async def _known_to_coordinators(self, producer_ids: set[int]) -> Unfinished | None:
        """The partitions of the producers' transactions; None if a coordinator does not answer."""
        before = self._coordinators()
        node_ids = sorted({node_id for node_id, _ in before})
        if NO_LEADER in node_ids:
            return None
        unfinished: dict[int, set[Partition]] = {}
        for node_id in node_ids:
            try:
                listed = await self._inter_broker_client.send(
                    node_id,
                    ListTransactionsRequest(
                        state_filters=_UNFINISHED, producer_id_filters=sorted(producer_ids)
                    ),
                )
                if listed.error_code:
                    raise ApiError(ErrorCode(listed.error_code))
                ids = [state.transactional_id for state in listed.transaction_states]
                if not ids:
                    continue
                described = await self._inter_broker_client.send(
                    node_id, DescribeTransactionsRequest(transactional_ids=ids)
                )
                for state in described.transaction_states:
                    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                        continue
                    if state.error_code:
                        raise ApiError(ErrorCode(state.error_code))
                    partitions = unfinished.setdefault(state.producer_id, set())
                    partitions.update(partitions_of(state.topics))
            except ApiError as error:
                log.info(
                    "a node did not list its transactions", peer_node=node_id, reason=str(error)
                )
                return None
        return unfinished if self._coordinators() == before else None

    def _coordinators(self) -> list[tuple[int, int]]:
        """The broker and leader epoch of each shard."""
        topic = self._metadata.image.topics_by_name.get(TRANSACTION_STATE)
        partitions = topic.partitions if topic is not None else ()
        return [(known.leader, known.leader_epoch) for known in partitions]

    async def _abort(self, found: OpenPartitionTransaction) -> None:
        """Abort a transaction, unless it has changed."""
        if found not in await self._open_transactions(found.partition):
            return
        marker = TransactionMarker(
            found.producer_id,
            found.producer_epoch,
            max(found.coordinator_epoch, 0),
            is_commit=False,
        )
        code = await self._markers.append(
            *found.partition,
            marker,
            0,
            expected_transaction=(found.start_offset, found.last_timestamp_ms),
        )
        if code:
            log.warning(
                "a hanging transaction could not be aborted",
                topic=found.partition[0],
                partition=found.partition[1],
                error_code=ErrorCode(code).name,
            )
            return
        self.ended_count += 1
        self._detector.ended(found)
        log.warning(
            "aborted a hanging transaction",
            topic=found.partition[0],
            partition=found.partition[1],
            producer_id=found.producer_id,
            offset=found.start_offset,
        )
