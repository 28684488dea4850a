"""The worker client over real sockets: batches of requests, unreachable and restarted workers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import zmq

from odradek.node.bus.arena import Arena
from odradek.node.bus.endpoint import DealerLink, encode, ipc_address
from odradek.node.bus.messages import (
    UNSENT,
    Append,
    AppendBytes,
    Appended,
    AppendReply,
    PartitionsAdvanced,
    RequestFailed,
    RequestTraced,
    RouterGreeting,
    ToRouter,
    ToWorker,
    TracedSpan,
    TraceRequest,
    WorkerGreeting,
    WorkerLeaving,
)
from odradek.node.bus.reply import Reply, TraceScope, drive
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.bus.ring import RingReader, RingWriter
from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter
from odradek.node.observability import StorageState
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.errors import ErrorCode
from tests.support.manual_router import reachable_count
from tests.support.waiting import is_readable

DEADLINE_S = 5.0


class _Peer:
    """The worker's end, which the test plays. It never sleeps and is never woken."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, index: int) -> None:
        self._link = DealerLink(context, address, b"worker-%d" % index)
        self._index = index
        self._decode = msgspec.msgpack.Decoder(list[ToWorker]).decode
        self._arena: Arena | None = None
        self._requests: RingReader | None = None
        self._replies: RingWriter | None = None
        self._writer: WakeupWriter | None = None
        self._bell_path = Path(address.removeprefix("ipc://")).parent / f"{index}-{id(self)}.bell"
        self._wakeup_pipe = WakeupPipe(self._bell_path)

    async def greet(self, incarnation: int, worker_count: int = 0) -> RouterGreeting:
        await _until(self._link.take_connected)
        greeting = WorkerGreeting(
            self._index, incarnation, str(self._bell_path), worker_count=worker_count
        )
        self._link.socket.send(encode([greeting]))
        await _until(lambda: bool(self._link.socket.poll(0)))
        (answer,) = self._decode(self._link.socket.recv())
        assert isinstance(answer, RouterGreeting)
        self._arena = Arena.open(Path(answer.arena_path))
        view = self._arena.view
        first, second = answer.requests_ring_offset, answer.replies_ring_offset
        self._requests = RingReader(view[first : first + answer.ring_bytes])
        self._replies = RingWriter(view[second : second + answer.ring_bytes])
        self._writer = WakeupWriter.open(Path(answer.wakeup_path))
        return answer

    async def greet_again(self, incarnation: int) -> None:
        """As after a reconnection, with the same rings."""
        self._link.socket.send(
            encode([WorkerGreeting(self._index, incarnation, str(self._bell_path))])
        )
        await _until(lambda: bool(self._link.socket.poll(0)))
        self._link.socket.recv()

    async def receive(self) -> list[ToWorker]:
        assert self._requests is not None
        got: list[bytes] = []

        def has_read() -> bool:
            payload = self._requests.read() if self._requests is not None else None
            if payload is not None:
                got.append(payload)
            return bool(got)

        await _until(has_read)
        return self._decode(got[0])

    def send(self, *messages: ToRouter) -> None:
        assert self._replies is not None
        assert self._replies.write(encode(list(messages)))
        if self._replies.must_wake():
            assert self._writer is not None
            assert self._writer.wake()

    def bytes_at(self, start: int, length: int) -> bytes:
        assert self._arena is not None
        return bytes(self._arena.view[start : start + length])

    def fall_asleep(self) -> None:
        assert self._requests is not None
        assert self._requests.fall_asleep()

    async def is_rung(self) -> bool:
        await _until(lambda: is_readable(self._wakeup_pipe))
        return True

    def close(self) -> None:
        self._link.close()
        self._wakeup_pipe.close()


async def _until(condition: "object") -> None:
    assert callable(condition)
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - ZeroMQ's state has no event to wait on
            await asyncio.sleep(0.001)


async def _answer(reply: Reply[AppendReply]) -> AppendReply:
    done: asyncio.Future[AppendReply] = asyncio.get_running_loop().create_future()

    async def wait() -> AppendReply:
        return await reply

    drive(wait(), lambda value, error: done.set_result(value) if value else None)
    return await asyncio.wait_for(done, DEADLINE_S)


