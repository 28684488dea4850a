"""A transaction shard with the requests of its clients, and the markers that it writes."""

from odradek.coordinator.loader import LogEntry
from odradek.coordinator.transaction.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    VerifyPartitions,
    WriteMarkers,
)
from odradek.coordinator.transaction.settings import TransactionSettings
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import Partition, is_epoch_exhausted
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeTransactionsTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.support.shard_playbook import START_MS, Call, ShardPlaybook

TIMEOUT_MS = 60_000
Owner = tuple[int, int]
"""Producer id and epoch."""


class TransactionPlaybook(ShardPlaybook[TransactionShard, Call]):
    """Requests of clients of version `client_version`; new producer ids count up from 1000."""

    def __init__(
        self,
        settings: TransactionSettings | None = None,
        *,
        client_version: int = 1,
        log: list[LogEntry] | None = None,
        now_ms: int = START_MS,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self.client_version = client_version
        self._next_producer_id = 1000
        super().__init__(
            lambda: TransactionShard(self.settings), Call, log=log or (), now_ms=now_ms
        )

    def fresh_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def begin_init(
        self,
        *,
        transactional_id: str = "t",
        expected: Owner | None = None,
        timeout_ms: int = TIMEOUT_MS,
        version: int = 5,
    ) -> Call:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        return self.ask(InitProducer(request, self.fresh_producer_id()), version=version)

    def init(
        self, *, transactional_id: str = "t", expected: Owner | None = None, **options: int
    ) -> Owner:
        """A successful InitProducerId."""
        call = self.begin_init(transactional_id=transactional_id, expected=expected, **options)
        answer = call.response(InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    def begin_add(self, owner: Owner, *partitions: Partition, transactional_id: str = "t") -> Call:
        added = frozenset(partitions or (("a", 0),))
        return self.ask(AddPartitions(transactional_id, *owner, added, self.client_version))

    def add(self, owner: Owner, *partitions: Partition, transactional_id: str = "t") -> ErrorCode:
        call = self.begin_add(owner, *partitions, transactional_id=transactional_id)
        return call.response(ErrorCode)

    def verify(self, owner: Owner, *partitions: Partition) -> ErrorCode | frozenset[Partition]:
        """An error, or the partitions that are not part of the transaction."""
        found: object = self.begin_verify(owner, *partitions).response(object)
        assert isinstance(found, ErrorCode | frozenset)
        return found

    def begin_verify(self, owner: Owner, *partitions: Partition) -> Call:
        return self.ask(VerifyPartitions("t", *owner, frozenset(partitions)))

    def begin_end(self, owner: Owner, *, is_commit: bool = True, version: int = 5) -> Call:
        request = EndTxnRequest(
            transactional_id="t",
            producer_id=owner[0],
            producer_epoch=owner[1],
            committed=is_commit,
        )
        fresh = self.fresh_producer_id() if is_epoch_exhausted(owner[1]) else -1
        return self.ask(EndTransaction(request, self.client_version, fresh), version=version)

    def end(self, owner: Owner, *, is_commit: bool = True) -> tuple[ErrorCode, Owner]:
        answer = self.begin_end(owner, is_commit=is_commit).response(EndTxnResponse)
        return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def markers(self) -> WriteMarkers:
        """The newest markers that the shard requested."""
        markers = self.sent[-1]
        assert isinstance(markers, WriteMarkers)
        return markers

    def write_markers(self) -> None:
        """The requested markers are written in all partitions."""
        sent, self.sent = self.sent, []
        for markers in sent:
            assert isinstance(markers, WriteMarkers)
            done = MarkersWritten(
                markers.transactional_id, markers.producer_id, markers.producer_epoch
            )
            self.ask(done)

    def describe(self, transactional_id: str = "t") -> DescribeTransactionsTransactionState:
        call = self.ask(DescribeTransaction(transactional_id))
        return call.response(DescribeTransactionsTransactionState)

    def state(self, transactional_id: str = "t") -> str:
        """The state's name, empty for an unknown id."""
        return self.describe(transactional_id).transaction_state

    def list(self, **filters: object) -> ListTransactionsResponse:
        request = ListTransactionsRequest()
        for name, value in filters.items():
            assert hasattr(request, name)
            setattr(request, name, value)
        return self.ask(request).response(ListTransactionsResponse)
