"""Connections that a worker serves: requests in, responses out, and how each is handed back.

The test plays the router, the client and the turns.
"""

import itertools
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from odradek.node.bus.connection_handover import (
    READ_BYTES,
    DirectRoute,
    Forget,
    HandedBack,
    HandOver,
    HandoverChannel,
    Message,
    Recall,
    Served,
    handover_path,
)
from odradek.node.bus.messages import (
    Append,
    AppendBytes,
    Appended,
    AppendReply,
    RequestFailed,
)
from odradek.node.worker.handed_connections import (
    INFLIGHT_MAX,
    REQUEST_BYTES_PER_TURN,
    REQUESTS_PER_TURN,
    HandedConnections,
)
from odradek.node.worker.handed_fetches import HandedFetches
from odradek.node.worker.large_requests import LARGE_BYTES_MAX
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL
from odradek.storage.reader import StoreReader
from tests.support.stores import batch_of
from tests.support.waiting import is_readable, wait_until

ID = 77
KEY_AND_VERSION = 9
PREFIX, OTHER_PREFIX = b"client, topic, partition 0", b"client, topic, partition 1"
TRANSACTIONAL_PREFIX = b"client, topic, transaction"
ROUTES = (
    DirectRoute(PREFIX, 0, 4, -1, 5_000, 9, b"head", b"tail", True),
    DirectRoute(OTHER_PREFIX, 2, 5, 1, 6_000, 9, b"HEAD", b"TAIL", False),
    DirectRoute(TRANSACTIONAL_PREFIX, 0, 6, -1, 5_000, 9, b"head", b"tail", True, True),
)
BATCH = batch_of(1)
TRANSACTIONAL_BATCH = batch_of(
    1, producer_id=12, producer_epoch=3, base_sequence=0, attributes=TRANSACTIONAL
)
_int32 = Struct(">i").pack


def frame(
    correlation_id: int, prefix: bytes = PREFIX, batch: bytes = BATCH, *, key: int = KEY_AND_VERSION
) -> bytes:
    """A request with its length."""
    size = len(batch) + 1
    varint = b""
    while size >= 128:
        varint, size = varint + bytes([size & 127 | 128]), size >> 7
    varint += bytes([size])
    body = b"".join((_int32(key), _int32(correlation_id), prefix, varint, batch, b"\0\0\0"))
    return _int32(len(body)) + body


def response(correlation_id: int, base_offset: int) -> bytes:
    """Of a request with PREFIX, with its length."""
    body = Struct(">i4sqqq4s").pack(correlation_id, b"head", base_offset, -1, 3, b"tail")
    return _int32(len(body)) + body


SIZE = len(response(0, 0))


