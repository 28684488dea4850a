"""The transactional ids of one shard.

The state is one table, the newest `TransactionMetadata` of each id, which only `replay` changes;
the steps are in `transaction_metadata`. Soft state are the deferred requests: a request that
arrives while the markers of the previous transaction are being written is deferred for a moment
instead of getting CONCURRENT_TRANSACTIONS, because that moment is shorter than any client's
backoff.

A refusal that ends a client's work (`_FINAL`) is answered once its own record is committed, which
says what is known already. A coordinator that was replaced and does not know it yet would refuse an
epoch, or an id, that its successor has given out; its append fails, and the client goes there.

Invariant: every prepared transaction in committed state has a `WriteMarkers` effect in the host,
from its commit or the load of the shard until `MarkersWritten` is recorded. Called by
coordinator.runtime, with one shard per partition of `__transaction_state`.
"""

from collections.abc import Callable
from typing import Any, Final

from odradek.coordinator.outcome import (
    Command,
    Effect,
    Outcome,
    ShardReply,
    Timer,
    TimerKey,
    respond,
)
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.coordinator.transaction import records as formats
from odradek.coordinator.transaction.description import describe_transaction, list_transactions
from odradek.coordinator.transaction.records import TransactionRecord
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
from odradek.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    is_expired,
    next_owner,
    prepare_add_partitions,
    prepare_commit_or_abort,
    prepare_complete,
    prepare_fence,
    prepare_init_producer_id,
    require_owner,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsRequest,
)
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID

DEFER_TIMEOUT_MS: Final = 100
"""How long a request waits for the markers of the previous transaction."""
DEFERRED_COUNT_MAX: Final = 10
"""Deferred requests of one transactional id; a client has one or a few in flight."""
_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
    }
)
_FENCED_SINCE_INIT: Final = 4
_FENCED_SINCE: Final = 2
_EXPIRY_KEY: Final[TimerKey] = ("expiry",)
_EXPIRY_SLICE_COUNT: Final = 2_000

_Outcome = Outcome[TransactionRecord]
_Handler = Callable[[Command, Any, int], _Outcome]


