"""The fan-out over real sockets: batching by turns, a worker that is away, one that dies and returns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import zmq

from node.bus.endpoint import Link, encode, ipc_address
from node.bus.messages import (
    Advanced,
    AppendBytes,
    Appended,
    Failed,
    RouterGreeting,
    ToRouter,
    ToWorker,
    WorkerGreeting,
)
from node.bus.reply import Reply, drive
from node.router.fanout import Answer, Fanout
from protocol.errors import ErrorCode

DEADLINE_S = 5.0


class _Peer:
    """The worker's end, driven by hand."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, index: int) -> None:
        self._link = Link(context, address, b"worker-%d" % index)
        self._index = index
        self._decode = msgspec.msgpack.Decoder(list[ToWorker]).decode

    async def greet(self, incarnation: int) -> RouterGreeting:
        await _until(self._link.take_connected)
        self.send(WorkerGreeting(self._index, incarnation))
        (greeting,) = await self.receive()
        assert isinstance(greeting, RouterGreeting)
        return greeting

    async def receive(self) -> list[ToWorker]:
        await _until(lambda: bool(self._link.socket.poll(0)))
        return self._decode(self._link.socket.recv())

    def send(self, *messages: ToRouter) -> None:
        self._link.socket.send(encode(list(messages)))

    def close(self) -> None:
        self._link.close()


async def _until(condition: "object") -> None:
    assert callable(condition)
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - ZeroMQ's state has no event to wait on
            await asyncio.sleep(0.001)


async def _answer(reply: Reply[Answer]) -> Answer:
    done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def wait() -> Answer:
        return await reply

    drive(wait(), lambda value, error: done.set_result(value) if value else None)
    return await asyncio.wait_for(done, DEADLINE_S)


@asynccontextmanager
async def _bus(
    folder: Path, advanced: list[tuple[int, tuple[int, ...]]]
) -> "AsyncIterator[tuple[Fanout, zmq.Context[zmq.Socket[bytes]], str]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = ipc_address(folder, "router-0")
    fanout = Fanout(
        loop=asyncio.get_running_loop(),
        context=context,
        address=address,
        worker_count=2,
        arena_path="the arena",
        incarnation=1,
        on_advanced=lambda store, numbers: advanced.append((store, numbers)),
    )
    yield fanout, context, address
    fanout.close()
    context.term()


def _append(fanout: Fanout, store: int, payload: bytes) -> Reply[Answer]:
    return fanout.append_bytes(store=store, number=5, batches=payload)


def test_requests_of_one_turn_leave_in_one_message_to_the_store_s_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (fanout, context, address):
            peers = [_Peer(context, address, index) for index in (0, 1)]
            greeting = await peers[0].greet(1)
            assert greeting.arena_path == "the arena"
            await peers[1].greet(1)
            replies = [_append(fanout, store, b"%d" % store) for store in (0, 1, 2)]
            even = await peers[0].receive()
            odd = await peers[1].receive()
            assert [m.batches for m in even if isinstance(m, AppendBytes)] == [b"0", b"2"]
            assert [m.batches for m in odd if isinstance(m, AppendBytes)] == [b"1"]
            first, second = (m.request_id for m in even if isinstance(m, AppendBytes))
            peers[0].send(Appended(second, 0, 20), Appended(first, 0, 10))
            answers = [await _answer(replies[0]), await _answer(replies[2])]
            assert [a.base_offset for a in answers if isinstance(a, Appended)] == [10, 20]
            for peer in peers:
                peer.close()

    asyncio.run(main())


def test_requests_wait_for_a_worker_that_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (fanout, context, address):
            reply = _append(fanout, 0, b"early")
            assert fanout.reachable_count == 0
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            assert message.batches == b"early"
            peer.send(Appended(message.request_id, 0, 0))
            assert isinstance(await _answer(reply), Appended)
            peer.close()

    asyncio.run(main())


def test_what_a_dead_worker_had_been_sent_is_answered_retriably_and_the_rest_goes_to_its_successor(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (fanout, context, address):
            first = _Peer(context, address, 0)
            await first.greet(1)
            sent = _append(fanout, 0, b"sent")
            await first.receive()
            first.close()

            async def is_lost() -> bool:
                # Only a send can find out that the peer is gone.
                return fanout.reachable_count == 0

            unsent: Reply[Answer] | None = None
            async with asyncio.timeout(DEADLINE_S):
                while not await is_lost():
                    unsent = _append(fanout, 0, b"unsent")
                    await asyncio.sleep(0.001)
            second = _Peer(context, address, 0)
            await second.greet(2)
            lost = await _answer(sent)
            assert isinstance(lost, Failed)
            assert lost.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            (message,) = await second.receive()
            assert isinstance(message, AppendBytes)
            second.send(Appended(message.request_id, 0, 3))
            assert unsent is not None
            assert isinstance(await _answer(unsent), Appended)
            second.close()

    asyncio.run(main())


def test_reconnection_of_the_same_worker_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bus(tmp_path, []) as (fanout, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            reply = _append(fanout, 0, b"x")
            (message,) = await peer.receive()
            assert isinstance(message, AppendBytes)
            peer.send(WorkerGreeting(0, 1), Appended(message.request_id, 0, 8))
            answer = await _answer(reply)
            assert isinstance(answer, Appended)
            assert answer.base_offset == 8
            peer.close()

    asyncio.run(main())


def test_watched_partitions_are_announced(tmp_path: Path) -> None:
    async def main() -> None:
        advanced: list[tuple[int, tuple[int, ...]]] = []
        async with _bus(tmp_path, advanced) as (_, context, address):
            peer = _Peer(context, address, 0)
            await peer.greet(1)
            peer.send(Advanced(2, (7, 9)))
            await _until(lambda: advanced == [(2, (7, 9))])
            peer.close()

    asyncio.run(main())