class Scene:
    """A worker's connections with one router and one client, whose connection is handed over."""

    def __init__(self, folder: Path, outer: select.epoll | None) -> None:
        """With `outer` the worker waits there, among others that it does not know."""
        self.outer = outer
        self._stranger = socket.socketpair()
        if outer is not None:
            self._stranger[0].send(b"x")
            outer.register(self._stranger[1], select.EPOLLIN)
        self.used_s = 0.0
        """Processor time of the worker."""
        self.transactions: set[tuple[int, int, int, int]] = set()
        """Those under way: store, partition, producer id and epoch."""
        fetches = HandedFetches[Any](lambda store: StoreReader(folder / str(store)), set(), [])
        self.handed = HandedConnections(
            handover_path(folder, 0),
            lambda *transaction: transaction in self.transactions,
            fetches,
            outer,
            lambda: self.used_s,
        )
        channel = HandoverChannel.connect(handover_path(folder, 0))
        assert channel is not None
        self.router = channel
        self.client, self._server = socket.socketpair()
        self.client.settimeout(10)
        self.requests: list[tuple[RouterState, Append | AppendBytes]] = []

    def hand_over(self, received: bytes = b"", identifier: int = ID) -> None:
        message = HandOver(identifier, KEY_AND_VERSION, ROUTES, received)
        assert self.router.try_send(message, self._server.fileno())
        wait_until(
            lambda: self.receives() and self.handed.count,
            what="it is handed over",
        )

    def receive(self) -> None:
        """As the worker's loop does."""
        if self.outer is None:
            found = self.handed.receive()
        else:
            events = self.outer.poll(0)
            owned = [each for each, _ in events if self.handed.owns(each)]
            assert len(owned) == len(events) - 1, "all but the stranger's"
            found = self.handed.receive(events) if owned else []
        self.requests += [_append(each) for each in found]

    def receives(self) -> bool:
        """For conditions."""
        self.receive()
        return True

    def expect(self, count: int) -> list[AppendBytes]:
        """Wait until there are so many appends that are not answered, of requests that are not
        large."""
        wait_until(lambda: self.receives() and len(self.requests) >= count, what="requests")
        assert len(self.requests) == count
        return [request for _, request in self.requests if isinstance(request, AppendBytes)]

    def answer(self, *replies: AppendReply | None) -> None:
        """Reply to as many of the first requests; None: to that one later."""
        left = []
        for state, request in self.requests[len(replies) :]:
            left.append((state, request))
        for (state, request), reply in zip(self.requests, replies, strict=False):
            if reply is None:
                left.append((state, request))
                continue
            if isinstance(reply, Appended):
                reply = Appended(request.request_id, reply.error_code, reply.base_offset, -1, 3)
            else:
                reply = RequestFailed(request.request_id, reply.error_code)
            state.replies.append(reply)
        self.requests = left
        self.handed.send_replies()

    def read(self, count: int) -> bytes:
        """What the client receives."""
        received = b""
        while len(received) < count:
            received += self.client.recv(count - len(received))
        return received

    def received_bytes(self) -> int:
        """What the worker has read of the connection since it was handed over."""
        return self.handed._by_id[next(iter(self.handed._by_id))].received_bytes

    def messages(self) -> list[Message]:
        """What the router receives."""
        messages = []
        while (received := self.router.receive()) is not None:
            messages.append(received[0])
        return messages

    def handed_back(self) -> HandedBack:
        """Wait until it is; it comes with what was served."""

        def arrived() -> list[Message]:
            self.receive()
            return self.messages()

        served, back = wait_until(arrived, what="it is handed back")
        assert isinstance(served, Served)
        assert isinstance(back, HandedBack)
        assert back.connection == served.connection == ID
        assert self.handed.count == 0
        return back

    def close(self) -> None:
        self.handed.close()
        self.router.close()
        for each in (self.client, self._server, *self._stranger):
            each.close()


def _append(each: tuple[RouterState, Request]) -> tuple[RouterState, Append | AppendBytes]:
    state, request = each
    assert isinstance(request, Append | AppendBytes)
    return state, request


