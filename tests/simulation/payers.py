"""Clients of transactions: payers of both transaction versions, and auditors with read_committed.

A payer writes to some partitions and commits an offset of its own group in one transaction, and
commits or aborts it. It repeats its requests until they are answered. Where a real client would
give up, and sometimes when the outcome of a transaction is unknown, it initializes its producer
again, which fences the open transaction. The ledger gets all responses.
"""

from collections.abc import Callable
from enum import Enum, auto

from odradek.cluster.metadata.image import NO_LEADER
from odradek.node.router.handlers.group_offsets import handle_offset_fetch
from odradek.node.router.handlers.transactional_offsets import handle_txn_offset_commit
from odradek.node.router.handlers.transactions import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_end_txn,
    handle_init_producer_id,
)
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from tests.simulation.broker import Fetch, Fetched, Produce, Produced
from tests.simulation.clients import TOPIC, ClientCluster, SimulatedClient
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.ledger import Ledger, Payment
from tests.simulation.store import Identity
from tests.simulation.transaction_ends import Handler

TIMEOUT_MS = 2_500
PATIENCE_MS = 400
_COMMIT_SHARE = 0.75
_PAUSE_SHARE = 0.05
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


class Step(Enum):
    """The next request of a payer."""

    INIT = auto()
    CHECK = auto()
    ADD = auto()
    ADD_OFFSETS = auto()
    WRITE = auto()
    OFFSETS = auto()
    END = auto()
    LEAVE = auto()
    """Of ShortLivedPayer only."""


