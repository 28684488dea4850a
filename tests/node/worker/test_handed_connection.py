"""What a worker keeps of one connection, and the responses that it makes for a producer."""

import socket
from struct import Struct

import pytest

from odradek.node.bus.connection_handover import (
    DirectFetch,
    DirectRoute,
    FetchPosition,
    HandOver,
    HandoverChannel,
)
from odradek.node.bus.messages import Appended
from odradek.node.worker.handed_connection import HandedConnection, Route
from odradek.protocol.errors import ErrorCode

ROUTES = (
    DirectRoute(b"prefix", 0, 4, -1, 5_000, 9, b"head", b"tail", True),
    DirectRoute(b"PREFIX", 2, 5, 1, 6_000, 9, b"HEAD", b"TAIL", False, True),
)
PRODUCER = HandOver(7, 9, ROUTES, b"received")
FETCH = DirectFetch(
    store=0,
    number=4,
    is_read_committed=False,
    bytes_max=1 << 20,
    wait_ms=500,
    position=FetchPosition(-1, 12, -1, -1),
    request=b"request with offset..",
    wait_at=0,
    offset_at=13,
    head=b"head",
    middle=b"middle",
    tail=b"tail",
    is_flexible=True,
)
CONSUMER = HandOver(7, 9, (), b"", FETCH)


def test_a_response_has_what_was_appended_and_the_log_start_if_it_is_asked_for() -> None:
    reply = Appended(0, ErrorCode.NONE, 40, 1_700, 3)
    with_start, without = (Route(PRODUCER, index) for index in (0, 1))
    body = Struct(">i4sqqq4s").pack(5, b"head", 40, 1_700, 3, b"tail")
    assert with_start.response(5, reply) == Struct(">i").pack(len(body)) + body
    body = Struct(">i4sqq4s").pack(5, b"HEAD", 40, 1_700, b"TAIL")
    assert without.response(5, reply) == Struct(">i").pack(len(body)) + body
    assert (without.store, without.number, without.is_transactional) == (2, 5, True)


@pytest.mark.parametrize("message", [PRODUCER, CONSUMER])
def test_a_connection_is_a_producers_or_a_consumers(message: HandOver) -> None:
    ends = [*socket.socketpair(), *socket.socketpair()]
    handed = HandedConnection(HandoverChannel(ends[0]), message, ends[2])
    assert not ends[2].getblocking()
    assert set(handed.routes) == {route.prefix for route in message.routes}
    if message is CONSUMER:
        assert handed.fetch is not None
        assert handed.fetch.position == FETCH.position
    else:
        assert handed.fetch is None
        assert handed.received == b"received"
        assert handed.prefix_end == 8 + len(b"prefix")
    for end in ends:
        end.close()


@pytest.mark.parametrize("size", [100, 8 << 10, 64 << 10])
def test_a_large_batch_is_not_copied(size: int) -> None:
    received = bytes(range(256)) * 1_000
    append = Route(PRODUCER, 1).append_bytes(12, received, 7, size)
    assert (append.request_id, append.store, append.number) == (12, 2, 5)
    assert (append.acks, append.timeout_ms, append.version) == (1, 6_000, 9)
    assert append.is_client
    assert append.must_continue_transaction
    assert append.batches == received[7 : 7 + size]
    is_view = getattr(append.batches, "obj", None) is received
    assert is_view is (size >= 8 << 10)
