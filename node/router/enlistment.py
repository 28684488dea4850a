"""Which partitions take part in which transactions: asks their coordinators, wherever they are.

A client of transaction version 2 enlists nothing itself (KIP-890): the first batch that comes for a
partition does, and is held until the coordinator has recorded it. Each of its transactions has an
epoch of its own, so that what was enlisted once stays so as long as the epoch lives, and a batch
that comes too late is fenced by the partition. Older clients enlist by themselves; here it is only
verified, because a batch that came after its transaction's end would open one that nobody ends.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol

from coordinator.transaction.records import by_topic
from coordinator.transaction.requests import AddPartitions, VerifyPartitions
from coordinator.transaction.transaction import EPOCH_BUMPS_SINCE, Partition
from node.bus.messages import NO_GUARD, Failed, Unverified
from node.bus.reply import Reply, drive
from node.router.fanout import Answer
from node.router.markers import NOBODY, Neighbours, Nobody
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

REMEMBERED_COUNT_MAX: Final = 10_000
"""Transactions whose partitions are remembered; of others the coordinator is asked once more."""


ENLISTS_SINCE: Final = 12
"""The version of Produce whose clients leave it to us to enlist partitions."""
_ABORTABLE_SINCE: Final = 11
_NO_GUARD_YET: Final = 0
_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Append = Callable[[int], Reply[Answer]]
"""Appends a batch, given a guard."""


class _Waiting(NamedTuple):
    """A batch that waits for its coordinator's word."""

    append: Append
    reply: Reply[Answer]
    version: int


class Producer(NamedTuple):
    """Whose transaction it is."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionShards(Protocol):
    """The transaction coordinator of this router: Coordinators is one."""

    def coordinator_of(self, key: str) -> int: ...

    def call(self, key: str, request: object, asker: Nobody) -> Reply[object]: ...


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int

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
        self._verifying: dict[tuple[Producer, Partition], list[_Waiting]] = {}
        self._known: OrderedDict[tuple[int, int], set[Partition]] = OrderedDict()

    def is_known(self, producer: Producer, partition: Partition) -> bool:
        """Whether `enlist` has answered NONE for it."""
        known = self._known.get((producer.producer_id, producer.producer_epoch))
        return known is not None and partition in known

    async def enlist(self, producer: Producer, partitions: frozenset[Partition]) -> ErrorCode:
        """Have partitions take part in the transaction of a client of version 2."""
        codes = await self._ask(producer, partitions, verify_only=False)
        code = next((code for code in codes.values() if code is not ErrorCode.NONE), ErrorCode.NONE)
        if code is ErrorCode.NONE:
            key = producer.producer_id, producer.producer_epoch
            self._known.setdefault(key, set()).update(partitions)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED_COUNT_MAX:
                self._known.popitem(last=False)
        return code

    async def verify(self, producer: Producer, partition: Partition) -> ErrorCode:
        """NONE if the partition takes part in the transaction, TRANSACTION_ABORTABLE if not."""
        codes = await self._ask(producer, frozenset((partition,)), verify_only=True)
        return codes[partition]

    def append(
        self, producer: Producer, partition: Partition, append: Append, version: int
    ) -> Reply[Answer]:
        """Append a transactional batch of Produce `version` once its transaction's coordinator
        knows of the partition. Batches for one partition are appended in the order of the calls."""
        if version >= ENLISTS_SINCE:
            if self.is_known(producer, partition):
                return append(NO_GUARD)
            return self._append_enlisted(producer, partition, append, version)
        waiting = self._verifying.get((producer, partition))
        reply: Reply[Answer] = Reply()
        if waiting is not None:
            waiting.append(_Waiting(append, reply, version))
            return reply
        first = append(_NO_GUARD_YET)
        entry = _Waiting(append, reply, version)
        first.on_done(partial(self._on_first, producer, partition, entry, first))
        return reply

    # -- clients of version 2: enlist --------------------------------------------------------------

    def _append_enlisted(
        self, producer: Producer, partition: Partition, append: Append, version: int
    ) -> Reply[Answer]:
        entry = _Waiting(append, Reply(), version)
        under_way = self._enlisting.get((producer, partition))
        if under_way is not None:
            under_way.append(entry)
            return entry.reply
        if not self._to_enlist:
            # What comes in the same turn is asked for together.
            self._loop.call_soon(self._enlist_all)
        self._to_enlist.setdefault(producer, {}).setdefault(partition, []).append(entry)
        return entry.reply

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
        for partition in partitions:
            entries = self._enlisting.pop((producer, partition))
            _go_on(entries, NO_GUARD, _code_of(code, error))

    # -- older clients: verify ---------------------------------------------------------------------

    def _on_first(
        self, producer: Producer, partition: Partition, entry: _Waiting, first: Reply[Answer]
    ) -> None:
        answer = first.result()
        if type(answer) is not Unverified:
            entry.reply.resolve(answer)
            return
        key = producer, partition
        waiting = self._verifying.get(key)
        if waiting is not None:
            waiting.append(entry)
            return
        self._verifying[key] = [entry]
        drive(self.verify(producer, partition), partial(self._on_verified, key, answer.guard))

    def _on_verified(
        self,
        key: tuple[Producer, Partition],
        guard: int,
        code: ErrorCode | None,
        error: BaseException | None,
    ) -> None:
        _go_on(self._verifying.pop(key), guard, _code_of(code, error))

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
            answer = await self._services.transactions.call(
                producer.transactional_id, request, NOBODY
            )
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


def _go_on(entries: Iterable[_Waiting], guard: int, code: ErrorCode) -> None:
    """Append what has waited, or tell why not."""
    for entry in entries:
        if code is ErrorCode.NONE:
            appended = entry.append(guard)
            appended.on_done(partial(_settle, entry, appended))
        else:
            entry.reply.resolve(Failed(0, produce_error(code, entry.version)))


def _settle(entry: _Waiting, appended: Reply[Answer]) -> None:
    answer = appended.result()
    if type(answer) is Unverified:
        # A transaction of the producer has ended while its coordinator was asked.
        answer = Failed(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    entry.reply.resolve(answer)


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
