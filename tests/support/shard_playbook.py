"""A shard with a real runtime, a log in memory, and a clock that is moved by hand.

Requests return a `Call`, which is answered now or by a later event, so that a test reads as a
dialogue. Unless the log is held, the records of an event are committed before the next event.
Effects wait in `sent`.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from odradek.coordinator.loader import LogEntry, TransactionalEntry
from odradek.coordinator.outcome import NO_REQUEST, Answer, Command, ErrorReply
from odradek.coordinator.runtime import BATCH_BYTES_MAX, CoordinatorBatch, Shard, ShardRuntime
from odradek.protocol.errors import ErrorCode

T = TypeVar("T")
S = TypeVar("S", bound=Shard[Any])
C = TypeVar("C", bound="Call")

START_MS = 1_000_000


class Call:
    """One request and its result."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.answer: Answer | None = None

    @property
    def is_parked(self) -> bool:
        return self.answer is None

    @property
    def refused_with(self) -> ErrorCode | None:
        return self.answer.error_code if isinstance(self.answer, ErrorReply) else None

    def response(self, kind: type[T]) -> T:
        assert self.answer is not None, "the request is still parked"
        assert not isinstance(self.answer, ErrorReply), self.answer
        assert isinstance(self.answer.response, kind)
        return self.answer.response


def log_entries(batch: CoordinatorBatch[Any]) -> list[LogEntry]:
    """The entries of a batch as a reader of the log gets them."""
    if batch.marker is not None:
        return [batch.marker]
    if batch.producer is None:
        return list(batch.entries)
    return [TransactionalEntry(*batch.producer, key, value) for key, value in batch.entries]


class ShardPlaybook(Generic[S, C]):
    """See the module's docstring. `new_shard` makes the shard that loads the log, and `new_call`
    the result of `ask`."""

    def __init__(
        self,
        new_shard: Callable[[], S],
        new_call: Callable[[int], C],
        *,
        log: Sequence[LogEntry] = (),
        now_ms: int = START_MS,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self.now_ms = now_ms
        # Of LogEntry; where no transaction writes, a test knows them to be keys with values.
        self.log: list[Any] = list(log)
        self.sent: list[object] = []
        self.is_log_held = False
        self.held: list[CoordinatorBatch[Any]] = []
        self.calls: dict[int, C] = {}
        self.batch_bytes_max = batch_bytes_max
        self._new_shard = new_shard
        self._new_call = new_call
        self._load()

    def _load(self) -> None:
        self.shard = self._new_shard()
        self.runtime: ShardRuntime[Any] = ShardRuntime(
            self.shard, batch_bytes_max=self.batch_bytes_max
        )
        self.runtime.load(self.log)
        self._hear(self.runtime.finish_loading(next_offset=len(self.log), now_ms=self.now_ms))
        self._settle()

    # -- the log and the clock ------------------------------------------------------------------

    def reload(self) -> None:
        """The coordinator fails and another one loads the log."""
        self._hear(self.runtime.unload())
        self.held.clear()
        self.sent.clear()
        self._load()

    def hold_log(self) -> None:
        """From now on no batch is committed."""
        self.is_log_held = True

    def release_log(self) -> None:
        """Commit the held batches, and commit at once again."""
        self.is_log_held = False
        held, self.held = self.held, []
        for batch in held:
            self._commit(batch)
        self._settle()

    def fail_log(self, error_code: ErrorCode) -> None:
        """The held batches fail; commit at once again."""
        self.is_log_held = False
        held, self.held = self.held, []
        for batch in held:
            self._hear(self.runtime.append_failed(batch, error_code, self.now_ms))
        self._settle()

    def tick(self, duration_ms: int) -> None:
        """Let time pass; timers fire when they are due."""
        end_ms = self.now_ms + duration_ms
        while True:
            check_ms = self.runtime.next_check_ms()
            if check_ms is None or check_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, check_ms)
            self._hear(self.runtime.fire_due(self.now_ms))
            self._settle()
        self.now_ms = end_ms

    def ask(
        self, request: object, *, version: int = 0, client: str = "client", connection: int = 1
    ) -> C:
        """Send a request of a client on this host."""
        request_id = len(self.calls)
        call = self.calls[request_id] = self._new_call(request_id)
        command = Command(
            request=request,
            request_id=request_id,
            api_version=version,
            client_id=client,
            client_host="/127.0.0.1",
            connection_id=connection,
            fresh_id=str(uuid.UUID(int=request_id)),
        )
        self._hear(self.runtime.execute(command, self.now_ms))
        self._settle()
        return call

    def _settle(self) -> None:
        for batch in self.runtime.take_batches():
            if self.is_log_held:
                self.held.append(batch)
            else:
                self._commit(batch)

    def _commit(self, batch: CoordinatorBatch[Any]) -> None:
        base_offset = len(self.log)
        self.log.extend(log_entries(batch))
        self._hear(self.runtime.appended(batch, base_offset))
        self._hear(self.runtime.on_high_watermark_updated(len(self.log), self.now_ms))

    def _hear(self, answers: Sequence[Answer]) -> None:
        self.sent += (send.instruction for send in self.runtime.take_effects())
        for answer in answers:
            if answer.request_id != NO_REQUEST:
                call = self.calls[answer.request_id]
                assert call.answer is None, "a request was answered twice"
                call.answer = answer
