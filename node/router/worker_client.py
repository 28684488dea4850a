"""The client of this broker's workers: requests leave in batches, replies are matched by id.

The requests of one turn of the loop are written together at its end, into a ring in shared memory
for each worker; a wakeup pipe wakes a sleeping worker. Replies come the same way. While a single
reply is pending, the loop polls the ring for a moment if that paid lately (adaptive_spin.py).

Requests to an unreachable worker are queued, up to QUEUE_COUNT_MAX, until the worker greets again
or they expire. The outcome of requests that were already sent to a worker that died is unknown:
they fail with NOT_LEADER_OR_FOLLOWER, which every client retries after a metadata refresh.
Invariant: every request is answered exactly once.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

import msgspec
import zmq

from odradek.node.bus.adaptive_spin import SPIN_S, AdaptiveSpin
from odradek.node.bus.arena import NO_BLOCK, Arena
from odradek.node.bus.endpoint import bind_endpoint, descriptor, drain_with_identity, encode
from odradek.node.bus.messages import (
    BUS_VERSION,
    UNSENT,
    Append,
    AppendBytes,
    Appended,
    AppendReply,
    ArchivedOffsetsSet,
    PartitionsAdvanced,
    ProducersDescribed,
    RecordsDeleted,
    RelayRequest,
    RelayResponse,
    RequestFailed,
    RequestTraced,
    RouterGreeting,
    ToRouter,
    TraceRequest,
    WorkerGreeting,
    WorkerLeaving,
    WorkerRequest,
)
from odradek.node.bus.reply import Reply, TracedReply
from odradek.node.bus.request_trace import ROOT, RequestTrace
from odradek.node.bus.ring import HEADER_BYTES, RingReader, RingWriter
from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter
from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.observability import StorageState
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ErrorCode
from odradek.storage.layout import index_of

log = get_logger(__name__)

REQUEST_TIMEOUT_S = 20.0
"""How long a request waits for an unreachable worker: less than a client waits for an answer
(request.timeout.ms, by default 30 s)."""
QUEUE_COUNT_MAX = 20_000
"""Requests queued for one worker; more are refused at once."""
RING_BYTES = 512 << 10
INLINE_BYTES_MAX = 16 << 10
"""Batches outside the arena are sent inside the message up to this size."""
_MESSAGES_PER_WRITE = 256
_SWEEP_S = 1.0
_MEASURED_MASK = 15
"""Requests whose ids have none of these bits are measured: one in sixteen."""
_BUS_MEASURED_MASK = 255
"""Of them, those whose ids have none of these bits are measured on the bus, too: the worker tells
when it has read them and when it has answered."""

R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)


class AnswerReceiver(Protocol[T_contra]):
    """What gets the answer to a request, once. A Reply, or something that needs no coroutine."""

    def resolve(self, value: T_contra) -> None: ...


@dataclass(slots=True)
class _WorkerConnection:
    """The state of one worker. `requests` and `replies` are replaced when the worker restarts."""

    identity: bytes
    ring_block: int
    requests: RingWriter
    replies: RingReader
    wakeup_writer: WakeupWriter | None = None
    incarnation: int = 0
    is_reachable: bool = False
    queue: list[WorkerRequest[Any]] = field(default_factory=list)
    relayed: list[RelayResponse | TraceRequest] = field(default_factory=list)
    """To be sent before the queue."""
    pending: dict[int, AnswerReceiver[Any]] = field(default_factory=dict)
    """The requests without an answer, sent or not."""
    blocks: dict[int, int] = field(default_factory=dict)
    """Blocks of the arena to release with the answer."""
    deadlines: dict[int, float] = field(default_factory=dict)
    """Until when requests of the queue wait for a worker that cannot be reached."""
    queue_count_max: int = QUEUE_COUNT_MAX
    """Requests that may be queued: none while the worker is down for a problem of its storage."""
    storage_problem: str = ""
    """Why the worker is down, as far as its storage is the reason."""


class WorkerClient:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        wakeup_path: Path,
        worker_count: int,
        arena: Arena,
        incarnation: int,
        processors: int = 1,
    ) -> None:
        self._loop = loop
        self._arena = arena
        self._incarnation = incarnation
        self._wakeup_path = str(wakeup_path)
        self._wakeup_pipe = WakeupPipe(wakeup_path)
        self._socket = bind_endpoint(context, address)
        self._workers = [self._make_worker(index) for index in range(worker_count)]
        self._by_identity = {worker.identity: worker for worker in self._workers}
        self._decode = msgspec.msgpack.Decoder(list[ToRouter]).decode
        self._next_id = 0
        self._is_flush_due = False
        self._spin = AdaptiveSpin(processors)
        self._is_spinning = False
        self._spin_until = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._measured: dict[int, int] = {}
        """When requests were sent that are measured, by id."""
        self._traced: dict[int, tuple[RequestTrace, int]] = {}
        """The requests that are traced: by id, the trace and the span."""
        self.times = DurationHistogram()
        """From `send` to the answer, of one request in sixteen."""
        self.bus_request_times = DurationHistogram()
        """From `send` until the worker has read the request, of one in 256."""
        self.bus_reply_times = DurationHistogram()
        """From the worker's answer until it is read here, of one in 256."""
        self.on_advanced: Callable[[int, tuple[int, ...]], None] = lambda _store, _numbers: None
        """Called with (store, numbers) when watched partitions advance."""
        self.before_replies: Callable[[], None] = lambda: None
        """Called before the replies of a turn are delivered."""
        self.on_replies_delivered: Callable[[], None] = lambda: None
        """Called after the replies of a turn were delivered: responses can be written."""
        self.on_relayed_request: Callable[[bytes, Callable[[bytes], None]], None] = (
            lambda _p, _send: None
        )
        """Called with a request of another broker, and a function that sends the response."""
        loop.add_reader(self._wakeup_pipe.fileno(), self._on_wakeup)
        loop.add_reader(descriptor(self._socket), self._receive_greetings)
        self._receive_greetings()

    @property
    def queued_count(self) -> int:
        """Requests without a reply, sent or not."""
        return sum(len(worker.pending) for worker in self._workers)

    def worker_of(self, store: int) -> int:
        """The index of the worker that owns the store. The number of workers may change."""
        return index_of(store) % len(self._workers)

    def send(self, request: WorkerRequest[R], block: int = NO_BLOCK) -> Reply[R]:
        """The reply of the worker that owns the request's store; sets the request's id.

        The caller keeps what an Append refers to in the arena until the reply. `block` is released
        then.
        """
        trace = RequestTrace.current
        reply: Reply[R] = Reply() if trace is None else self._traced_reply(trace, request)
        self.submit(request, reply, block)
        return reply

    def submit(
        self, request: WorkerRequest[R], receiver: AnswerReceiver[R], block: int = NO_BLOCK
    ) -> None:
        """As `send`; the receiver gets the reply."""
        self._next_id = request_id = request.request_id = self._next_id + 1
        worker = self._workers[self.worker_of(request.store)]
        if len(worker.queue) >= worker.queue_count_max:
            self._release(block)
            receiver.resolve(_refusal(worker, request_id))  # type: ignore[arg-type]  # one of R
            return
        is_reachable = worker.is_reachable
        is_idle = is_reachable and not worker.pending
        if not request_id & _MEASURED_MASK:
            self._measured[request_id] = perf_counter_ns()
            if not request_id & _BUS_MEASURED_MASK and request_id not in self._traced:
                worker.relayed.append(TraceRequest(request_id))
        worker.pending[request_id] = receiver
        if block != NO_BLOCK:
            worker.blocks[request_id] = block
        worker.queue.append(request)
        if is_idle:
            self._send_queue(worker)
            if not self._spin.is_useful and not worker.queue:
                return
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if not is_reachable:
            worker.deadlines[request_id] = self._loop.time() + REQUEST_TIMEOUT_S
            if self._sweep is None:
                self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_deadlines)

    def _traced_reply(self, trace: RequestTrace, request: WorkerRequest[R]) -> Reply[R]:
        """The reply to the next request, which is part of a trace; the worker is told so before
        it."""
        request_id = self._next_id + 1
        worker = self._workers[self.worker_of(request.store)]
        reply: TracedReply[R] = TracedReply(
            trace,
            "worker_request",
            {"worker": worker.identity.decode(), "request": type(request).__name__},
            lambda _answer: self._traced.pop(request_id, None),
        )
        self._traced[request_id] = trace, reply.span
        if len(worker.queue) < worker.queue_count_max:
            worker.relayed.append(TraceRequest(request_id))
        return reply

    def _on_traced(self, worker: _WorkerConnection, message: RequestTraced) -> None:
        """What the worker did for a request whose answer comes next."""
        sent_ns = self._measured.get(message.request_id, 0)
        if sent_ns and message.spans and not message.request_id & _BUS_MEASURED_MASK:
            self.bus_request_times.observe(message.spans[0].start_ns - sent_ns)
            self.bus_reply_times.observe(perf_counter_ns() - message.spans[-1].end_ns)
        trace, parent = self._traced.get(message.request_id, (None, ROOT))
        if trace is None or parent == ROOT or not message.spans:
            return
        name, spans = worker.identity.decode(), message.spans
        sent_ns = trace.spans[parent].start_ns
        trace.add("bus_request", sent_ns, spans[0].start_ns, process="bus", parent=parent)
        for span in spans:
            trace.add(
                span.name,
                span.start_ns,
                span.end_ns,
                process=name,
                parent=parent,
                attributes=dict(span.attributes),
            )
        trace.add("bus_reply", spans[-1].end_ns, perf_counter_ns(), process="bus", parent=parent)

    def append_bytes(self, request: AppendBytes) -> Reply[AppendReply]:
        """As `send`; the batches are copied into the arena if they are too large for a message."""
        batches = request.batches
        if len(batches) <= INLINE_BYTES_MAX:
            return self.send(request)
        block = self._arena.allocate(len(batches))
        if block is None:
            reply: Reply[AppendReply] = Reply()
            code = ErrorCode.REQUEST_TIMED_OUT
            reply.resolve(RequestFailed(UNSENT, code, "The router's arena is full."))
            return reply
        start = self._arena.offset_of(block)
        self._arena.view[start : start + len(batches)] = batches
        in_arena = Append(
            UNSENT,
            request.store,
            request.number,
            start,
            len(batches),
            request.leader_epoch,
            request.acks,
            request.version,
            is_client=request.is_client,
            timeout_ms=request.timeout_ms,
            base_offset=request.base_offset,
        )
        return self.send(in_arena, block)

    def fail_all(self) -> None:
        """The router stops: requests without a reply fail with NOT_LEADER_OR_FOLLOWER.

        A worker may still read what they refer to in the arena, so that is not released.
        """
        for worker in self._workers:
            lost, worker.pending = worker.pending, {}
            worker.queue.clear()
            for request_id, receiver in lost.items():
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                receiver.resolve(RequestFailed(request_id, code))

    def set_storage_state(self, state: StorageState) -> None:
        """Refuse requests to workers that are down because they cannot write their files, instead
        of waiting for their successors. Requests that were sent to them fail, too."""
        for worker in self._workers:
            name = worker.identity.decode()
            worker.storage_problem = state.problems[name] if name in state.ended else ""
            worker.queue_count_max = 0 if worker.storage_problem else QUEUE_COUNT_MAX
            if worker.storage_problem:
                worker.is_reachable = False
                worker.queue.clear()
                for request_id in list(worker.pending):
                    self._resolve(worker, _refusal(worker, request_id))

    def close(self) -> None:
        """Close the connections. Pending requests get no reply."""
        self._loop.remove_reader(self._wakeup_pipe.fileno())
        self._loop.remove_reader(descriptor(self._socket))
        self._wakeup_pipe.close()
        if self._sweep is not None:
            self._sweep.cancel()
        self._socket.close(0)

    # -- to the workers ----------------------------------------------------------------------------

    def _flush(self) -> None:
        self._is_flush_due = False
        for worker in self._workers:
            if worker.is_reachable:
                if worker.queue or worker.relayed:
                    self._send_queue(worker)
                if len(worker.pending) == 1 and not self._is_spinning:
                    self._start_spinning()

    def _send_queue(self, worker: _WorkerConnection) -> None:
        """Write queued requests into the ring. The rest is written when replies are read."""
        queue = worker.queue
        while worker.relayed and worker.requests.write(encode(worker.relayed[:1])):
            del worker.relayed[0]
        while queue:
            count = min(len(queue), _MESSAGES_PER_WRITE)
            payload = encode(queue[:count])
            while len(payload) > worker.requests.message_bytes_max:
                count //= 2
                payload = encode(queue[:count])
            if not worker.requests.write(payload):
                break
            del queue[:count]
        if worker.deadlines and not queue:
            worker.deadlines.clear()
        wakeup_writer = worker.wakeup_writer
        if wakeup_writer is not None and worker.requests.must_wake() and not wakeup_writer.wake():
            # The requests in the ring are lost with the worker; the next greeting fails them.
            worker.is_reachable = False
            log.warning("a worker is unreachable", child=worker.identity.decode())

    def _relay_response(self, worker: _WorkerConnection, identity: bytes, payload: bytes) -> None:
        """Send a response to another broker, through the worker that relayed the request."""
        if not worker.is_reachable:
            return  # the other broker has lost its connection, and retries
        worker.relayed.append(RelayResponse(identity, payload))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    # -- from the workers --------------------------------------------------------------------------

    def _start_spinning(self) -> None:
        """One reply is pending: poll the ring in the next turns of the loop, if that pays."""
        if self._spin.should_spin():
            self._is_spinning = True
            self._spin_until = time.perf_counter() + SPIN_S
            for worker in self._workers:
                worker.replies.wake_up()
            self._loop.call_soon(self._spin_once)

    def _spin_once(self) -> None:
        has_message = self._read_replies()
        if not has_message and time.perf_counter() < self._spin_until:
            self._loop.call_soon(self._spin_once)
            return
        self._spin.spin_ended(has_message=has_message)
        self._is_spinning = False
        self._arm_wakeups()

    def _arm_wakeups(self) -> None:
        """Let every worker wake this process from now on, after reading what came meanwhile."""
        for worker in self._workers:
            while not worker.replies.fall_asleep():
                self._read_replies()

    def _read_replies(self) -> bool:
        is_any = False
        try:
            for worker in self._workers:
                while (payload := worker.replies.read()) is not None:
                    if not is_any:
                        is_any = True
                        self.before_replies()
                    for message in self._decode(payload):
                        if type(message) is Appended:
                            self._resolve(worker, message)
                        else:
                            self._on_message(worker, message)
                if is_any and worker.queue and worker.is_reachable and not self._is_flush_due:
                    self._send_queue(worker)
        finally:
            if is_any:
                self.on_replies_delivered()
        return is_any

    def _on_wakeup(self) -> None:
        self._wakeup_pipe.clear()
        self._read_replies()
        if not self._is_spinning:
            self._arm_wakeups()

    def _receive_greetings(self) -> None:
        for identity, payload in drain_with_identity(self._socket):
            for message in self._decode(payload):
                if type(message) is WorkerGreeting and message.worker_count:
                    self._resize_workers(message.worker_count)
                worker = self._by_identity.get(identity)
                if worker is None:
                    log.error(
                        "dropped a message of an unknown process on the worker bus",
                        child=repr(identity),
                    )
                    break
                self._on_message(worker, message)

    def _on_message(self, worker: _WorkerConnection, message: ToRouter) -> None:
        if type(message) is Appended:
            self._resolve(worker, message)
        elif type(message) is PartitionsAdvanced:
            self.on_advanced(message.store, message.numbers)
        elif type(message) is RelayRequest:
            self.on_relayed_request(
                message.payload, partial(self._relay_response, worker, message.identity)
            )
        elif type(message) is WorkerGreeting:
            self._on_greeting(worker, message)
        elif type(message) is RequestTraced:
            self._on_traced(worker, message)
        elif type(message) is WorkerLeaving:
            # Later requests wait for the worker that owns its stores next.
            worker.is_reachable = False
        else:
            self._resolve(worker, message)  # type: ignore[arg-type]  # all others are answers

    def _resolve(
        self,
        worker: _WorkerConnection,
        answer: Appended | RecordsDeleted | ProducersDescribed | ArchivedOffsetsSet | RequestFailed,
    ) -> None:
        request_id = answer.request_id
        receiver = worker.pending.pop(request_id, None)
        if receiver is not None:
            if worker.blocks:
                self._release(worker.blocks.pop(request_id, NO_BLOCK))
            if worker.deadlines:
                worker.deadlines.pop(request_id, None)
            if not request_id & _MEASURED_MASK:
                began_ns = self._measured.pop(request_id, 0)
                if began_ns:
                    self.times.observe(perf_counter_ns() - began_ns)
            receiver.resolve(answer)

    def _release(self, block: int) -> None:
        if block != NO_BLOCK:
            self._arena.release(block)

    def _on_greeting(self, worker: _WorkerConnection, greeting: WorkerGreeting) -> None:
        if greeting.bus_version != BUS_VERSION:
            raise RuntimeError(
                f"{worker.identity.decode()} has bus version {greeting.bus_version}, not"
                f" {BUS_VERSION}. All processes of a node must run the same release: restart it."
            )
        worker.storage_problem = ""
        worker.queue_count_max = QUEUE_COUNT_MAX
        if worker.incarnation not in (0, greeting.incarnation):
            self._fail_unanswered(worker)
        if worker.wakeup_writer is not None:
            worker.wakeup_writer.close()
        worker.wakeup_writer = WakeupWriter.open(Path(greeting.wakeup_path))
        if worker.incarnation != greeting.incarnation:
            worker.requests, worker.replies = self._make_rings(worker.ring_block)
            if not self._is_spinning:
                worker.replies.fall_asleep()
        worker.incarnation = greeting.incarnation
        start = self._arena.offset_of(worker.ring_block)
        answer = RouterGreeting(
            self._wakeup_path,
            str(self._arena.path),
            start,
            start + RING_BYTES,
            RING_BYTES,
            self._incarnation,
        )
        self._socket.send_multipart((worker.identity, encode([answer])), zmq.NOBLOCK)
        # A send may consume the descriptor's readable edge of a message that has come.
        self._loop.call_soon(self._receive_greetings)
        worker.is_reachable = True
        if worker.queue:
            self._send_queue(worker)

    def _resize_workers(self, worker_count: int) -> None:
        """The number of workers has changed, and all former workers have ended. Requests that were
        sent fail; requests that were not go to the workers that own the stores now."""
        if worker_count == len(self._workers):
            return
        log.info(
            "the number of workers has changed", count=worker_count, former_count=len(self._workers)
        )
        waiting: list[tuple[WorkerRequest[Any], AnswerReceiver[Any], int, float]] = []
        latest = self._loop.time() + REQUEST_TIMEOUT_S
        for worker in self._workers:
            self._fail_unanswered(worker)
            for message in worker.queue:
                request_id = message.request_id
                receiver = worker.pending.pop(request_id)
                block = worker.blocks.pop(request_id, NO_BLOCK)
                deadline = worker.deadlines.pop(request_id, latest)
                waiting.append((message, receiver, block, deadline))
            assert not worker.pending
            worker.queue.clear()
            worker.is_reachable = False
        for worker in self._workers[worker_count:]:
            del self._by_identity[worker.identity]
            if worker.wakeup_writer is not None:
                worker.wakeup_writer.close()
            self._arena.release(worker.ring_block)
        del self._workers[worker_count:]
        for index in range(len(self._workers), worker_count):
            worker = self._make_worker(index)
            self._workers.append(worker)
            self._by_identity[worker.identity] = worker
        for message, receiver, block, deadline in sorted(
            waiting, key=lambda each: each[0].request_id
        ):
            worker = self._workers[index_of(message.store) % worker_count]
            worker.pending[message.request_id] = receiver
            if block != NO_BLOCK:
                worker.blocks[message.request_id] = block
            worker.deadlines[message.request_id] = deadline
            worker.queue.append(message)

    def _fail_unanswered(self, worker: _WorkerConnection) -> None:
        """Fail what was sent to a worker that is gone: the outcome is unknown."""
        first_unsent = worker.queue[0].request_id if worker.queue else self._next_id + 1
        lost = [request_id for request_id in worker.pending if request_id < first_unsent]
        for request_id in lost:
            self._resolve(worker, RequestFailed(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _make_worker(self, index: int) -> _WorkerConnection:
        block = self._arena.allocate(2 * RING_BYTES)
        if block is None:
            raise ValueError("The arena is too small for the rings of the workers: raise its size.")
        return _WorkerConnection(b"worker-%d" % index, block, *self._make_rings(block))

    def _make_rings(self, block: int) -> tuple[RingWriter, RingReader]:
        """Empty rings. A worker that used the old ones is dead."""
        start = self._arena.offset_of(block)
        memory = self._arena.view[start : start + 2 * RING_BYTES]
        for ring in (0, RING_BYTES):
            memory[ring : ring + HEADER_BYTES] = bytes(HEADER_BYTES)
        return RingWriter(memory[:RING_BYTES]), RingReader(memory[RING_BYTES:])

    def _sweep_deadlines(self) -> None:
        """Fail expired requests that were not sent.

        Requests that were sent do not expire: the worker may still read their bytes in the arena.
        The worker replies to them, or the greeting of its successor fails them.
        """
        self._sweep = None
        now = self._loop.time()
        is_anything_queued = False
        for worker in self._workers:
            expired = 0
            for message in worker.queue:
                # Those that were queued while the worker could be reached wait from now on.
                latest = now + REQUEST_TIMEOUT_S
                if worker.deadlines.setdefault(message.request_id, latest) > now:
                    break
                expired += 1
            dropped, worker.queue = worker.queue[:expired], worker.queue[expired:]
            for message in dropped:
                self._resolve(
                    worker, RequestFailed(message.request_id, ErrorCode.REQUEST_TIMED_OUT)
                )
            is_anything_queued = is_anything_queued or bool(worker.queue)
        if is_anything_queued:
            self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_deadlines)


def _refusal(worker: _WorkerConnection, request_id: int) -> RequestFailed:
    """The reply to a request that cannot be queued."""
    if worker.storage_problem:
        return RequestFailed(request_id, ErrorCode.KAFKA_STORAGE_ERROR, worker.storage_problem)
    return RequestFailed(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