@pytest.fixture(params=["looks", "is woken"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with select.epoll() as outer:
        scene = Scene(tmp_path, outer if request.param == "is woken" else None)
        yield scene
        scene.close()


def ok(base_offset: int) -> Appended:
    return Appended(0, ErrorCode.NONE, base_offset)


REFUSAL = Appended(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_request_is_an_append_and_its_reply_a_response(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(5))
    (request,) = scene.expect(1)
    assert (request.store, request.number, request.acks, request.timeout_ms) == (0, 4, -1, 5_000)
    assert (request.version, request.is_client, request.leader_epoch) == (9, True, -1)
    assert request.batches == BATCH
    scene.answer(ok(40))
    assert scene.read(SIZE) == response(5, 40)


def test_a_route_without_a_log_start_has_shorter_responses(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(5, OTHER_PREFIX))
    (request,) = scene.expect(1)
    assert (request.store, request.number, request.acks) == (2, 5, 1)
    scene.answer(ok(40))
    body = Struct(">i4sqq4s").pack(5, b"HEAD", 40, -1, b"TAIL")
    assert scene.read(len(body) + 4) == _int32(len(body)) + body


def test_a_batch_of_a_transaction_that_is_under_way_is_an_append(scene: Scene) -> None:
    scene.transactions.add((0, 6, 12, 3))
    scene.hand_over()
    scene.client.send(frame(5, TRANSACTIONAL_PREFIX, TRANSACTIONAL_BATCH) + frame(6))
    continued, other = scene.expect(2)
    assert (continued.number, continued.must_continue_transaction) == (6, True)
    assert (other.number, other.must_continue_transaction) == (4, False)
    scene.answer(ok(40), ok(50))
    assert scene.read(2 * SIZE) == response(5, 40) + response(6, 50)


@pytest.mark.parametrize(
    ("under_way", "prefix", "batch"),
    [
        ((0, 6, 12, 2), TRANSACTIONAL_PREFIX, TRANSACTIONAL_BATCH),
        ((0, 4, 12, 3), TRANSACTIONAL_PREFIX, TRANSACTIONAL_BATCH),
        ((0, 6, 12, 3), TRANSACTIONAL_PREFIX, BATCH),
        ((0, 4, 12, 3), PREFIX, TRANSACTIONAL_BATCH),
    ],
    ids=["epoch", "partition", "not of it", "no id"],
)
def test_any_other_batch_of_a_transaction_goes_back(
    scene: Scene, under_way: tuple[int, int, int, int], prefix: bytes, batch: bytes
) -> None:
    scene.transactions.add(under_way)
    scene.hand_over()
    first = frame(5, prefix, batch)
    scene.client.send(first)
    assert scene.handed_back() == HandedBack(ID, first)


def test_requests_may_come_in_pieces(scene: Scene) -> None:
    scene.hand_over(frame(1)[:9])
    data = frame(1)[9:] + frame(2) + frame(3)
    for at in range(0, len(data), 50):
        scene.client.send(data[at : at + 50])
        wait_until(lambda: is_readable(scene.handed.fileno()), what="a piece")
        scene.receive()
    scene.expect(3)
    scene.answer(ok(1), ok(2), ok(3))
    assert scene.read(3 * SIZE) == response(1, 1) + response(2, 2) + response(3, 3)


def test_what_is_received_later_does_not_change_an_append(scene: Scene) -> None:
    """All connections are read into the same memory, and batches of these sizes are not copied."""
    batches = [batch_of(1, size=size, fill=size % 251) for size in (30_000, 8_300, 9_000, 40_000)]
    data = b"".join(frame(index, batch=batch) for index, batch in enumerate(batches))
    scene.hand_over(data[:20_000])
    for at in range(20_000, len(data), 17_000):
        scene.client.sendall(data[at : at + 17_000])
        wait_until(lambda: is_readable(scene.handed.fileno()), what="a piece")
        scene.receive()
    assert [bytes(append.batches) for append in scene.expect(len(batches))] == batches


def test_what_the_router_had_received_comes_first(scene: Scene) -> None:
    scene.hand_over(frame(1) + frame(2))
    scene.client.send(frame(3))
    scene.expect(3)
    scene.answer(ok(1), ok(2), ok(3))
    assert scene.read(3 * SIZE) == response(1, 1) + response(2, 2) + response(3, 3)


def test_responses_leave_in_the_order_of_requests(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(1) + frame(2) + frame(3))
    scene.expect(3)
    scene.answer(None, ok(2), ok(3))
    scene.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        scene.client.recv(1)
    scene.client.settimeout(10)
    scene.answer(ok(1))
    assert scene.read(3 * SIZE) == response(1, 1) + response(2, 2) + response(3, 3)


@pytest.mark.parametrize(
    "other",
    [
        frame(9, b"client, topic, partition 2"),
        frame(9, key=3),
        frame(9, batch=BATCH[:40]),
        frame(9, batch=batch_of(1, size=LARGE_BYTES_MAX))[:1_000],
        _int32(-1) + bytes(20),
        _int32(2**30) + bytes(20),
    ],
    ids=["partition", "version", "batch", "size", "negative", "huge"],
)
def test_other_requests_go_back_with_the_connection(scene: Scene, other: bytes) -> None:
    scene.hand_over()
    scene.client.send(frame(1) + other + frame(2))
    scene.expect(1)
    assert scene.messages() == []
    scene.answer(ok(1))
    assert scene.handed_back() == HandedBack(ID, other + frame(2))
    assert scene.read(SIZE) == response(1, 1)
    scene.client.send(b"for the router")
    assert scene._server.recv(100) == b"for the router"


def test_a_connection_that_the_client_closes_goes_back(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(1)[:30])
    scene.client.shutdown(socket.SHUT_WR)
    assert scene.handed_back() == HandedBack(ID, frame(1)[:30])
    assert scene._server.recv(1) == b""


@pytest.mark.parametrize("refusal", [REFUSAL, RequestFailed(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_what_was_refused_is_answered_by_the_router(scene: Scene, refusal: AppendReply) -> None:
    scene.hand_over()
    scene.client.send(b"".join(frame(number) for number in range(1, 6)) + frame(6)[:20])
    scene.expect(5)
    scene.answer(ok(1), None, refusal, ok(4), None)
    assert scene.read(SIZE) == response(1, 1)
    assert scene.messages() == []
    scene.answer(ok(2), ok(5))
    assert scene.read(SIZE) == response(2, 2)
    back = scene.handed_back()
    assert (back.received, back.unsent) == (frame(6)[:20], b"")
    assert [(correlation, route) for correlation, route, _ in back.answers] == [
        (3, 0),
        (4, 0),
        (5, 0),
    ]
    codes = [reply.error_code for _, _, reply in back.answers]
    assert codes == [refusal.error_code, 0, 0]


def test_a_client_that_does_not_read_is_left_to_the_router(scene: Scene) -> None:
    scene._server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    scene.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    scene.hand_over()
    sent = answered = 0
    while scene.handed.count:
        scene.client.send(frame(sent + 1))
        sent += 1
        scene.expect(1)
        scene.answer(ok(sent))
        answered += 1
        assert sent < 10_000
    back = scene.handed_back()
    expected = b"".join(response(number, number) for number in range(1, answered + 1))
    received = scene.read(len(expected) - len(back.unsent))
    assert back.unsent
    assert received + back.unsent == expected


def test_a_recalled_connection_is_answered_first(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(1) + frame(2)[:10])
    scene.expect(1)
    scene.router.send(Recall(ID))
    scene.router.send(Recall(ID))
    scene.router.send(Recall(ID + 1))
    wait_until(lambda: is_readable(scene.handed.fileno()), what="the recall")
    scene.receive()
    assert scene.messages() == []
    scene.client.send(frame(2)[10:])
    scene.receive()
    scene.answer(ok(1))
    assert scene.handed_back() == HandedBack(ID, frame(2)[:10])
    assert scene.read(SIZE) == response(1, 1)


def test_an_idle_connection_goes_back(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(16))
    scene.expect(1)
    scene.answer(ok(1))
    scene.handed.tick(10.0)
    (served,) = scene.messages()
    assert isinstance(served, Served)
    assert (served.requests, served.received_bytes, served.sent_bytes) == (1, len(frame(16)), SIZE)
    ((received_ns, done_ns, sent_ns),) = served.timings
    assert received_ns <= done_ns <= sent_ns
    scene.handed.tick(10.5)
    assert scene.messages() == []
    scene.handed.tick(11.1)
    assert scene.handed_back() == HandedBack(ID)


def test_a_connection_that_waits_for_replies_is_not_idle(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(1))
    scene.expect(1)
    for now_s in (10.0, 12.0, 14.0, 16.0):
        scene.handed.tick(now_s)
    assert scene.handed.count == 1
    scene.answer(ok(1))
    scene.handed.tick(18.0)
    scene.handed.tick(20.0)
    assert scene.handed.count == 0


def test_a_forgotten_connection_is_closed(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(frame(1))
    scene.expect(1)
    scene._server.close()
    scene.router.send(Forget(ID))
    wait_until(lambda: is_readable(scene.handed.fileno()), what="the message")
    scene.receive()
    assert scene.client.recv(1) == b""
    scene.answer(ok(1))
    assert scene.messages() == []
    assert scene.handed.count == 0


def test_connections_of_a_router_that_is_gone_are_closed(scene: Scene) -> None:
    scene.hand_over()
    scene._server.close()
    scene.router.close()
    wait_until(lambda: scene.receives() and not scene.handed.count, what="it is closed")
    assert scene.client.recv(1) == b""


def test_a_connection_with_many_requests_is_not_read(scene: Scene) -> None:
    scene.hand_over()
    scene.client.send(b"".join(frame(number) for number in range(INFLIGHT_MAX)))
    scene.expect(INFLIGHT_MAX)
    scene.client.send(frame(INFLIGHT_MAX))
    assert not is_readable(scene.handed.fileno(), 0.05)
    scene.answer(*(ok(number) for number in range(INFLIGHT_MAX // 2)))
    scene.expect(INFLIGHT_MAX // 2 + 1)


def test_a_turn_has_a_bounded_number_of_requests(scene: Scene) -> None:
    """However many connections have sent, none is forgotten."""
    pairs = [socket.socketpair() for _ in range(12)]
    each = 200
    for identifier, (client, server) in enumerate(pairs):
        message = HandOver(identifier, KEY_AND_VERSION, ROUTES, b"")
        assert scene.router.try_send(message, server.fileno())
        client.send(b"".join(frame(number) for number in range(each)))
    wait_until(lambda: scene.receives() and scene.handed.count == len(pairs), what="all are there")
    sizes = [len(scene.requests)]
    while len(scene.requests) < len(pairs) * each:
        scene.receive()
        sizes.append(len(scene.requests))
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(steps) < REQUESTS_PER_TURN + each
    scene.answer(*(ok(0) for _ in scene.requests))
    for client, server in pairs:
        assert client.recv(SIZE) == response(0, 0)
        client.close()
        server.close()


def test_a_turn_has_a_bounded_number_of_bytes_and_who_had_to_wait_comes_first(
    scene: Scene,
) -> None:
    pairs = [socket.socketpair() for _ in range(20)]
    large = frame(0, batch=batch_of(1, size=READ_BYTES - 1_000))
    for identifier, (_, server) in enumerate(pairs):
        message = HandOver(identifier, KEY_AND_VERSION, ROUTES, b"")
        assert scene.router.try_send(message, server.fileno())
    wait_until(lambda: scene.receives() and scene.handed.count == len(pairs), what="all are there")
    for client, _ in pairs:
        client.send(large)
    scene.receive()
    served = len(scene.requests)
    assert 1 < served * len(large) <= REQUEST_BYTES_PER_TURN + len(large)
    # Those that were served have more, and do not come before the others.
    for client, _ in pairs:
        client.setblocking(False)
        client.send(large)
    scene.receive()
    scene.answer(*(ok(0) for _ in scene.requests))
    for client, server in pairs:
        client.settimeout(1)
        assert client.recv(SIZE) == response(0, 0)
        client.close()
        server.close()


def test_a_stopping_worker_hands_back_all(scene: Scene) -> None:
    scene.hand_over()
    scene.handed.hand_back_all()
    assert scene.handed_back() == HandedBack(ID)
    message = HandOver(ID, KEY_AND_VERSION, ROUTES, b"unread")
    assert scene.router.try_send(message, scene._server.fileno())
    wait_until(lambda: is_readable(scene.handed.fileno()), what="the message")
    scene.receive()
    assert scene.messages() == [HandedBack(ID, b"unread")]
    assert scene.handed.count == 0


def test_a_connection_may_be_handed_over_again(scene: Scene) -> None:
    scene.hand_over()
    scene.router.send(Recall(ID))
    scene.handed_back()
    scene.router.send(Recall(ID))  # too late: about the time before
    scene.hand_over()
    scene.client.send(frame(1))
    scene.expect(1)
    scene.answer(ok(1))
    assert scene.read(SIZE) == response(1, 1)