@asynccontextmanager
async def _bus(
    folder: Path, advanced: list[tuple[int, tuple[int, ...]]]
) -> "AsyncIterator[tuple[WorkerClient, zmq.Context[zmq.Socket[bytes]], str]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = ipc_address(folder, "router-0")
    arena = Arena.create(folder / "arena", 16 << 20)
    worker_client = WorkerClient(
        loop=asyncio.get_running_loop(),
        context=context,
        address=address,
        wakeup_path=folder / "router-0.bell",
        worker_count=2,
        arena=arena,
        incarnation=1,
    )
    worker_client.on_advanced = lambda store, numbers: advanced.append((store, numbers))
    try:
        yield worker_client, context, address
    finally:
        worker_client.close()
        context.destroy(0)


def _append(worker_client: WorkerClient, store: int, payload: bytes) -> Reply[AppendReply]:
    return worker_client.append_bytes(AppendBytes(UNSENT, store, 5, payload))


def test_the_first_request_leaves_at_once_and_the_rest_of_the_turn_in_one_message(
    tmp_path: Path,
) -> None:
    """So that the store's worker wakes up while the others are still being read."""

    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peers = [_Peer(context, address, index) for index in (0, 1)]
            greeting = await peers[0].greet(1)
            assert greeting.arena_path == str(tmp_path / "arena")
            await peers[1].greet(1)
            replies = [_append(worker_client, store, b"%d" % store) for store in (0, 1, 2, 4)]
            first = await peers[0].receive()
            rest = await peers[0].receive()
            odd = await peers[1].receive()
            assert [m.batches for m in first if isinstance(m, AppendBytes)] == [b"0"]
            assert [m.batches for m in rest if isinstance(m, AppendBytes)] == [b"2", b"4"]
            assert [m.batches for m in odd if isinstance(m, AppendBytes)] == [b"1"]
            ids = [m.request_id for m in (*first, *rest) if isinstance(m, AppendBytes)]
            peers[0].send(*(Appended(ids[at], 0, 10 * at) for at in (2, 0, 1)))
            answers = [await _answer(replies[at]) for at in (0, 2, 3)]
            assert [a.base_offset for a in answers if isinstance(a, Appended)] == [0, 10, 20]
            for peer in peers:
                peer.close()

    asyncio.run(main())


