"""Hosts one shard of a coordinator: loads it, appends its records, fires its timers.

The order of steps is fixed. Loading: barrier (the worker is reachable, no append is in flight), log
bounds, replay in slices, activate. Active: decide at once, deliver the replies that may leave at
once, and append at the end of the loop's turn what the turn has written, several batches in flight.
If the log is in doubt, the shard is loaded again.

While the shard loads, requests wait for a moment before they are refused, because most loads take
less than a client's retry backoff. Invariant: every command given to `execute` is answered through
`deliver` exactly once. Called by coordinator_service.py.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVarTuple, Unpack

from odradek.coordinator.outcome import Answer, Command, ErrorReply
from odradek.coordinator.runtime import CoordinatorBatch, ShardRuntime, ShardState
from odradek.node.bus.messages import Appended, AppendReply, DescribeProducersReply
from odradek.node.bus.reply import Reply, TraceScope
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.shards.shard_log import ShardLog
from odradek.node.structured_log import get_logger
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID

log = get_logger(__name__)

Ts = TypeVarTuple("Ts")

Runtime = ShardRuntime[Any]
"""A runtime of any type of shard: the host does not look at the records."""

LOAD_WAIT_TIMEOUT_S: Final = 1.0
"""How long requests wait for a loading shard before COORDINATOR_LOAD_IN_PROGRESS."""
WAITING_COMMANDS_MAX: Final = 10_000
_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 2.0
_COMMIT_POLL_S: Final = 0.01
"""Between reads of the high watermark while loaded records are not committed. Followers fetch from
a new leader at once: mostly one read is enough."""
# Compared with every request.
_ACTIVE: Final = ShardState.ACTIVE
_FAILED: Final = ShardState.FAILED
_NOT_LOADED: Final = frozenset({ShardState.LOADING, ShardState.FAILED})
APPEND_LINGER_S: Final = 0.005
"""How long records with Outcome.can_linger wait for others (Kafka: append.linger.ms)."""


class ShardHost:
    """One shard while this broker hosts it, across reloads."""

    def __init__(
        self,
        *,
        name: str,
        leader_epoch: int,
        shard_log: ShardLog,
        new_runtime: Callable[[], Runtime],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        deliver: Callable[[Sequence[Answer]], None],
        run_effect: Callable[[object], None] = lambda _instruction: None,
    ) -> None:
        """`run_effect` gets the effects of the shard (Effect.instruction)."""
        self.name = name
        self.leader_epoch = leader_epoch
        self.runtime = new_runtime()
        self._log = shard_log
        self._new_runtime = new_runtime
        self._loop = loop
        self._now_ms = now_ms
        self._deliver = deliver
        self._run_effect = run_effect
        self._waiting_commands: list[Command] = []
        self._load_wait_until = 0.0
        self._load_wait_timer: asyncio.TimerHandle | None = None
        self._retry_s = 0.0
        self._is_flush_due = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._load_started = 0.0
        self._trace: RequestTrace | None = None
        """Of the last traced command since records were appended: the next append is part of it, if
        its answer waits for that."""

    @property
    def is_active(self) -> bool:
        """Whether the shard is loaded."""
        return self.runtime.state is ShardState.ACTIVE

    def start(self) -> None:
        """Start to load."""
        self._start_load_wait()
        self._load_started = self._loop.time()
        self._ask_barrier(self.runtime)

    def execute(self, command: Command) -> None:
        """Run a command in the shard; its answer comes through `deliver`, now or later."""
        runtime = self.runtime
        if runtime.state is not _ACTIVE and runtime.state in _NOT_LOADED:
            if (
                self._loop.time() < self._load_wait_until
                and len(self._waiting_commands) < WAITING_COMMANDS_MAX
            ):
                self._waiting_commands.append(command)
            else:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                self._deliver([ErrorReply(command.request_id, code)])
            return
        if RequestTrace.current is not None:
            self._trace = RequestTrace.current
        self._run(runtime.execute, command, self._now_ms())

    def close(self) -> None:
        """Unload the shard; waiting commands fail with NOT_COORDINATOR."""
        for timer in (self._timer, self._load_wait_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._load_wait_timer = self._linger_timer = None
        answers = self.runtime.unload()
        answers += [
            ErrorReply(waiting.request_id, ErrorCode.NOT_COORDINATOR)
            for waiting in self._waiting_commands
        ]
        self._waiting_commands.clear()
        self._deliver(answers)

    # -- loading ----------------------------------------------------------------------------------

    def _ask_barrier(self, runtime: Runtime) -> None:
        if runtime is self.runtime and runtime.state is ShardState.LOADING:
            reply = self._log.barrier()
            reply.on_done(partial(self._on_barrier, runtime, reply))

    def _on_barrier(self, runtime: Runtime, reply: Reply[DescribeProducersReply]) -> None:
        if runtime is not self.runtime or runtime.state is not ShardState.LOADING:
            return
        if reply.result().error_code:
            # The worker has not created the partition yet, or has died.
            self._retry_later(self._ask_barrier, runtime)
            return
        start_offset, end_offset = self._log.bounds()
        committed = min(self._log.high_watermark(), end_offset)
        self._load_slice(runtime, start_offset, committed, end_offset)

    def _load_slice(self, runtime: Runtime, offset: int, committed: int, end_offset: int) -> None:
        if runtime is not self.runtime or runtime.state is not ShardState.LOADING:
            return
        try:
            if offset < end_offset:
                is_committed = offset < committed
                entries, offset = self._log.read(offset, committed if is_committed else end_offset)
                runtime.load(entries, is_committed=is_committed)
                self._loop.call_soon(self._load_slice, runtime, offset, committed, end_offset)
                return
            answers = runtime.finish_loading(next_offset=end_offset, now_ms=self._now_ms())
        except Exception:
            log.exception(
                "a shard could not be loaded; it is loaded again", shard=self.name, offset=offset
            )
            self._deliver(runtime.fail())
            self._retry_later(self._reload, runtime)
            return
        took_ms = (self._loop.time() - self._load_started) * 1000
        log.debug(
            "a shard is loaded", shard=self.name, end_offset=end_offset, duration_ms=int(took_ms)
        )
        self._deliver(answers)
        waiting, self._waiting_commands = self._waiting_commands, []
        if self._load_wait_timer is not None:
            self._load_wait_timer.cancel()
            self._load_wait_timer = None
        for command in waiting:
            self.execute(command)
        self._schedule_next()
        self._poll_high_watermark(runtime)

    def _poll_high_watermark(self, runtime: Runtime) -> None:
        """Report the high watermark until all that was loaded is committed."""
        if runtime is self.runtime and runtime.has_uncommitted_load:
            high_watermark = self._log.high_watermark()
            self._run(runtime.on_high_watermark_updated, high_watermark, self._now_ms())
            self._loop.call_later(_COMMIT_POLL_S, self._poll_high_watermark, runtime)

    def _reload(self, runtime: Runtime) -> None:
        if runtime is self.runtime and runtime.state is ShardState.FAILED:
            self.runtime = self._new_runtime()
            self._load_started = self._loop.time()
            self._ask_barrier(self.runtime)

    def _start_load_wait(self) -> None:
        """Let requests wait for LOAD_WAIT_TIMEOUT_S."""
        self._load_wait_until = self._loop.time() + LOAD_WAIT_TIMEOUT_S
        if self._load_wait_timer is None:
            self._load_wait_timer = self._loop.call_at(self._load_wait_until, self._refuse_waiting)

    def _retry_later(self, action: Callable[[Runtime], None], runtime: Runtime) -> None:
        self._loop.call_later(self._retry_s, action, runtime)
        self._retry_s = min(max(self._retry_s * 2, _RETRY_S_MIN), _RETRY_S_MAX)

    def _refuse_waiting(self) -> None:
        self._load_wait_timer = None
        waiting, self._waiting_commands = self._waiting_commands, []
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._deliver([ErrorReply(command.request_id, code) for command in waiting])

    # -- active -----------------------------------------------------------------------------------

    def _run(self, action: Callable[[Unpack[Ts]], list[Answer]], *args: *Ts) -> None:
        """Run a step of the runtime, deliver its answers, and schedule what is due next."""
        try:
            answers = action(*args)
        except Exception:
            # An error of the shard: its state is in doubt, but the log is not.
            log.exception("a shard failed and is loaded again", shard=self.name)
            answers = self.runtime.fail()
        self._deliver(answers)
        self._schedule_next()

    def _schedule_next(self) -> None:
        runtime = self.runtime
        for send in runtime.take_effects():
            self._run_effect(send.instruction)
        if runtime.state is _FAILED:
            # The barrier waits for appends that a dead worker had; so the first reload is at once,
            # later ones back off.
            self._start_load_wait()
            self._retry_later(self._reload, runtime)
            return
        if runtime.has_batches and not self._is_flush_due:
            if runtime.has_urgent_batches:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)
            elif self._linger_timer is None:
                self._linger_timer = self._loop.call_later(APPEND_LINGER_S, self._flush_lingering)
        deadline_ms = runtime.next_check_ms()
        if deadline_ms is not None and (self._timer is None or deadline_ms < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            delay_s = max(deadline_ms - self._now_ms(), 0) / 1000
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        runtime = self.runtime
        self._run(runtime.fire_due, self._now_ms())

    def _flush_lingering(self) -> None:
        self._linger_timer = None
        self._flush()

    def _flush(self) -> None:
        """Append what the turn has written."""
        self._is_flush_due = False
        trace, self._trace = self._trace, None
        if trace is None or trace.answered_ns:
            self._append_batches()
            return
        scope = TraceScope(trace)
        scope.begin()
        try:
            self._append_batches()
        finally:
            scope.end()

    def _append_batches(self) -> None:
        runtime = self.runtime
        for batch in runtime.take_batches():
            if runtime.state is ShardState.DRAINING:
                # A batch before it was refused at once: do not append what depends on it.
                refusal = ErrorCode.KAFKA_STORAGE_ERROR
                self._run(runtime.append_failed, batch, refusal, self._now_ms())
                continue
            if runtime.state is not ShardState.ACTIVE:
                break
            reply = self._log.append(_encode_batch(batch), self.leader_epoch, batch.expected_offset)
            reply.on_done(partial(self._on_appended, runtime, batch, reply))

    def _on_appended(
        self, runtime: Runtime, batch: CoordinatorBatch[Any], reply: Reply[AppendReply]
    ) -> None:
        if runtime is not self.runtime:
            return
        self._run(self._complete_append, runtime, batch, reply.result())

    def _complete_append(
        self, runtime: Runtime, batch: CoordinatorBatch[Any], answer: AppendReply
    ) -> list[Answer]:
        now_ms = self._now_ms()
        if type(answer) is not Appended or answer.error_code:
            code = ErrorCode(answer.error_code)
            log.warning("a shard could not append records", shard=self.name, error_code=code.name)
            return runtime.append_failed(batch, code, now_ms)
        answers = runtime.appended(batch, answer.base_offset)
        if runtime.state is ShardState.ACTIVE:
            self._retry_s = 0.0
        # acks=all: an appended batch is committed.
        end_offset = answer.base_offset + batch.offset_count
        return answers + runtime.on_high_watermark_updated(end_offset, now_ms)


def _encode_batch(batch: CoordinatorBatch[Any]) -> bytes:
    """A record batch without producer sequence, or a transaction marker."""
    marker = batch.marker
    if marker is not None:
        return build_end_transaction_batch(
            EndTransactionMarker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                marker.coordinator_epoch,
            ),
            timestamp_ms=batch.timestamp_ms,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
        )
    producer_id, producer_epoch = batch.producer or (NO_PRODUCER_ID, NO_EPOCH)
    return build_batch(
        [
            Record(index, batch.timestamp_ms, key, value)
            for index, (key, value) in enumerate(batch.entries)
        ],
        attributes=0 if batch.producer is None else TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
