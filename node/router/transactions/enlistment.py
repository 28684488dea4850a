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
from typing import Final, NamedTuple, Protocol

from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.transaction.records import by_topic
from odradek.coordinator.transaction.requests import AddPartitions, VerifyPartitions
from odradek.coordinator.transaction.transaction import EPOCH_BUMPS_SINCE, Partition
from odradek.node.bus.messages import Failed
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.fanout import Answer
from odradek.node.router.neighbours import Neighbours
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from odradek.storage.producers import SEQUENCE_MAX

REMEMBERED_COUNT_MAX: Final = 10_000
"""Transactions whose partitions are remembered; of others the coordinator is asked once more."""


ENLISTS_SINCE: Final = 12
"""The version of Produce whose clients leave it to us to enlist partitions."""
_ABORTABLE_SINCE: Final = 11
_NO_EPOCH: Final = -1
_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Append = Callable[[int], Reply[Answer]]
"""Appends a batch if the partition is in this leader epoch."""


class _Waiting(NamedTuple):
    """A batch that waits for its coordinator's word."""

    append: Append
    reply: Reply[Answer]
    version: int
    sequence: int


@dataclass(slots=True)
class _Verification:
    """A question that is under way, and the batches that wait for the answer. It is void if a
    transaction of the producer has ended since it was asked."""

    entries: list[_Waiting]
    leader_epoch: int
    is_void: bool = False


class _Known(NamedTuple):
    """What coordinators have vouched for in the newest epoch of a producer, and in which leader
    epochs that was."""

    producer_epoch: int
    partitions: dict[Partition, int]


