"""The router's side of the bus to the workers: one message per worker and turn, answers matched by id.

Requests made during a turn of the loop leave together at its end. A worker that is away keeps its requests
in a bounded queue here until it greets again or they expire; what it had already been sent when it died has an unknown
outcome and is answered NOT_LEADER_OR_FOLLOWER, which every client retries after a metadata refresh.
Invariant: every request is answered exactly once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq

from node.bus.endpoint import bind_endpoint, drain_with_identity, encode
from node.bus.messages import (
    BUS_VERSION,
    Advanced,
    Append,
    AppendBytes,
    Appended,
    DeleteRecords,
    DescribeProducers,
    Failed,
    ProducersDescribed,
    RecordsDeleted,
    RouterGreeting,
    ToRouter,
    WorkerGreeting,
)
from node.bus.reply import Reply
from protocol.errors import ErrorCode

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
"""How long a request may wait for a worker that is away: clients' default of request.timeout.ms."""
QUEUE_COUNT_MAX = 20_000
"""Requests held for a worker that is away; more are refused at once."""
_SWEEP_S = 1.0
_BIG_MESSAGE_BYTES = 65_536

Request = Append | AppendBytes | DeleteRecords | DescribeProducers
Answer = Appended | RecordsDeleted | ProducersDescribed | Failed


@dataclass(slots=True)
class _Worker:
    identity: bytes
    incarnation: int = 0
    is_reachable: bool = False
    queue: "list[Request]" = None  # type: ignore[assignment]  # set below
    pending: "dict[int, tuple[Reply[Answer], float]]" = None  # type: ignore[assignment]  # set below

    def __post_init__(self) -> None:
        self.queue = []
        self.pending = {}