def test_a_traced_request_is_announced_and_its_stages_come_before_its_answer(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            trace = RequestTrace("request", 0, lambda _: None)
            scope = TraceScope(trace)
            scope.begin()
            reply = _append(worker_client, 0, b"traced")
            scope.end()
            (announced,) = await peer.receive()
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            assert announced == TraceRequest(message.request_id)
            at = trace.spans[0].start_ns
            spans = (
                TracedSpan("append", at + 10, at + 20, (("topic", "t"),)),
                TracedSpan("commit", at + 20, at + 50),
            )
            peer.send(
                RequestTraced(message.request_id, spans),
                Appended(message.request_id, 0, 0),
                RequestTraced(message.request_id, spans),
            )
            assert isinstance(await _answer(reply), Appended)
            peer.close()
        assert [(each.name, each.process, each.parent) for each in trace.spans] == [
            ("worker_request", "", -1),
            ("bus_request", "bus", 0),
            ("append", "worker-0", 0),
            ("commit", "worker-0", 0),
            ("bus_reply", "bus", 0),
        ]
        assert trace.spans[1].end_ns == at + 10
        assert trace.spans[2].attributes == {"topic": "t"}

    asyncio.run(main())


def test_of_some_requests_the_time_on_the_bus_is_measured(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            replies = [_append(worker_client, 0, b"x") for _ in range(256)]
            announced: list[TraceRequest] = []
            count = 0
            while count < len(replies):
                for message in await peer.receive():
                    if isinstance(message, TraceRequest):
                        announced.append(message)
                    else:
                        count += 1
            assert announced == [TraceRequest(256)]
            now_ns = time.perf_counter_ns()
            spans = (TracedSpan("worker_queue", now_ns, now_ns),)
            peer.send(RequestTraced(256, spans), Appended(256, 0, 0))
            assert isinstance(await _answer(replies[-1]), Appended)
            times = worker_client.bus_request_times, worker_client.bus_reply_times
            assert [each.count for each in times] == [1, 1]
            assert sum(each.sum_s for each in times) <= worker_client.times.sum_s
            peer.close()

    asyncio.run(main())


def test_requests_wait_for_an_unreachable_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            reply = _append(worker_client, 0, b"early")
            assert reachable_count(worker_client) == 0
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"early"
            peer.send(Appended(message.request_id, 0, 0))
            assert isinstance(await _answer(reply), Appended)
            peer.close()

    asyncio.run(main())


def test_requests_that_were_sent_to_a_dead_worker_fail_with_a_retriable_error(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            first = _Peer(context, address, 0)
            await first.greet(1)
            sent = _append(worker_client, 0, b"sent")
            await first.receive()
            first.close()
            second = _Peer(context, address, 0)
            await second.greet(2)
            lost = await _answer(sent)
            assert isinstance(lost, RequestFailed)
            assert lost.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            after = _append(worker_client, 0, b"after")
            (message,) = await second.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"after"
            second.send(Appended(message.request_id, 0, 3))
            assert isinstance(await _answer(after), Appended)
            second.close()

    asyncio.run(main())


def test_requests_to_a_worker_that_cannot_write_are_refused_until_its_successor_greets(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            first = _Peer(context, address, 0)
            await first.greet(1)
            sent = _append(worker_client, 0, b"sent")
            await first.receive()
            first.close()
            # Of a worker that runs, it decides itself.
            worker_client.set_storage_state(StorageState({"worker-0": "ill"}))
            queued = _append(worker_client, 0, b"queued")
            worker_client.set_storage_state(
                StorageState({"worker-0": "Read-only file system"}, frozenset({"worker-0"}))
            )
            refused = _append(worker_client, 0, b"refused")
            for reply in (sent, queued, refused):
                answer = await _answer(reply)
                assert isinstance(answer, RequestFailed)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert answer.error_message == "Read-only file system"
            second = _Peer(context, address, 0)
            await second.greet(2)
            late = _append(worker_client, 0, b"late")
            (message,) = await second.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"late"
            second.send(Appended(message.request_id, 0, 7))
            assert isinstance(await _answer(late), Appended)
            second.close()

    asyncio.run(main())


def test_when_the_router_stops_requests_without_a_reply_fail(tmp_path: Path) -> None:
    """Sent or not. A reply that comes later is of no use."""

    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            sent = _append(worker_client, 0, b"sent")
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            unsent = _append(worker_client, 0, b"unsent")
            worker_client.fail_all()
            for reply in (sent, unsent):
                failed = await _answer(reply)
                assert isinstance(failed, RequestFailed)
                assert failed.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert worker_client.queued_count == 0
            peer.send(Appended(message.request_id, 0, 0))
            after = _append(worker_client, 0, b"after")
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            peer.send(Appended(message.request_id, 0, 1))
            assert isinstance(await _answer(after), Appended)
            peer.close()

    asyncio.run(main())


def test_a_leaving_worker_answers_what_it_has_and_later_requests_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            first = _Peer(context, address, 0)
            await first.greet(1)
            sent = _append(worker_client, 0, b"sent")
            (message,) = await first.receive()
            assert isinstance(message, AppendBytes)
            first.send(WorkerLeaving())
            await _until(lambda: not reachable_count(worker_client))
            kept = _append(worker_client, 0, b"kept")
            first.send(Appended(message.request_id, 0, 1))
            assert isinstance(await _answer(sent), Appended)
            first.close()
            second = _Peer(context, address, 0)
            await second.greet(2)
            (message,) = await second.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"kept"
            second.send(Appended(message.request_id, 0, 2))
            assert isinstance(await _answer(kept), Appended)
            second.close()

    asyncio.run(main())


def test_after_a_resize_unsent_requests_go_to_the_new_workers_and_the_others_fail(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            before = [_Peer(context, address, index) for index in (0, 1)]

            def reachable() -> int:
                return reachable_count(worker_client)

            for peer in before:
                await peer.greet(1, 2)
            sent = _append(worker_client, 3, b"sent")
            await before[1].receive()
            for peer in before:
                peer.fall_asleep()
                peer.close()
            async with asyncio.timeout(DEADLINE_S):
                while reachable_count(worker_client):
                    for store in (0, 1):
                        _append(worker_client, store, b"lost")
                    await asyncio.sleep(0.001)
            unsent = [_append(worker_client, store, b"%d" % store) for store in range(4)]
            after = {index: _Peer(context, address, index) for index in (2, 0, 3, 1)}
            for index, peer in after.items():
                await peer.greet(2, 4)
                # Each is given the stores that are its own now, and nothing else.
                messages = await peer.receive()
                assert [m.batches for m in messages if isinstance(m, AppendBytes)][-1:] == [
                    b"%d" % index
                ]
                assert {m.store for m in messages if isinstance(m, AppendBytes)} == {index}
                peer.send(*(Appended(m.request_id, 0, 7) for m in messages))  # type: ignore[union-attr]  # appends all
                assert isinstance(await _answer(unsent[index]), Appended)
            lost = await _answer(sent)
            assert isinstance(lost, RequestFailed)
            assert lost.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert reachable() == 4
            for peer in after.values():
                peer.close()
            alone = _Peer(context, address, 0)
            await alone.greet(3, 1)
            assert reachable() == 1
            reply = _append(worker_client, 3, b"all stores")
            (message,) = await alone.receive()
            assert isinstance(message, AppendBytes)
            alone.send(Appended(message.request_id, 0, 8))
            assert isinstance(await _answer(reply), Appended)
            alone.close()

    asyncio.run(main())


def test_unsent_requests_go_to_the_successor_of_a_dead_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            first = _Peer(context, address, 0)
            await first.greet(1)
            first.fall_asleep()
            first.close()
            # The first request finds nobody to ring for and is lost with the ring; the next waits.
            async with asyncio.timeout(DEADLINE_S):
                while reachable_count(worker_client):
                    _append(worker_client, 0, b"lost")
                    await asyncio.sleep(0.001)
            unsent = _append(worker_client, 0, b"unsent")
            second = _Peer(context, address, 0)
            await second.greet(2)
            (message,) = await second.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"unsent"
            second.send(Appended(message.request_id, 0, 3))
            assert isinstance(await _answer(unsent), Appended)
            second.close()

    asyncio.run(main())


def test_a_sleeping_worker_and_a_sleeping_router_are_woken(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            peer.fall_asleep()
            reply = _append(worker_client, 0, b"x")
            assert await peer.is_rung()
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            # Long enough for the router to have gone to sleep: it looks for well under a
            # millisecond.
            await asyncio.sleep(0.02)
            peer.send(Appended(message.request_id, 0, 8))
            assert isinstance(await _answer(reply), Appended)
            peer.close()

    asyncio.run(main())


def test_large_batches_travel_in_the_arena(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            batches = bytes(range(256)) * 1024
            reply = _append(worker_client, 0, batches)
            (message,) = await peer.receive()
            assert isinstance(message, Append)
            assert not message.is_client
            assert peer.bytes_at(message.arena_offset, message.length) == batches
            peer.send(Appended(message.request_id, 0, 0))
            await _answer(reply)
            peer.close()

    asyncio.run(main())


def test_more_requests_than_fit_into_the_ring_all_arrive(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            replies = [_append(worker_client, 0, b"x" * 9_000) for _ in range(200)]
            got = 0
            while got < len(replies):
                messages = await peer.receive()
                got += len(messages)
                peer.send(
                    *(Appended(m.request_id, 0, 0) for m in messages if isinstance(m, AppendBytes))
                )
            for reply in replies:
                assert isinstance(await _answer(reply), Appended)
            peer.close()

    asyncio.run(main())


def test_a_reconnected_worker_loses_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (worker_client, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            reply = _append(worker_client, 0, b"x")
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            await peer.greet_again(1)
            peer.send(Appended(message.request_id, 0, 8))
            answer = await _answer(reply)
            assert isinstance(answer, Appended)
            assert answer.base_offset == 8
            peer.close()

    asyncio.run(main())


def test_advanced_partitions_are_reported(tmp_path: Path) -> None:
    async def main() -> None:
        advanced: list[tuple[int, tuple[int, ...]]] = []
        async with _bus(tmp_path, advanced) as (_, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            peer.send(PartitionsAdvanced(2, (7, 9)))
            await _until(lambda: advanced == [(2, (7, 9))])
            peer.close()

    asyncio.run(main())