class Producer(NamedTuple):
    """Whose transaction it is."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionShards(Protocol):
    """The transaction coordinator of this router: Coordinators is one."""

    def coordinator_of(self, key: str) -> int: ...

    def call(self, key: str, request: object) -> Reply[object]: ...


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int
    image: MetadataImage

    @property
    def transactions(self) -> TransactionShards: ...


class Enlistment:
    """See the module's docstring."""

    def __init__(
        self,
        services: Surroundings,
        neighbours: Neighbours,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._services = services
        self._neighbours = neighbours
        self._loop = loop
        self._to_enlist: dict[Producer, dict[Partition, list[_Waiting]]] = {}
        self._enlisting: dict[tuple[Producer, Partition], list[_Waiting]] = {}
        self._verifying: dict[tuple[Producer, Partition], _Verification] = {}
        self._known: OrderedDict[int, _Known] = OrderedDict()
        # The base sequence of the first batch that is to be sent again.
        self._missing: OrderedDict[tuple[Producer, Partition], int] = OrderedDict()

    def is_known(self, producer: Producer, partition: Partition) -> bool:
        """Whether its coordinator has vouched for it, and its transaction has not ended since."""
        known = self._known.get(producer.producer_id)
        return (
            known is not None
            and known.producer_epoch == producer.producer_epoch
            and known.partitions.get(partition) == self._leader_epoch(partition)
        )

    def ended(self, producer_id: int) -> None:
        """A marker of the producer is about to be sent to a partition."""
        self._known.pop(producer_id, None)
        for key in [key for key in self._missing if key[0].producer_id == producer_id]:
            del self._missing[key]
        for (producer, _), verification in self._verifying.items():
            if producer.producer_id == producer_id:
                verification.is_void = True

    async def enlist(self, producer: Producer, partitions: frozenset[Partition]) -> ErrorCode:
        """Have partitions take part in the transaction of a client of version 2."""
        leader_epochs = self._leader_epochs(partitions)
        codes = await self._ask(producer, partitions, verify_only=False)
        code = next((code for code in codes.values() if code is not ErrorCode.NONE), ErrorCode.NONE)
        if code is ErrorCode.NONE:
            self._remember(producer, leader_epochs)
        return code

    async def add(
        self, producer: Producer, partitions: frozenset[Partition], client_version: int
    ) -> dict[Partition, ErrorCode]:
        """Have partitions take part whose client asks for it at the coordinator, which is here.
        Raises ApiError if it is not.

        The answer leaves the shard before the markers of the transaction's end are asked for, and
        those to partitions led here pass by here: what it says holds until they do.
        """
        leader_epochs = self._leader_epochs(partitions)
        codes = await self.decide(producer, partitions, client_version, verify_only=False)
        if all(code is ErrorCode.NONE for code in codes.values()):
            self._remember(producer, leader_epochs)
        return codes

    async def verify(self, producer: Producer, partition: Partition) -> ErrorCode:
        """NONE if the partition takes part in the transaction, TRANSACTION_ABORTABLE if not."""
        codes = await self._ask(producer, frozenset((partition,)), verify_only=True)
        return codes[partition]

    def append(
        self,
        producer: Producer,
        partition: Partition,
        append: Append,
        version: int,
        sequence: int,
    ) -> Reply[Answer]:
        """Append a transactional batch of Produce `version` once its transaction's coordinator
        knows of the partition. Batches for one partition are appended in the order of the calls.
        `sequence` is the batch's first."""
        if self._missing and self._is_too_early(producer, partition, sequence):
            refused: Reply[Answer] = Reply()
            refused.resolve(Failed(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            return refused
        if self.is_known(producer, partition):
            return append(self._leader_epoch(partition))
        entry = _Waiting(append, Reply(), version, sequence)
        if version >= ENLISTS_SINCE:
            self._append_enlisted(producer, partition, entry)
        else:
            self._append_verified(producer, partition, entry)
        return entry.reply

    def _leader_epoch(self, partition: Partition) -> int:
        name, index = partition
        topic = self._services.image.topics_by_name.get(name)
        if topic is None or index >= len(topic.partitions):
            return _NO_EPOCH
        return topic.partitions[index].leader_epoch

    def _leader_epochs(self, partitions: frozenset[Partition]) -> dict[Partition, int]:
        return {partition: self._leader_epoch(partition) for partition in partitions}

    def _remember(self, producer: Producer, leader_epochs: dict[Partition, int]) -> None:
        known = self._known.get(producer.producer_id)
        if known is None or known.producer_epoch != producer.producer_epoch:
            known = self._known[producer.producer_id] = _Known(producer.producer_epoch, {})
        known.partitions.update(leader_epochs)
        self._known.move_to_end(producer.producer_id)
        while len(self._known) > REMEMBERED_COUNT_MAX:
            self._known.popitem(last=False)

    # -- clients of version 2: enlist --------------------------------------------------------------

    def _append_enlisted(self, producer: Producer, partition: Partition, entry: _Waiting) -> None:
        under_way = self._enlisting.get((producer, partition))
        if under_way is not None:
            under_way.append(entry)
            return
        if not self._to_enlist:
            # What comes in the same turn is asked for together.
            self._loop.call_soon(self._enlist_all)
        self._to_enlist.setdefault(producer, {}).setdefault(partition, []).append(entry)

    def _enlist_all(self) -> None:
        to_enlist, self._to_enlist = self._to_enlist, {}
        for producer, partitions in to_enlist.items():
            for partition, entries in partitions.items():
                self._enlisting[producer, partition] = entries
            asked = frozenset(partitions)
            drive(self.enlist(producer, asked), partial(self._on_enlisted, producer, asked))

    def _on_enlisted(
        self,
        producer: Producer,
        partitions: frozenset[Partition],
        code: ErrorCode | None,
        error: BaseException | None,
    ) -> None:
        for partition in sorted(partitions):
            entries = self._enlisting.pop((producer, partition))
            _go_on(entries, self._leader_epoch(partition), _code_of(code, error))

    # -- older clients: verify ---------------------------------------------------------------------

    def _append_verified(self, producer: Producer, partition: Partition, entry: _Waiting) -> None:
        key = producer, partition
        under_way = self._verifying.get(key)
        if under_way is not None:
            under_way.entries.append(entry)
            return
        self._verifying[key] = _Verification([entry], self._leader_epoch(partition))
        drive(self.verify(producer, partition), partial(self._on_verified, key))

    def _is_too_early(self, producer: Producer, partition: Partition, sequence: int) -> bool:
        """Whether a batch before it is to be sent again first; that one is waited for no longer."""
        missing = self._missing.get((producer, partition))
        if missing is None:
            return False
        if 0 < (sequence - missing) & SEQUENCE_MAX <= SEQUENCE_MAX // 2:
            return True
        del self._missing[producer, partition]
        return False

    def _on_verified(
        self,
        key: tuple[Producer, Partition],
        code: ErrorCode | None,
        error: BaseException | None,
    ) -> None:
        verification = self._verifying.pop(key)
        told = _code_of(code, error)
        if verification.is_void:
            # A transaction of the producer has ended while its coordinator was asked.
            told = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif told is ErrorCode.NONE:
            producer, partition = key
            self._remember(producer, {partition: verification.leader_epoch})
        if told in _TRY_AGAIN and not verification.is_void:
            self._missing[key] = verification.entries[0].sequence
            while len(self._missing) > REMEMBERED_COUNT_MAX:
                self._missing.popitem(last=False)
        _go_on(verification.entries, verification.leader_epoch, told)

    # -- asking ------------------------------------------------------------------------------------

    async def _ask(
        self, producer: Producer, partitions: frozenset[Partition], *, verify_only: bool
    ) -> dict[Partition, ErrorCode]:
        services = self._services
        coordinator = services.transactions.coordinator_of(producer.transactional_id)
        try:
            if coordinator == services.node_id:
                return await self.decide(
                    producer, partitions, EPOCH_BUMPS_SINCE, verify_only=verify_only
                )
            return await self._ask_neighbour(
                coordinator, producer, partitions, verify_only=verify_only
            )
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)

    async def decide(
        self,
        producer: Producer,
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
            answer = await self._services.transactions.call(producer.transactional_id, request)
        except ApiError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise ApiError(ErrorCode.INVALID_REQUEST) from error
            raise
        if isinstance(answer, ErrorCode):
            return dict.fromkeys(partitions, answer)
        assert isinstance(answer, frozenset)
        return {
            partition: ErrorCode.TRANSACTION_ABORTABLE if partition in answer else ErrorCode.NONE
            for partition in partitions
        }

    async def _ask_neighbour(
        self,
        node_id: int,
        producer: Producer,
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
        response = await self._neighbours.ask(node_id, request)
        assert isinstance(response, AddPartitionsToTxnResponse)
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code))
        codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for result in response.results_by_transaction:
            for topic in result.topic_results:
                for partition in topic.results_by_partition:
                    code = ErrorCode(partition.partition_error_code)
                    codes[topic.name, partition.partition_index] = code
        return codes


def _code_of(code: ErrorCode | None, error: BaseException | None) -> ErrorCode:
    if error is not None:
        raise error
    assert code is not None
    return code


def _go_on(entries: Iterable[_Waiting], leader_epoch: int, code: ErrorCode) -> None:
    """Append what has waited, or tell why not."""
    for entry in entries:
        if code is ErrorCode.NONE:
            appended = entry.append(leader_epoch)
            appended.on_done(partial(_settle, entry, appended))
        else:
            entry.reply.resolve(Failed(0, produce_error(code, entry.version)))


def _settle(entry: _Waiting, appended: Reply[Answer]) -> None:
    entry.reply.resolve(appended.result())


def produce_error(code: ErrorCode, version: int) -> ErrorCode:
    """What Produce `version` answers if the coordinator does not vouch for a partition."""
    if code in _TRY_AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ENLISTS_SINCE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code
