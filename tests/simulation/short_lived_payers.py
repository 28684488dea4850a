"""Payers of transaction version 2 (KIP-890) that leave at random moments, as a session of franz-go
does that is closed.

Such a client commits, aborts, or aborts what it has not begun. It leaves politely, with an abort
right after a commit or in the middle of a transaction, or without a word; its successor has the
same transactional id and comes at once, or when the transaction has timed out. As long as no
timeout and no successor has fenced it, it must not see an error that it cannot retry.
"""

from odradek.node.router.handlers.transactions import handle_end_txn
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from tests.simulation.clients import ClientCluster
from tests.simulation.ledger import Ledger
from tests.simulation.payers import RETRIABLE, TIMEOUT_MS, Payer, Step
from tests.simulation.simulation import Violation
from tests.simulation.store import Identity

_EMPTY_SHARE = 0.2
_OFFSETS_ONLY_SHARE = 0.1
_LEAVE_AFTER_END_SHARE = 0.4
_LEAVE_SHARE = 0.005
_POLITE_SHARE = 0.5
_LONG_ABSENCE_SHARE = 0.1
_STRAY_MS = 5_000
"""A request without a response may be executed so much later: nodes are stopped and cut off."""


class ShortLivedPayer(Payer):
    """See the module's docstring."""

    def __init__(
        self,
        cluster: ClientCluster,
        ledger: Ledger,
        number: int,
        topic_id: bytes,
        count: int,
        *,
        coordinators: tuple[Identity, Identity],
    ) -> None:
        super().__init__(
            cluster,
            ledger,
            number,
            topic_id,
            count,
            coordinators=coordinators,
            version=2,
            restart_share=0.0,
        )
        self.left_count = 0
        self._begun_ms = 0
        self._has_pending_init = False
        self._stray_init_ms = -_STRAY_MS

    def act(self) -> None:
        """Continue, or leave."""
        is_there = self.step is not Step.INIT and not self.is_stopping
        if is_there and self.random.random() < _LEAVE_SHARE:
            payment = self._payment
            if self.random.random() > _POLITE_SHARE:
                self._vanish()
            elif not self.is_waiting and (payment is None or not payment.is_ending):
                self.step = Step.LEAVE
        if self.step is not Step.LEAVE:
            super().act()
        elif not self.is_waiting:
            self._leave()

    def _vanish(self) -> None:
        """Its response, if one is due, finds nobody."""
        self.is_waiting = False
        self.left_count += 1
        self._fail()
        if self.random.random() < _LONG_ABSENCE_SHARE:
            self._silent_until_ms = self.simulation.now_ms + self.random.randrange(2 * TIMEOUT_MS)

    def _begin(self) -> None:
        super()._begin()
        self._begun_ms = self.simulation.now_ms
        payment, kind = self._payment, self.random.random()
        assert payment is not None
        if kind < _EMPTY_SHARE:
            payment.is_commit = False
            self.step = Step.END
        elif kind < _EMPTY_SHARE + _OFFSETS_ONLY_SHARE:
            self.step = Step.OFFSETS

    def _decided(self, is_commit: bool) -> None:
        super()._decided(is_commit)
        if self.random.random() < _LEAVE_AFTER_END_SHARE and not self.is_stopping:
            self._begun_ms = self.simulation.now_ms
            self.step = Step.LEAVE

    def _init(self) -> None:
        if self._has_pending_init:
            # Without a producer id it cannot be repeated: the first one may still fence the second.
            self._stray_init_ms = self.simulation.now_ms
        super()._init()
        self._has_pending_init = self.is_waiting

    def _leave(self) -> None:
        """Abort the open transaction, or the next one that was not begun, and go."""
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self._owner[0],
            producer_epoch=self._owner[1],
            committed=False,
        )

        def done(answer: object) -> None:
            assert isinstance(answer, EndTxnResponse)
            if answer.error_code in RETRIABLE:
                return
            self._check_error(answer.error_code)
            self.left_count += 1
            self._fail()

        self._call(self._transactions, handle_end_txn, request, ApiKey.END_TXN, 5, done)

    def _go_on(self, code: int, step: Step) -> None:
        if self.step is Step.INIT:
            self._has_pending_init = False
        if code and code not in RETRIABLE:
            self._check_error(code)
        super()._go_on(code, step)

    def _check_error(self, code: int) -> None:
        now_ms = self.simulation.now_ms
        is_timed_out = now_ms - self._begun_ms >= TIMEOUT_MS
        if code and not is_timed_out and now_ms - self._stray_init_ms >= _STRAY_MS:
            raise Violation(f"{self.name} is refused with {ErrorCode(code).name} in {self.step}")