class Payer(SimulatedClient):
    """See the module's docstring. `places` are the partitions of the topic, by index."""

    def __init__(
        self,
        cluster: ClientCluster,
        ledger: Ledger,
        number: int,
        topic_id: bytes,
        count: int,
        *,
        coordinators: tuple[Identity, Identity],
        version: int,
        restart_share: float,
    ) -> None:
        super().__init__(cluster)
        self.ledger = ledger
        self.name = f"payer-{number}"
        self.version = version
        self.is_stopping = False
        self.ended_count = 0
        self.step = Step.INIT
        self._restart_share = restart_share
        self._topic_id = topic_id
        self._count = count
        self._transactions, self._groups = coordinators
        self._number = 0
        self._owner = (-1, -1)
        self._sequences: dict[int, int] = {}
        self._payment: Payment | None = None
        self._left: list[int] = []
        self._silent_until_ms = 0
        self._pausing_before: Step | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has no open transaction, as far as it knows, and begins no new one."""
        return self.is_stopping and self._payment is None and not self.is_waiting

    def act(self) -> None:
        """Continue, unless a response is pending."""
        if self.is_waiting or self.simulation.now_ms < self._silent_until_ms:
            return
        if self._payment is None and self.step is not Step.INIT:
            if self.is_stopping:
                return
            if self.step is not Step.CHECK:
                self._begin()
        if self.step is self._pausing_before:
            # Sometimes longer than the transaction timeout.
            self._pausing_before = None
            self._silent_until_ms = self.simulation.now_ms + self.random.randrange(2 * TIMEOUT_MS)
            return
        match self.step:
            case Step.INIT:
                self._init()
            case Step.CHECK:
                self._check()
            case Step.ADD:
                self._add()
            case Step.ADD_OFFSETS:
                self._add_offsets()
            case Step.WRITE:
                self._write()
            case Step.OFFSETS:
                self._commit_offset()
            case Step.END:
                self._end()

    def _begin(self) -> None:
        self._number += 1
        some = self.random.sample(range(self._count), self.random.randint(1, self._count))
        self._left = some
        if self.random.random() < _PAUSE_SHARE:
            self._pausing_before = self.random.choice((Step.WRITE, Step.OFFSETS, Step.END))
        is_commit = self.random.random() < _COMMIT_SHARE
        self._payment = self.ledger.begin(self.name, self._number, is_commit=is_commit)
        self.step = Step.ADD if self.version == 1 else Step.WRITE

    def _fail(self) -> None:
        """Continue with a new producer epoch."""
        payment, self._payment = self._payment, None
        if payment is not None:
            self.ledger.abandoned(payment)
        self.step = Step.INIT

    def _decided(self, is_commit: bool) -> None:
        payment, self._payment = self._payment, None
        assert payment is not None
        self.ledger.decided(payment, is_commit=is_commit)
        self.ended_count += 1
        self.step = Step.CHECK

    # -- one step each -----------------------------------------------------------------------------

    def _init(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS
        )

        def done(answer: object) -> None:
            assert isinstance(answer, InitProducerIdResponse)
            self._go_on(answer.error_code, Step.CHECK)
            if not answer.error_code:
                self._own(answer.producer_id, answer.producer_epoch)

        self._call(
            self._transactions, handle_init_producer_id, request, ApiKey.INIT_PRODUCER_ID, 5, done
        )

    def _check(self) -> None:
        """Check that its committed offset is there."""
        topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        group = OffsetFetchRequestGroup(group_id=self.name, topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        coordinator = self._leader(self._groups)
        if coordinator is None:
            return
        checker = self.cluster.checker
        is_true = checker.is_leader(self._groups, coordinator)

        def done(answer: object) -> None:
            assert isinstance(answer, OffsetFetchResponse)
            [found] = answer.groups
            code = found.error_code or found.topics[0].partitions[0].error_code
            if code:
                return
            # As for members: a coordinator that was replaced may return old offsets.
            if is_true and checker.is_leader(self._groups, coordinator):
                self.ledger.told_offset(self.name, found.topics[0].partitions[0].committed_offset)
                self.step = Step.ADD

        self._call_node(coordinator, handle_offset_fetch, request, ApiKey.OFFSET_FETCH, 9, done)

    def _add(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._owner[0],
            v3_and_below_producer_epoch=self._owner[1],
            v3_and_below_topics=[TopicPartitions(name=TOPIC, partitions=self._left)],
        )

        def done(answer: object) -> None:
            assert isinstance(answer, AddPartitionsToTxnResponse)
            [topic] = answer.results_by_topic_v3_and_below
            codes = [found.error_code for found in topic.partitions]
            self._go_on(max(codes), Step.ADD_OFFSETS)

        handler = handle_add_partitions_to_txn
        self._call(self._transactions, handler, request, ApiKey.ADD_PARTITIONS_TO_TXN, 3, done)

    def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self._owner[0],
            producer_epoch=self._owner[1],
            group_id=self.name,
        )

        def done(answer: object) -> None:
            assert isinstance(answer, AddOffsetsToTxnResponse)
            self._go_on(answer.error_code, Step.WRITE)

        handler = handle_add_offsets_to_txn
        self._call(self._transactions, handler, request, ApiKey.ADD_OFFSETS_TO_TXN, 3, done)

    def _write(self) -> None:
        payment = self._payment
        assert payment is not None
        index = self._left[-1]
        batch = build_batch(
            [Record(0, 0, b"k", payment.text.encode())],
            attributes=TRANSACTIONAL,
            producer_id=self._owner[0],
            producer_epoch=self._owner[1],
            base_sequence=self._sequences.get(index, 0),
        )
        identity = self._topic_id, index
        leader = self._leader(identity)
        if leader is None:
            return
        version = 12 if self.version == 2 else 11
        request = Produce(identity, batch, -1, self.name, version)

        def answered(response: object) -> None:
            if not isinstance(response, Produced):
                return
            code = response.error_code
            if not code:
                self.ledger.written(payment, index)
                self._sequences[index] = self._sequences.get(index, 0) + 1
                self._left.pop()
            if not code and not self._left:
                self.step = Step.OFFSETS
            elif code:
                self._go_on(code, Step.WRITE)

        self.ask(
            leader,
            lambda node, reply: node.router.produce(request, reply),
            answered,
            patience_ms=PATIENCE_MS,
        )

    def _commit_offset(self) -> None:
        payment = self._payment
        assert payment is not None
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=payment.number, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self._owner[0],
            producer_epoch=self._owner[1],
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )

        def done(answer: object) -> None:
            assert isinstance(answer, TxnOffsetCommitResponse)
            self._go_on(answer.topics[0].partitions[0].error_code, Step.END)

        handler, key = handle_txn_offset_commit, ApiKey.TXN_OFFSET_COMMIT
        self._call(self._groups, handler, request, key, 5 if self.version == 2 else 3, done)

    def _end(self) -> None:
        payment = self._payment
        assert payment is not None
        self.ledger.asks_for_end(payment)
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self._owner[0],
            producer_epoch=self._owner[1],
            committed=payment.is_commit,
        )

        def done(answer: object) -> None:
            assert isinstance(answer, EndTxnResponse)
            if answer.error_code:
                self._go_on(answer.error_code, Step.END)
                return
            if self.version == 2:
                self._own(answer.producer_id, answer.producer_epoch)
            self._decided(payment.is_commit)

        version = 5 if self.version == 2 else 4
        self._call(self._transactions, handle_end_txn, request, ApiKey.END_TXN, version, done)

    # -- inside ------------------------------------------------------------------------------------

    def _own(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self._owner:
            self._sequences.clear()
        self._owner = producer_id, producer_epoch

    def _go_on(self, code: int, step: Step) -> None:
        if not code:
            self.step = step
        elif code not in RETRIABLE:
            self._fail()

    def _leader(self, identity: Identity) -> int | None:
        router = self.some_router()
        leader = NO_LEADER if router is None else router.leader_of(identity)[0]
        return None if leader == NO_LEADER else leader

    def _call(
        self,
        place: Identity,
        handler: Handler,
        request: object,
        key: ApiKey,
        version: int,
        done: Callable[[object], None],
    ) -> None:
        leader = self._leader(place)
        if leader is not None:
            self._call_node(leader, handler, request, key, version, done)

    def _call_node(
        self,
        node_id: int,
        handler: Handler,
        request: object,
        key: ApiKey,
        version: int,
        done: Callable[[object], None],
    ) -> None:
        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            reply = node.router.ends.handle(handler, request, key, version)
            reply.on_done(lambda: answer(reply.result()))

        def answered(response: object) -> None:
            if response is not None:
                done(response)
            elif self.step is Step.END and self.random.random() < self._restart_share:
                self._fail()

        self.ask(node_id, what, answered, patience_ms=PATIENCE_MS)


class Auditor(SimulatedClient):
    """Reads one partition with read_committed, over and over from the beginning."""

    def __init__(self, cluster: ClientCluster, ledger: Ledger, identity: Identity) -> None:
        super().__init__(cluster)
        self.ledger = ledger
        self.identity = identity
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._reading = self.ledger.reading(self.identity[1])

    def act(self) -> None:
        """Read on."""
        leader = None if self.is_waiting else self.leader(self.identity)
        if leader is None:
            return
        request = Fetch(self.identity, self._offset, is_committed_only=True)
        self.ask(leader, lambda node, reply: reply(node.router.fetch(request)), self._answered)

    def _answered(self, response: object) -> None:
        if not isinstance(response, Fetched) or response.error_code:
            return
        for batch in response.batches:
            self._reading.take(batch.data, batch.base_offset)
            self._offset = batch.end_offset
        if not response.batches and self.random.random() < 0.1:
            self._begin()
