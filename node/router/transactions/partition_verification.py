"""Adds partitions to transactions, or verifies that they were added (KIP-890).

The transaction's coordinator is called, on whichever broker it is. Clients of transaction version
2 add no partitions themselves: the first batch for a partition does, and waits until the
coordinator has recorded it. Older clients add partitions themselves; here that is only verified,
because a batch that comes after its transaction's end would open a transaction that never ends,
and hold back the last stable offset for ever.

A verification holds until a marker of the producer is written. While the partition is led here,
markers and batches go to it through this one router, in the order in which it sends them: a
verified batch is appended before the marker that ends its transaction. A verification that was
requested before a marker and answered after it is void, and so is one of another leader epoch.

An older client retries a batch whose coordinator was not available. The batches after it are
refused until it comes: otherwise the first of them could become the producer's first batch in the
partition, and the retried one would be out of order. That holds for the leader epoch: what is
retried after the partition has moved comes to another leader, perhaps never here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from odradek.coordinator.transaction.records import by_topic
from odradek.coordinator.transaction.requests import AddPartitions, VerifyPartitions
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import EPOCH_BUMPS_SINCE, Partition
from odradek.node.bus.messages import AppendReply, RequestFailed
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from odradek.protocol.types import NO_EPOCH
from odradek.storage.producer_state import SEQUENCE_MAX

VERIFIED_PRODUCERS_MAX: Final = 10_000
"""Verified producers that are cached; for others the coordinator is called again."""

TRANSACTION_V1: Final = 1
"""The transaction version of clients that add partitions themselves."""
TRANSACTION_V2_MIN_VERSION: Final = 12
"""From this version of Produce on, the broker adds partitions to transactions."""
_ABORTABLE_ERROR_MIN_VERSION: Final = 11
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Append = Callable[[int], Reply[AppendReply]]
"""Appends a batch if the partition is in this leader epoch."""


class _PendingAppend(NamedTuple):
    """A batch that waits for the coordinator."""

    append: Append
    reply: Reply[AppendReply]
    version: int
    sequence: int


@dataclass(slots=True)
class _Verification:
    """A pending request and the batches that wait for it. It is void if a transaction of the
    producer has ended since."""

    entries: list[_PendingAppend]
    leader_epoch: int
    is_void: bool = False


class _RetriedBatch(NamedTuple):
    """The base sequence of a batch that was to be appended in this leader epoch."""

    leader_epoch: int
    sequence: int


class _VerifiedPartitions(NamedTuple):
    """The verified partitions of a producer in its newest epoch, with the leader epoch of each."""

    producer_epoch: int
    partitions: dict[Partition, int]


class TransactionalProducer(NamedTuple):
    """The owner of a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


_ProducerPartition: TypeAlias = tuple[TransactionalProducer, Partition]


