"""Requests that do not fit into one read: their memory, and how they come to the turns."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from odradek.node.bus.connection_handover import (
    PIECE_BYTES_MAX,
    READ_BYTES,
    HandedBack,
    HandOver,
    Message,
    Recall,
    Unread,
)
from odradek.node.bus.messages import AppendBytes
from odradek.node.worker.handed_connections import (
    BUSY_SHARE_FOR_LARGE_MAX,
    LARGE_INFLIGHT_MAX,
    LARGE_WINDOW_S,
)
from odradek.node.worker.large_requests import (
    LARGE_BYTES_MAX,
    ROOM_BYTES_MAX,
    LargeRequests,
    room_bytes,
)
from odradek.storage.layout import STAMP_SIZE
from tests.node.worker.test_handed_connections import (
    ID,
    KEY_AND_VERSION,
    OTHER_PREFIX,
    ROUTES,
    SIZE,
    Scene,
    _int32,
    frame,
    ok,
    response,
    scene,
)
from tests.support.stores import batch_of
from tests.support.waiting import is_readable, wait_until

__all__ = ["scene"]

LARGE = 300_000


def batch(size: int) -> bytes:
    return batch_of(1, size=size)


@contextmanager
def sending(scene: Scene, data: bytes) -> Iterator[None]:
    """The client sends while the worker reads."""
    thread = threading.Thread(target=scene.client.sendall, args=(data,))
    thread.start()
    try:
        yield
    finally:
        thread.join(10)
    assert not thread.is_alive()


def messages_of(scene: Scene) -> list[Message]:
    """What comes to the router when something does."""
    found: list[Message] = []

    def arrived() -> bool:
        scene.receive()
        found.extend(scene.messages())
        return any(isinstance(message, HandedBack) for message in found)

    wait_until(arrived, what="it is handed back")
    return found


def read_batches(scene: Scene, count: int) -> list[bytes]:
    """The batches of so many appends, which are answered."""
    found: list[bytes] = []
    while len(found) < count:
        wait_until(lambda: scene.receives() and scene.requests, what="a request")
        for state, request in scene.requests:
            if isinstance(request, AppendBytes):
                found.append(request.batches)
            else:
                assert state.arena is not None
                assert request.has_headroom
                assert request.arena_offset >= STAMP_SIZE
                assert (request.leader_epoch, request.is_client) == (-1, True)
                at, end = request.arena_offset, request.arena_offset + request.length
                found.append(bytes(state.arena[at:end]))
        scene.answer(*(ok(0) for _ in scene.requests))
    return found


@pytest.mark.parametrize("size", [READ_BYTES - 500, READ_BYTES, LARGE, LARGE_BYTES_MAX - 500])
def test_a_large_request_is_an_append_of_its_batch(scene: Scene, size: int) -> None:
    scene.hand_over()
    sent = batch(size)
    with sending(scene, frame(5, OTHER_PREFIX, sent) * 3):
        assert read_batches(scene, 3) == [sent] * 3
    assert scene.handed.large.used_bytes == 0
    assert scene.handed.count == 1


def test_requests_of_all_sizes_come_in_their_order(scene: Scene) -> None:
    chance = random.Random(7)
    sizes = [10, 1_000, READ_BYTES - 200, READ_BYTES, LARGE, LARGE + 1, LARGE - 90_000, 1_000_000]
    scene.hand_over()
    for _ in range(20):
        sent = [batch(chance.choice(sizes)) for _ in range(8)]
        with sending(
            scene, b"".join(frame(number, batch=each) for number, each in enumerate(sent))
        ):
            assert read_batches(scene, len(sent)) == sent
        answers = b"".join(response(number, 0) for number in range(len(sent)))
        assert scene.read(len(sent) * SIZE) == answers
    assert scene.handed.large.used_bytes == 0


def test_what_was_appended_stays_until_it_is_answered(scene: Scene) -> None:
    scene.hand_over()
    sent = [batch_of(1, size=LARGE, fill=number) for number in range(LARGE_INFLIGHT_MAX + 3)]
    data = b"".join(frame(number, batch=each) for number, each in enumerate(sent))
    with sending(scene, data):
        wait_until(
            lambda: scene.receives() and len(scene.requests) == LARGE_INFLIGHT_MAX,
            what="as many as may be unanswered",
        )
        for _ in range(100):
            scene.receive()
        assert len(scene.requests) == LARGE_INFLIGHT_MAX
        assert scene.handed.large.used_bytes >= LARGE_INFLIGHT_MAX * LARGE
        assert read_batches(scene, len(sent)) == sent
    assert scene.handed.large.used_bytes == 0


@pytest.mark.parametrize("at", [READ_BYTES + 1, LARGE, 900_000])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_of_a_request_goes_back_with_the_connection(
    scene: Scene, at: int, is_first: bool
) -> None:
    scene.hand_over()
    whole = frame(1, batch=batch(1_000_000))
    if not is_first:
        with sending(scene, whole):
            read_batches(scene, 1)
    with sending(scene, whole[:at]):
        wait_until(
            lambda: scene.receives() and scene.received_bytes() % len(whole) == at,
            what="the part",
        )
    scene.router.send(Recall(ID))
    received = b""
    for message in messages_of(scene):
        if isinstance(message, Unread):
            assert len(message.piece) <= PIECE_BYTES_MAX
            received += message.piece
        elif isinstance(message, HandedBack):
            received += message.received
            assert not message.is_overloaded
    assert received == whole[:at]
    assert scene.handed.large.used_bytes == scene.handed.count == 0


@pytest.mark.parametrize(
    "other",
    [
        frame(9, b"client, topic, partition 2", batch(LARGE)),
        frame(9, batch=batch(LARGE), key=3),
        frame(9, batch=b"no batch" * 20_000),
        _int32(-1) + bytes(LARGE),
        _int32(2**30) + bytes(LARGE),
    ],
    ids=["partition", "version", "batch", "negative", "huge"],
)
def test_other_requests_behind_large_ones_go_back(scene: Scene, other: bytes) -> None:
    scene.hand_over()
    sent = batch(LARGE)
    received = b""
    with sending(scene, frame(1, batch=sent) + other):
        assert read_batches(scene, 1) == [sent]
        for message in messages_of(scene):
            if isinstance(message, Unread | HandedBack):
                received += message.piece if isinstance(message, Unread) else message.received
        assert other.startswith(received)
        while len(received) < len(other):
            wait_until(lambda: is_readable(scene._server.fileno()), what="the rest")
            received += scene._server.recv(1 << 20)
    assert received == other
    assert scene.handed.large.used_bytes == 0


def test_a_router_that_goes_leaves_nothing_behind(scene: Scene) -> None:
    scene.hand_over()
    whole = frame(1, batch=batch(LARGE))
    with sending(scene, whole + whole[:LARGE]):
        wait_until(
            lambda: scene.receives() and scene.received_bytes() == len(whole) + LARGE,
            what="one and a part of another",
        )
    assert len(scene.requests) == 1
    scene.router.close()
    wait_until(lambda: scene.receives() and not scene.handed.count, what="it is forgotten")
    assert scene.handed.large.used_bytes
    scene.answer(ok(0))
    assert scene.handed.large.used_bytes == 0


@pytest.mark.parametrize("is_large", [True, False])
def test_a_busy_worker_takes_no_producers_of_large_requests(scene: Scene, is_large: bool) -> None:
    scene.used_s = 0.0
    scene.handed.tick(1_000.0)
    scene.used_s = BUSY_SHARE_FOR_LARGE_MAX * LARGE_WINDOW_S + 0.01
    scene.handed.tick(1_000.0 + LARGE_WINDOW_S)
    message = HandOver(ID, KEY_AND_VERSION, ROUTES, b"received", is_large=is_large)
    assert scene.router.try_send(message, scene._server.fileno())
    if is_large:
        assert messages_of(scene) == [HandedBack(ID, b"received", is_overloaded=True)]
        assert not scene.handed.count
    else:
        wait_until(lambda: scene.receives() and scene.handed.count, what="it is handed over")


def test_without_memory_a_connection_goes_back(scene: Scene) -> None:
    begun = []
    while (request := scene.handed.large.begin(b"", LARGE)) is not None:
        begun.append(request)
    scene.hand_over()
    whole = frame(1, batch=batch(LARGE))
    with sending(scene, whole):
        back = messages_of(scene)[-1]
        assert isinstance(back, HandedBack)
        assert back.is_overloaded
        assert whole.startswith(back.received)
        rest = bytearray()
        while len(rest) < len(whole) - len(back.received):
            wait_until(lambda: is_readable(scene._server.fileno()), what="the rest")
            rest += scene._server.recv(1 << 20)
    assert back.received + rest == whole


def test_the_memory_is_bounded() -> None:
    requests = LargeRequests(ROOM_BYTES_MAX)
    begun = []
    while (request := requests.begin(b"bytes", LARGE)) is not None:
        begun.append(request)
    assert len(begun) << 20 == ROOM_BYTES_MAX
    assert requests.used_bytes
    grown = begun.pop()
    requests.view[grown.start : grown.start + 4] = _int32(LARGE_BYTES_MAX)
    assert requests.whole_size(grown, LARGE_BYTES_MAX) is None, "it would need two blocks"
    requests.release(begun.pop())
    requests.release(begun.pop())
    for request in begun[:6]:
        requests.release(request)
    requests.trim()
    requests.trim()
    assert requests.whole_size(grown, LARGE_BYTES_MAX) == 0
    assert requests.bytes_of(grown) == _int32(LARGE_BYTES_MAX) + b"s"
    assert len(requests.rest_of(grown)) == LARGE_BYTES_MAX + 4 - 5
    requests.close()


@pytest.mark.parametrize("length", [-1, LARGE_BYTES_MAX + 1])
def test_a_length_that_is_none_or_too_much_has_no_size(length: int) -> None:
    requests = LargeRequests(ROOM_BYTES_MAX)
    request = requests.begin(_int32(length), LARGE)
    assert request is not None
    assert requests.whole_size(request, LARGE_BYTES_MAX) is None
    requests.close()


def test_a_container_has_less_room() -> None:
    assert room_bytes(None, worker_count=4) == ROOM_BYTES_MAX
    assert room_bytes(16 << 30, worker_count=4) == ROOM_BYTES_MAX
    assert room_bytes(512 << 20, worker_count=1) == 32 << 20
    assert room_bytes(512 << 20, worker_count=4) == 8 << 20
    assert room_bytes(1 << 20, worker_count=1) == 1 << 20


def test_a_request_may_have_less_bytes() -> None:
    requests = LargeRequests(ROOM_BYTES_MAX)
    request = requests.begin(_int32(LARGE), LARGE + 4)
    assert request is not None
    assert requests.whole_size(request, LARGE) == 0
    assert requests.whole_size(request, LARGE - 1) is None
    requests.close()