class TransactionShard:
    """The transactions of one shard. `settings` may be replaced at any time."""

    is_log_compacted: Final = True
    decode = staticmethod(formats.decode)

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.transactions: TimelineTable[str, TransactionMetadata] = TimelineTable(self.timeline)
        self._deferred: dict[str, list[Command]] = {}
        self._to_check: list[str] = []
        self._handlers: dict[type, _Handler] = {
            InitProducer: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._end,
            MarkersWritten: self._complete,
            DescribeTransaction: self._describe,
            ListTransactionsRequest: self._list,
        }

    # -- the shard of the runtime -----------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Kafka's formats; the newer one from transaction.version 1 on."""
        return formats.encode(record, version=min(self.settings.transaction_version, 1))

    def handle(self, command: Command, now_ms: int) -> _Outcome:
        """Handle a request; CONCURRENT_TRANSACTIONS defers it if that is possible."""
        try:
            return self._handlers[type(command.request)](command, command.request, now_ms)
        except ApiError as error:
            deferred = None
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                deferred = self._defer(command, now_ms)
            refusal = _refused(command, error.code)
            if error.code in _FINAL:
                return self._answer_after_commit(command, refusal)
            return deferred or respond(command, refusal)

    def replay(self, record: TransactionRecord) -> None:
        """Apply a record to the table."""
        if record.transaction is None:
            self.transactions.remove(record.transactional_id)
        else:
            self.transactions.put(record.transactional_id, record.transaction)

    def on_loaded(self, now_ms: int) -> _Outcome:
        """Write the markers of prepared transactions, set the timers of ongoing ones."""
        timers = [Timer(_EXPIRY_KEY, now_ms + self.settings.expiry_check_interval_ms)]
        effects: list[Effect] = []
        for transactional_id, known in self.transactions.items():
            if known.state is TransactionState.ONGOING:
                timers.append(Timer(("timeout", transactional_id), known.deadline_ms))
            elif known.state.is_prepared:
                effects.append(_markers(transactional_id, known))
        return Outcome(timers=tuple(timers), effects=tuple(effects))

    def fire(self, key: TimerKey, now_ms: int) -> _Outcome:
        """A timeout of a transaction or a deferred request, or the check for expired ids."""
        match key[0]:
            case "expiry":
                return self._expire(now_ms)
            case "timeout":
                return self._time_out(key[1], now_ms)
            case "deferred":
                return self._refuse_deferred((key[1],))
            case kind:
                raise AssertionError(f"a timer of an unknown kind: {kind}")

    def on_append_failed(self, records: tuple[TransactionRecord, ...], now_ms: int) -> _Outcome:
        """The table was reverted: reset the timers and refuse deferred requests."""
        ids = dict.fromkeys(record.transactional_id for record in records)
        timers = (_timeout(one, self.transactions.get(one)) for one in ids)
        refused = self._refuse_deferred(tuple(ids))
        return Outcome(replies=refused.replies, timers=(*timers, *refused.timers))

    # -- the client's requests --------------------------------------------------------------------

    def _init(self, command: Command, asked: InitProducer, now_ms: int) -> _Outcome:
        request = asked.request
        transactional_id = request.transactional_id or ""
        if not 0 < request.transaction_timeout_ms <= self.settings.timeout_max_ms:
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(transactional_id)
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = request.producer_id, request.producer_epoch
        if known is not None and known.state is TransactionState.ONGOING:
            if expected is not None and expected != (known.producer_id, known.producer_epoch):
                raise ApiError(ErrorCode.PRODUCER_FENCED)
            self._deferred.setdefault(transactional_id, []).append(command)
            return self._write(transactional_id, prepare_fence(known, now_ms=now_ms), now_ms)
        renewed = prepare_init_producer_id(
            known,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
            fresh_producer_id=asked.fresh_producer_id,
            now_ms=now_ms,
        )
        response = InitProducerIdResponse(
            producer_id=renewed.producer_id, producer_epoch=renewed.producer_epoch
        )
        reply = ShardReply(command.request_id, response)
        return self._write(transactional_id, renewed, now_ms, (reply,))

    def _add(self, command: Command, request: AddPartitions, now_ms: int) -> _Outcome:
        known = self.transactions.get(request.transactional_id)
        grown = prepare_add_partitions(
            known,
            request.producer_id,
            request.producer_epoch,
            request.partitions,
            client_version=request.client_version,
            now_ms=now_ms,
        )
        if grown is known:
            return respond(command, ErrorCode.NONE)
        reply = ShardReply(command.request_id, ErrorCode.NONE)
        return self._write(request.transactional_id, grown, now_ms, (reply,))

    def _verify(self, command: Command, request: VerifyPartitions, now_ms: int) -> _Outcome:
        found = self.transactions.get(request.transactional_id)
        known = require_owner(found, request.producer_id, request.producer_epoch)
        if known.state.is_prepared:
            return respond(command, ErrorCode.CONCURRENT_TRANSACTIONS)
        missing = request.partitions - known.partitions
        if missing:
            return self._answer_after_commit(command, missing)
        return respond(command, missing)

    def _end(self, command: Command, asked: EndTransaction, now_ms: int) -> _Outcome:
        request = asked.request
        known = self.transactions.get(request.transactional_id)
        decided = prepare_commit_or_abort(
            known,
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            client_version=asked.client_version,
            fresh_producer_id=asked.fresh_producer_id,
            now_ms=now_ms,
        )
        producer_id, producer_epoch = next_owner(decided)
        response = EndTxnResponse(producer_id=producer_id, producer_epoch=producer_epoch)
        if decided is known:
            return respond(command, response)
        reply = ShardReply(command.request_id, response)
        return self._write(request.transactional_id, decided, now_ms, (reply,))

    # -- markers, timeouts and expiration ---------------------------------------------------------

    def _complete(self, command: Command, done: MarkersWritten, now_ms: int) -> _Outcome:
        transactional_id = done.transactional_id
        known = self.transactions.get(transactional_id)
        if (
            known is None
            or not known.state.is_prepared
            or (known.producer_id, known.producer_epoch) != (done.producer_id, done.producer_epoch)
        ):
            # A repeated report.
            return respond(command, None)
        deferred = self._deferred.pop(transactional_id, ())
        return Outcome(
            records=(TransactionRecord(transactional_id, prepare_complete(known, now_ms=now_ms)),),
            replies=(ShardReply(command.request_id, None),),
            timers=(Timer(("deferred", transactional_id), None),) if deferred else (),
            resumed_commands=tuple(deferred),
            # It is written with the start of the next transaction. A load before that writes the
            # markers again, which has no effect.
            can_linger=True,
        )

    def _time_out(self, transactional_id: str, now_ms: int) -> _Outcome:
        known = self.transactions.get(transactional_id)
        if known is None or known.state is not TransactionState.ONGOING:
            return Outcome()
        if known.deadline_ms > now_ms:
            return Outcome(timers=(Timer(("timeout", transactional_id), known.deadline_ms),))
        return self._write(transactional_id, prepare_fence(known, now_ms=now_ms), now_ms)

    def _expire(self, now_ms: int) -> _Outcome:
        """Check some ids; the others follow after 1 ms, the next round after the interval."""
        if not self._to_check:
            self._to_check = [transactional_id for transactional_id, _ in self.transactions.items()]
        checked = self._to_check[-_EXPIRY_SLICE_COUNT:]
        del self._to_check[-_EXPIRY_SLICE_COUNT:]
        records: list[TransactionRecord] = []
        for transactional_id in checked:
            known = self.transactions.get(transactional_id)
            if known is not None and is_expired(
                known, now_ms=now_ms, expiration_ms=self.settings.expiration_ms
            ):
                records.append(TransactionRecord(transactional_id, None))
        pause_ms = 1 if self._to_check else self.settings.expiry_check_interval_ms
        timer = Timer(_EXPIRY_KEY, now_ms + pause_ms)
        return Outcome(records=tuple(records), timers=(timer,), is_atomic=False)

    def _answer_after_commit(self, command: Command, response: object) -> _Outcome:
        """The outcome of a response that no deposed coordinator may give: it waits for the commit
        of a record that changes nothing."""
        transactional_id = _transactional_id(command)
        unchanged = TransactionRecord(transactional_id, self.transactions.get(transactional_id))
        return Outcome(records=(unchanged,), replies=(ShardReply(command.request_id, response),))

    def _write(
        self,
        transactional_id: str,
        transaction: TransactionMetadata,
        now_ms: int,
        replies: tuple[ShardReply, ...] = (),
    ) -> _Outcome:
        """The outcome of a step, with the timers and effects of its new state."""
        timers = [_timeout(transactional_id, transaction)]
        effects: tuple[Effect, ...] = ()
        if transaction.state.is_prepared:
            effects = (_markers(transactional_id, transaction),)
            if transactional_id in self._deferred:
                timers.append(Timer(("deferred", transactional_id), now_ms + DEFER_TIMEOUT_MS))
        return Outcome(
            records=(TransactionRecord(transactional_id, transaction),),
            replies=replies,
            timers=tuple(timers),
            effects=effects,
        )

    # -- requests that wait -----------------------------------------------------------------------

    def _defer(self, command: Command, now_ms: int) -> _Outcome | None:
        """Defer a request until the markers are written; None if too many are deferred."""
        transactional_id = _transactional_id(command)
        deferred = self._deferred.setdefault(transactional_id, [])
        if len(deferred) >= DEFERRED_COUNT_MAX:
            return None
        deferred.append(command)
        if len(deferred) > 1:
            return Outcome()
        timer = Timer(("deferred", transactional_id), now_ms + DEFER_TIMEOUT_MS)
        return Outcome(timers=(timer,))

    def _refuse_deferred(self, transactional_ids: tuple[str, ...]) -> _Outcome:
        replies: list[ShardReply] = []
        timers: list[Timer] = []
        for transactional_id in transactional_ids:
            replies += (
                ShardReply(command.request_id, _refused(command, ErrorCode.CONCURRENT_TRANSACTIONS))
                for command in self._deferred.pop(transactional_id, ())
            )
            timers.append(Timer(("deferred", transactional_id), None))
        return Outcome(replies=tuple(replies), timers=tuple(timers))

    # -- describe and list ------------------------------------------------------------------------

    def _describe(self, command: Command, request: DescribeTransaction, now_ms: int) -> _Outcome:
        known = self.transactions.committed(request.transactional_id)
        return respond(
            command, describe_transaction(request.transactional_id, known), is_immediate=True
        )

    def _list(self, command: Command, request: ListTransactionsRequest, now_ms: int) -> _Outcome:
        response = list_transactions(self.transactions.committed_items(), request, now_ms)
        return respond(command, response, is_immediate=True)


