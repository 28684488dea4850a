"""Which partitions take part in which transactions: asks their coordinators, wherever they are.

A client of transaction version 2 enlists nothing itself (KIP-890): the first batch that comes for a
partition does, and is held until the coordinator has recorded it. Older clients enlist by
themselves; here it is only verified, because a batch that came after its transaction's end would
open one that nobody ends, and hold the last stable offset back for ever.

What a coordinator has said of a producer holds until a marker of that producer passes by. As long
as the partition is led here, markers and batches go to it through this one router, in the order in
which it sends them; so a batch that was vouched for is there before the marker that ends its
transaction. What was asked before a marker and answered behind it counts for nothing, and neither
does what was said in another leader epoch.

A batch that an older client shall send again, because its coordinator could not be asked, comes
before those behind it: they are refused until it is there. Otherwise the first of them could
become the first that the partition knows of its producer, and leave no place for the one before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from odradek.coordinator.transaction.records import by_topic
from odradek.coordinator.transaction.requests import AddPartitions, VerifyPartitions
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import EPOCH_BUMPS_SINCE, Partition
from odradek.node.bus.messages import RequestFailed
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.worker_client import AppendReply
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from odradek.storage.producer_state import SEQUENCE_MAX

R = TypeVar("R")

VERIFIED_PRODUCERS_MAX: Final = 10_000
"""Transactions whose partitions are remembered; of others the coordinator is asked once more."""


TRANSACTION_V2_MIN_VERSION: Final = 12
"""The version of Produce whose clients leave it to us to enlist partitions."""
_ABORTABLE_ERROR_MIN_VERSION: Final = 11
_NO_EPOCH: Final = -1
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
    """A batch that waits for its coordinator's word."""

    append: Append
    reply: Reply[AppendReply]
    version: int
    sequence: int


@dataclass(slots=True)
class _Verification:
    """A question that is under way, and the batches that wait for the answer. It is void if a
    transaction of the producer has ended since it was asked."""

    entries: list[_PendingAppend]
    leader_epoch: int
    is_void: bool = False


class _VerifiedPartitions(NamedTuple):
    """What coordinators have vouched for in the newest epoch of a producer, and in which leader
    epochs that was."""

    producer_epoch: int
    partitions: dict[Partition, int]