class PartitionVerification:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataCache,
        transaction_coordinator: CoordinatorService[TransactionShard],
        inter_broker_client: InterBrokerClient,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._transaction_coordinator = transaction_coordinator
        self._inter_broker_client = inter_broker_client
        self._loop = loop
        self._to_add: dict[TransactionalProducer, dict[Partition, list[_PendingAppend]]] = {}
        self._adding: dict[_ProducerPartition, list[_PendingAppend]] = {}
        self._verifying: dict[_ProducerPartition, _Verification] = {}
        self._verified: OrderedDict[int, _VerifiedPartitions] = OrderedDict()
        self._next_retried: OrderedDict[_ProducerPartition, _RetriedBatch] = OrderedDict()
        """The first batch that the client retries."""

    def is_verified(self, producer: TransactionalProducer, partition: Partition) -> bool:
        """Whether the coordinator has verified the partition, and no marker was written since."""
        verified = self._verified.get(producer.producer_id)
        return (
            verified is not None
            and verified.producer_epoch == producer.producer_epoch
            and verified.partitions.get(partition) == self._leader_epoch(partition)
        )

    def verified_leader_epoch(
        self, producer: TransactionalProducer, partition: Partition
    ) -> int | None:
        """The leader epoch in which a batch may be appended at once; None if `append` has to decide
        on it."""
        if self._next_retried or not self.is_verified(producer, partition):
            return None
        return self._leader_epoch(partition)

    def on_marker(self, producer_id: int) -> None:
        """A marker of the producer is about to be written to a partition."""
        self._verified.pop(producer_id, None)
        for key in [key for key in self._next_retried if key[0].producer_id == producer_id]:
            del self._next_retried[key]
        for (producer, _), verification in self._verifying.items():
            if producer.producer_id == producer_id:
                verification.is_void = True

    async def add_partitions(
        self, producer: TransactionalProducer, partitions: frozenset[Partition]
    ) -> ErrorCode:
        """Add partitions to the transaction of a client of transaction version 2."""
        leader_epochs = self._leader_epochs(partitions)
        codes = await self._query_coordinator(producer, partitions, verify_only=False)
        for code in codes.values():
            if code is not ErrorCode.NONE:
                return code
        self._record_verified(producer, leader_epochs)
        return ErrorCode.NONE

    async def add(
        self, producer: TransactionalProducer, partitions: frozenset[Partition]
    ) -> dict[Partition, ErrorCode]:
        """AddPartitionsToTxn of a client. ApiError if the transaction is not coordinated here.

        The shard replies before it requests the markers of the transaction's end, and markers to
        partitions led here call `on_marker`: the verification holds until then.
        """
        leader_epochs = self._leader_epochs(partitions)
        codes = await self.decide_locally(producer, partitions, TRANSACTION_V1, verify_only=False)
        if all(code is ErrorCode.NONE for code in codes.values()):
            self._record_verified(producer, leader_epochs)
        return codes

    async def verify(self, producer: TransactionalProducer, partition: Partition) -> ErrorCode:
        """NONE if the partition is part of the transaction, TRANSACTION_ABORTABLE if not."""
        codes = await self._query_coordinator(producer, frozenset((partition,)), verify_only=True)
        return codes[partition]

    def append(
        self,
        producer: TransactionalProducer,
        partition: Partition,
        append: Append,
        *,
        version: int,
        sequence: int,
    ) -> Reply[AppendReply]:
        """Append a transactional batch of Produce `version` once the coordinator has the partition.
        The batches of one partition are appended in the order of the calls. `sequence` is the
        batch's base sequence."""
        if self._next_retried and self._is_out_of_order(producer, partition, sequence):
            refused: Reply[AppendReply] = Reply()
            refused.resolve(RequestFailed(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            return refused
        if self.is_verified(producer, partition):
            return append(self._leader_epoch(partition))
        entry = _PendingAppend(append, Reply(), version, sequence)
        if version >= TRANSACTION_V2_MIN_VERSION:
            self._append_once_added(producer, partition, entry)
        else:
            self._append_once_verified(producer, partition, entry)
        return entry.reply

    def _leader_epoch(self, partition: Partition) -> int:
        known = self._metadata.partition(*partition)
        return NO_EPOCH if known is None else known.leader_epoch

    def _leader_epochs(self, partitions: frozenset[Partition]) -> dict[Partition, int]:
        return {partition: self._leader_epoch(partition) for partition in partitions}

    def _record_verified(
        self, producer: TransactionalProducer, leader_epochs: dict[Partition, int]
    ) -> None:
        verified = self._verified.get(producer.producer_id)
        if verified is None or verified.producer_epoch != producer.producer_epoch:
            verified = self._verified[producer.producer_id] = _VerifiedPartitions(
                producer.producer_epoch, {}
            )
        verified.partitions.update(leader_epochs)
        self._verified.move_to_end(producer.producer_id)
        while len(self._verified) > VERIFIED_PRODUCERS_MAX:
            self._verified.popitem(last=False)

    # -- clients of version 2: add -----------------------------------------------------------------

    def _append_once_added(
        self, producer: TransactionalProducer, partition: Partition, entry: _PendingAppend
    ) -> None:
        pending = self._adding.get((producer, partition))
        if pending is not None:
            pending.append(entry)
            return
        if not self._to_add:
            # The batches of one turn share a request.
            self._loop.call_soon(self._add_all)
        self._to_add.setdefault(producer, {}).setdefault(partition, []).append(entry)

    def _add_all(self) -> None:
        to_add, self._to_add = self._to_add, {}
        for producer, partitions in to_add.items():
            for partition, entries in partitions.items():
                self._adding[producer, partition] = entries
            drive(self._add_and_append(producer, frozenset(partitions)), _raise_error)

    async def _add_and_append(
        self, producer: TransactionalProducer, partitions: frozenset[Partition]
    ) -> None:
        code = await self.add_partitions(producer, partitions)
        for partition in sorted(partitions):
            entries = self._adding.pop((producer, partition))
            _finish_appends(entries, self._leader_epoch(partition), code)

    # -- older clients: verify ---------------------------------------------------------------------

    def _append_once_verified(
        self, producer: TransactionalProducer, partition: Partition, entry: _PendingAppend
    ) -> None:
        key = producer, partition
        pending = self._verifying.get(key)
        if pending is not None:
            pending.entries.append(entry)
            return
        self._verifying[key] = _Verification([entry], self._leader_epoch(partition))
        drive(self._verify_and_append(producer, partition), _raise_error)

    def _is_out_of_order(
        self, producer: TransactionalProducer, partition: Partition, sequence: int
    ) -> bool:
        """Whether the client must retry an earlier batch first. Ends the wait for that one."""
        expected = self._next_retried.get((producer, partition))
        if expected is None:
            return False
        is_later = 0 < (sequence - expected.sequence) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
        if is_later and expected.leader_epoch == self._leader_epoch(partition):
            return True
        del self._next_retried[producer, partition]
        return False

    async def _verify_and_append(
        self, producer: TransactionalProducer, partition: Partition
    ) -> None:
        code = await self.verify(producer, partition)
        key = producer, partition
        verification = self._verifying.pop(key)
        if verification.is_void:
            # A transaction of the producer has ended meanwhile.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif code is ErrorCode.NONE:
            self._record_verified(producer, {partition: verification.leader_epoch})
        elif code in _RETRIABLE:
            first = verification.entries[0].sequence
            self._next_retried[key] = _RetriedBatch(verification.leader_epoch, first)
            while len(self._next_retried) > VERIFIED_PRODUCERS_MAX:
                self._next_retried.popitem(last=False)
        _finish_appends(verification.entries, verification.leader_epoch, code)

    # -- the coordinator ---------------------------------------------------------------------------

    async def _query_coordinator(
        self,
        producer: TransactionalProducer,
        partitions: frozenset[Partition],
        *,
        verify_only: bool,
    ) -> dict[Partition, ErrorCode]:
        coordinator = self._transaction_coordinator.coordinator_of(producer.transactional_id)
        try:
            if coordinator == self._metadata.node_id:
                return await self.decide_locally(
                    producer, partitions, EPOCH_BUMPS_SINCE, verify_only=verify_only
                )
            return await self._send_to_coordinator(
                coordinator, producer, partitions, verify_only=verify_only
            )
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)

    async def decide_locally(
        self,
        producer: TransactionalProducer,
        partitions: frozenset[Partition],
        client_version: int,
        *,
        verify_only: bool,
    ) -> dict[Partition, ErrorCode]:
        """The answer of the coordinator on this broker. ApiError if it is not here."""
        if not producer.transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        request = (
            VerifyPartitions(*producer, partitions)
            if verify_only
            else AddPartitions(*producer, partitions, client_version)
        )
        try:
            answer = await self._transaction_coordinator.call(producer.transactional_id, request)
        except ApiError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise ApiError(ErrorCode.INVALID_REQUEST) from error
            raise
        if isinstance(answer, ErrorCode):
            return dict.fromkeys(partitions, answer)
        return {
            partition: ErrorCode.TRANSACTION_ABORTABLE if partition in answer else ErrorCode.NONE
            for partition in partitions
        }

    async def _send_to_coordinator(
        self,
        node_id: int,
        producer: TransactionalProducer,
        partitions: frozenset[Partition],
        *,
        verify_only: bool,
    ) -> dict[Partition, ErrorCode]:
        if node_id < 0:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=producer.transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    verify_only=verify_only,
                    topics=by_topic(partitions),
                )
            ]
        )
        response = await self._inter_broker_client.send(node_id, request)
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code))
        codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for result in response.results_by_transaction:
            for topic in result.topic_results:
                for partition in topic.partitions:
                    code = ErrorCode(partition.error_code)
                    codes[topic.name, partition.partition_index] = code
        return codes


def _raise_error(_result: None, error: BaseException | None) -> None:
    if error is not None:
        raise error


def _finish_appends(entries: Iterable[_PendingAppend], leader_epoch: int, code: ErrorCode) -> None:
    """Append the waiting batches, or refuse them."""
    for entry in entries:
        if code is ErrorCode.NONE:
            appended = entry.append(leader_epoch)
            appended.on_done(partial(_resolve, entry, appended))
        else:
            entry.reply.resolve(RequestFailed(0, produce_error(code, entry.version)))


def _resolve(entry: _PendingAppend, appended: Reply[AppendReply]) -> None:
    entry.reply.resolve(appended.result())


def produce_error(code: ErrorCode, version: int) -> ErrorCode:
    """The error code of Produce `version` for an error of the coordinator."""
    if code in _RETRIABLE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < TRANSACTION_V2_MIN_VERSION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_ERROR_MIN_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return code