def _transactional_id(command: Command) -> str:
    request = command.request
    if isinstance(request, InitProducer | EndTransaction):
        return request.request.transactional_id or ""
    assert isinstance(request, AddPartitions | VerifyPartitions)
    return request.transactional_id


def _markers(transactional_id: str, known: TransactionMetadata) -> Effect:
    return Effect(
        WriteMarkers(
            transactional_id,
            known.producer_id,
            known.producer_epoch,
            known.state is TransactionState.PREPARE_COMMIT,
            known.partitions,
            known.client_version,
        )
    )


def _timeout(transactional_id: str, known: TransactionMetadata | None) -> Timer:
    """The timer of a transaction's timeout, which is set while the transaction is ongoing."""
    is_ongoing = known is not None and known.state is TransactionState.ONGOING
    return Timer(("timeout", transactional_id), known.deadline_ms if known and is_ongoing else None)


def _refused(command: Command, error: ErrorCode) -> object:
    """The response to a request with an error."""
    match command.request:
        case InitProducer():
            return InitProducerIdResponse(
                error_code=_known_since(error, command, _FENCED_SINCE_INIT),
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_EPOCH,
            )
        case EndTransaction():
            return EndTxnResponse(error_code=_known_since(error, command, _FENCED_SINCE))
        case _:
            return error


def _known_since(error: ErrorCode, command: Command, version: int) -> ErrorCode:
    """Older versions of a request do not know PRODUCER_FENCED."""
    if error is ErrorCode.PRODUCER_FENCED and command.api_version < version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