class Fanout:
    """Requests to the workers that own partitions. `on_advanced(store, numbers)` hears of watched partitions."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        worker_count: int,
        arena_path: str,
        incarnation: int,
        on_advanced: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        self._loop = loop
        self._socket = bind_endpoint(context, address)
        self._workers = [_Worker(b"worker-%d" % index) for index in range(worker_count)]
        self._by_identity = {worker.identity: worker for worker in self._workers}
        self._greeting = encode([RouterGreeting(arena_path, incarnation)])
        self._on_advanced = on_advanced
        self._decode = msgspec.msgpack.Decoder(list[ToRouter]).decode
        self._next_id = 0
        self._is_flush_due = False
        self._sweep: asyncio.TimerHandle | None = None
        self.after_answers: Callable[[], None] = lambda: None
        """Called when a turn's answers have been delivered: responses can be written now."""
        loop.add_reader(self._socket.getsockopt(zmq.FD), self._receive)
        self._receive()

    @property
    def reachable_count(self) -> int:
        """How many workers have greeted and not been lost since."""
        return sum(worker.is_reachable for worker in self._workers)

    @property
    def queued_count(self) -> int:
        """Requests that wait for a worker: unsent and unanswered."""
        return sum(len(worker.pending) for worker in self._workers)

    def append_reference(
        self,
        *,
        store: int,
        number: int,
        arena_offset: int,
        length: int,
        acks: int,
        version: int,
        leader_epoch: int = -1,
        may_scratch_before: bool = False,
    ) -> Reply[Answer]:
        """Append the batches that lie in the arena. The caller keeps them there until the answer.

        `may_scratch_before`: nobody but the store's worker touches the sixteen bytes before them.
        """
        self._next_id = request_id = self._next_id + 1
        return self._request(
            store,
            Append(
                request_id,
                store,
                number,
                arena_offset,
                length,
                leader_epoch,
                acks,
                version,
                may_scratch_before,
            ),
        )

    def is_same_worker(self, store: int, other: int) -> bool:
        """Whether two stores belong to one worker."""
        return store % len(self._workers) == other % len(self._workers)

    def append_bytes(
        self,
        *,
        store: int,
        number: int,
        batches: bytes,
        is_client: bool = False,
        acks: int = -1,
        version: int = 13,
        leader_epoch: int = -1,
    ) -> Reply[Answer]:
        """Append batches that are carried in the message itself."""
        self._next_id = request_id = self._next_id + 1
        return self._request(
            store,
            AppendBytes(request_id, store, number, batches, is_client, leader_epoch, acks, version),
        )

    def delete_records(self, *, store: int, number: int, offset: int) -> Reply[Answer]:
        """Move a partition's log start."""
        self._next_id = request_id = self._next_id + 1
        return self._request(store, DeleteRecords(request_id, store, number, offset))

    def describe_producers(self, *, store: int, number: int) -> Reply[Answer]:
        """Who has been writing to a partition."""
        self._next_id = request_id = self._next_id + 1
        return self._request(store, DescribeProducers(request_id, store, number))

    def close(self) -> None:
        """Stop listening to the workers; unanswered requests stay unanswered."""
        self._loop.remove_reader(self._socket.getsockopt(zmq.FD))
        if self._sweep is not None:
            self._sweep.cancel()
        self._socket.close(0)

    def _request(self, store: int, message: Request) -> Reply[Answer]:
        worker = self._workers[store % len(self._workers)]
        reply: Reply[Answer] = Reply()
        if len(worker.queue) >= QUEUE_COUNT_MAX:
            reply.resolve(Failed(message.request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return reply
        worker.pending[message.request_id] = (reply, self._loop.time() + REQUEST_TIMEOUT_S)
        worker.queue.append(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if not worker.is_reachable and self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_deadlines)
        return reply

    def _flush(self) -> None:
        self._is_flush_due = False
        for worker in self._workers:
            if worker.queue and worker.is_reachable:
                self._send_queue(worker)
        self._receive()

    def _send_queue(self, worker: _Worker) -> None:
        payload = encode(worker.queue)
        try:
            self._socket.send(worker.identity, zmq.SNDMORE | zmq.NOBLOCK)
            self._socket.send(payload, zmq.NOBLOCK, copy=len(payload) <= _BIG_MESSAGE_BYTES)
        except zmq.ZMQError as error:
            # The queue is kept: the worker gets it when it greets.
            worker.is_reachable = False
            if self._sweep is None:
                self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_deadlines)
            log.warning("%s is away: %s", worker.identity.decode(), error)
            return
        worker.queue.clear()

    def _receive(self) -> None:
        is_any = False
        received = True
        while received:
            received = False
            for identity, payload in drain_with_identity(self._socket):
                received = is_any = True
                worker = self._by_identity.get(identity)
                if worker is None:
                    log.error("a stranger called %r spoke on the worker bus", identity)
                    continue
                for message in self._decode(payload):
                    self._on_message(worker, message)
        if is_any:
            self.after_answers()

    def _on_message(self, worker: _Worker, message: ToRouter) -> None:
        if type(message) is Advanced:
            self._on_advanced(message.store, message.numbers)
        elif type(message) is WorkerGreeting:
            self._on_greeting(worker, message)
        else:
            waiting = worker.pending.pop(message.request_id, None)  # type: ignore[union-attr]
            if waiting is not None:
                waiting[0].resolve(message)  # type: ignore[arg-type]

    def _on_greeting(self, worker: _Worker, greeting: WorkerGreeting) -> None:
        if greeting.bus_version != BUS_VERSION:
            raise RuntimeError(
                f"{worker.identity.decode()} speaks bus version {greeting.bus_version}, we {BUS_VERSION}:"
                " all processes of a node must run the same release"
            )
        self._socket.send_multipart((worker.identity, self._greeting), zmq.NOBLOCK)
        worker.is_reachable = True
        if worker.incarnation not in (0, greeting.incarnation):
            self._fail_sent(worker)
        worker.incarnation = greeting.incarnation
        if worker.queue:
            self._send_queue(worker)

    def _fail_sent(self, worker: _Worker) -> None:
        """The worker that these were sent to is gone; nobody knows which of them it carried out."""
        first_unsent = worker.queue[0].request_id if worker.queue else self._next_id + 1
        lost = [request_id for request_id in worker.pending if request_id < first_unsent]
        for request_id in lost:
            reply, _ = worker.pending.pop(request_id)
            reply.resolve(Failed(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _sweep_deadlines(self) -> None:
        """Expire what no worker has been given yet.

        What was sent is answered by the worker or by its successor's greeting, never by time: the worker
        may still be reading the arena, and the bytes must stay until it is known to be done.
        """
        self._sweep = None
        now = self._loop.time()
        is_anything_queued = False
        for worker in self._workers:
            expired = 0
            for message in worker.queue:
                if worker.pending[message.request_id][1] > now:
                    break
                expired += 1
            dropped, worker.queue = worker.queue[:expired], worker.queue[expired:]
            for message in dropped:
                reply, _ = worker.pending.pop(message.request_id)
                reply.resolve(Failed(message.request_id, ErrorCode.REQUEST_TIMED_OUT))
            is_anything_queued = is_anything_queued or bool(worker.queue)
        if is_anything_queued:
            self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_deadlines)