class TransactionalProducer(NamedTuple):
    """Whose transaction it is."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


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
        self._adding: dict[tuple[TransactionalProducer, Partition], list[_PendingAppend]] = {}
        self._verifying: dict[tuple[TransactionalProducer, Partition], _Verification] = {}
        self._verified: OrderedDict[int, _VerifiedPartitions] = OrderedDict()
        # The base sequence of the first batch that is to be sent again.
        self._next_retried_sequence: OrderedDict[tuple[TransactionalProducer, Partition], int] = (
            OrderedDict()
        )

    def is_verified(self, producer: TransactionalProducer, partition: Partition) -> bool:
        """Whether its coordinator has vouched for it, and its transaction has not ended since."""
        verified = self._verified.get(producer.producer_id)
        return (
            verified is not None
            and verified.producer_epoch == producer.producer_epoch
            and verified.partitions.get(partition) == self._leader_epoch(partition)
        )

    def ended(self, producer_id: int) -> None:
        """A marker of the producer is about to be sent to a partition."""
        self._verified.pop(producer_id, None)
        for key in [
            key for key in self._next_retried_sequence if key[0].producer_id == producer_id
        ]:
            del self._next_retried_sequence[key]
        for (producer, _), verification in self._verifying.items():
            if producer.producer_id == producer_id:
                verification.is_void = True

    async def add_partitions(
        self, producer: TransactionalProducer, partitions: frozenset[Partition]
    ) -> ErrorCode:
        """Have partitions take part in the transaction of a client of version 2."""
        leader_epochs = self._leader_epochs(partitions)
        codes = await self._query_coordinator(producer, partitions, verify_only=False)
        code = next((code for code in codes.values() if code is not ErrorCode.NONE), ErrorCode.NONE)
        if code is ErrorCode.NONE:
            self._record_verified(producer, leader_epochs)
        return code

    async def add(
        self, producer: TransactionalProducer, partitions: frozenset[Partition], client_version: int
    ) -> dict[Partition, ErrorCode]:
        """Have partitions take part whose client asks for it at the coordinator, which is here.
        Raises ApiError if it is not.

        The answer leaves the shard before the markers of the transaction's end are asked for, and
        those to partitions led here pass by here: what it says holds until they do.
        """
        leader_epochs = self._leader_epochs(partitions)
        codes = await self.decide_locally(producer, partitions, client_version, verify_only=False)
        if all(code is ErrorCode.NONE for code in codes.values()):
            self._record_verified(producer, leader_epochs)
        return codes

    async def verify(self, producer: TransactionalProducer, partition: Partition) -> ErrorCode:
        """NONE if the partition takes part in the transaction, TRANSACTION_ABORTABLE if not."""
        codes = await self._query_coordinator(producer, frozenset((partition,)), verify_only=True)
        return codes[partition]

    def append(
        self,
        producer: TransactionalProducer,
        partition: Partition,
        append: Append,
        version: int,
        sequence: int,
    ) -> Reply[AppendReply]:
        """Append a transactional batch of Produce `version` once its transaction's coordinator
        knows of the partition. Batches for one partition are appended in the order of the calls.
        `sequence` is the batch's first."""
        if self._next_retried_sequence and self._is_out_of_order(producer, partition, sequence):
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
        return _NO_EPOCH if known is None else known.leader_epoch

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

    # -- clients of version 2: enlist --------------------------------------------------------------

    def _append_once_added(
        self, producer: TransactionalProducer, partition: Partition, entry: _PendingAppend
    ) -> None:
        pending = self._adding.get((producer, partition))
        if pending is not None:
            pending.append(entry)
            return
        if not self._to_add:
            # What comes in the same turn is asked for together.
            self._loop.call_soon(self._add_all)
        self._to_add.setdefault(producer, {}).setdefault(partition, []).append(entry)

    def _add_all(self) -> None:
        to_enlist, self._to_add = self._to_add, {}
        for producer, partitions in to_enlist.items():
            for partition, entries in partitions.items():
                self._adding[producer, partition] = entries
            asked = frozenset(partitions)
            drive(self.add_partitions(producer, asked), partial(self._on_added, producer, asked))

    def _on_added(
        self,
        producer: TransactionalProducer,
        partitions: frozenset[Partition],
        code: ErrorCode | None,
        error: BaseException | None,
    ) -> None:
        for partition in sorted(partitions):
            entries = self._adding.pop((producer, partition))
            _finish_appends(entries, self._leader_epoch(partition), _checked_code(code, error))

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
        drive(self.verify(producer, partition), partial(self._on_verified, key))

    def _is_out_of_order(
        self, producer: TransactionalProducer, partition: Partition, sequence: int
    ) -> bool:
        """Whether a batch before it is to be sent again first; that one is waited for no longer."""
        expected = self._next_retried_sequence.get((producer, partition))
        if expected is None:
            return False
        if 0 < (sequence - expected) & SEQUENCE_MAX <= SEQUENCE_MAX // 2:
            return True
        del self._next_retried_sequence[producer, partition]
        return False

    def _on_verified(
        self,
        key: tuple[TransactionalProducer, Partition],
        code: ErrorCode | None,
        error: BaseException | None,
    ) -> None:
        verification = self._verifying.pop(key)
        told = _checked_code(code, error)
        if verification.is_void:
            # A transaction of the producer has ended while its coordinator was asked.
            told = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif told is ErrorCode.NONE:
            producer, partition = key
            self._record_verified(producer, {partition: verification.leader_epoch})
        if told in _RETRIABLE and not verification.is_void:
            self._next_retried_sequence[key] = verification.entries[0].sequence
            while len(self._next_retried_sequence) > VERIFIED_PRODUCERS_MAX:
                self._next_retried_sequence.popitem(last=False)
        _finish_appends(verification.entries, verification.leader_epoch, told)

    # -- asking ------------------------------------------------------------------------------------

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
        """What the coordinator on this node says. Raises ApiError if it is not here."""
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
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in by_topic(partitions).items()
                    ],
                )
            ]
        )
        response = await self._inter_broker_client.send(node_id, request)
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code))
        codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for result in response.results_by_transaction:
            for topic in result.topic_results:
                for partition in topic.results_by_partition:
                    code = ErrorCode(partition.partition_error_code)
                    codes[topic.name, partition.partition_index] = code
        return codes


def _checked_code(code: ErrorCode | None, error: BaseException | None) -> ErrorCode:
    if error is not None:
        raise error
    assert code is not None
    return code


def _finish_appends(entries: Iterable[_PendingAppend], leader_epoch: int, code: ErrorCode) -> None:
    """Append what has waited, or tell why not."""
    for entry in entries:
        if code is ErrorCode.NONE:
            appended = entry.append(leader_epoch)
            appended.on_done(partial(_resolve, entry, appended))
        else:
            entry.reply.resolve(RequestFailed(0, produce_error(code, entry.version)))


def _resolve(entry: _PendingAppend, appended: Reply[AppendReply]) -> None:
    entry.reply.resolve(appended.result())


def produce_error(code: ErrorCode, version: int) -> ErrorCode:
    """What Produce `version` answers if the coordinator does not vouch for a partition."""
    if code in _RETRIABLE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < TRANSACTION_V2_MIN_VERSION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_ERROR_MIN_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return code
