"""The channel by which connections change hands: whole messages, descriptors, and its end."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.bus.connection_handover import (
    PIECE_BYTES_MAX,
    RECEIVED_BYTES_MAX,
    DirectRoute,
    Forget,
    HandedBack,
    HandOver,
    HandoverChannel,
    Message,
    Recall,
    Served,
    handover_path,
    listen,
)
from odradek.node.bus.messages import Appended, RequestFailed
from odradek.protocol.errors import ErrorCode
from tests.support.waiting import is_readable

ROUTE = DirectRoute(b"prefix", 3, 4, -1, 5_000, 9, b"head", b"tail", True)
REFUSED = RequestFailed(7, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Ends:
    """Both ends of a channel."""

    def __init__(self, folder: Path) -> None:
        path = handover_path(folder, 1)
        self.listening = listen(path)
        router = HandoverChannel.connect(path)
        assert router is not None
        self.router = router
        self.worker = HandoverChannel(self.listening.accept()[0])

    def close(self) -> None:
        for each in (self.listening, self.router, self.worker):
            each.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    ends.close()


@pytest.mark.parametrize(
    "message",
    [
        Recall(1),
        Forget(2**40),
        Served(1, 2, 3, 4, ((5, 6, 7),)),
        HandedBack(1),
        HandedBack(1, b"received", b"unsent", ((9, 0, REFUSED), (10, 1, Appended(8)))),
    ],
)
def test_messages_arrive_as_they_were(ends: Ends, message: Message) -> None:
    ends.router.send(message)
    ends.worker.send(message)
    assert ends.worker.receive() == (message, None)
    assert ends.router.receive() == (message, None)
    assert ends.router.receive() is None


def test_a_socket_comes_with_its_message(ends: Ends) -> None:
    client, server = socket.socketpair()
    message = HandOver(1, 9, (ROUTE,), bytes(RECEIVED_BYTES_MAX))
    with client, server:
        assert ends.router.try_send(message, server.fileno())
        received = ends.worker.receive()
        assert received is not None
        assert received[0] == message
        assert received[1] is not None
        assert not os.get_inheritable(received[1])
        with socket.socket(fileno=received[1]) as handed:
            client.send(b"request")
            assert handed.recv(100) == b"request"
            handed.send(b"response")
        server.close()
        assert client.recv(100) == b"response"
        assert client.recv(100) == b"", "nobody else has it"


def test_a_message_that_is_too_large_is_not_sent(ends: Ends) -> None:
    with socket.socket() as handed:
        large = HandOver(1, 9, (ROUTE,), bytes(1 << 20))
        assert not ends.router.try_send(large, handed.fileno())
        assert ends.worker.receive() is None
        assert ends.router.try_send(HandOver(1, 9, (ROUTE,), b""), handed.fileno())


def test_what_the_other_end_does_not_take_waits_in_order(ends: Ends) -> None:
    messages = [HandedBack(number, bytes(10_000)) for number in range(200)]
    for message in messages:
        ends.worker.send(message)
    assert not ends.worker.flush()
    with socket.socket() as handed:
        assert not ends.worker.try_send(HandOver(1, 9, (), b""), handed.fileno())
    received: list[Message] = []
    while len(received) < len(messages):
        arrived = ends.router.receive()
        if arrived is None:
            ends.worker.flush()
        else:
            received.append(arrived[0])
    assert received == messages
    assert ends.worker.flush()


def test_the_end_of_a_channel_is_told(ends: Ends) -> None:
    ends.worker.send(Served(1, 2, 3, 4))
    ends.worker.close()
    assert is_readable(ends.router.fileno(), 10)
    assert ends.router.receive() == (Served(1, 2, 3, 4), None)
    with pytest.raises(EOFError):
        ends.router.receive()
    ends.router.send(Recall(1))  # goes nowhere
    assert ends.router.flush()


def test_a_message_that_cannot_be_sent_ends_the_channel(ends: Ends) -> None:
    """Nobody waits for a connection whose message is lost."""
    ends.worker.send(HandedBack(1, bytes(16 << 20)))
    for each in (ends.router, ends.worker):
        with pytest.raises(EOFError):
            each.receive()


def test_the_largest_message_arrives(ends: Ends) -> None:
    received = max(RECEIVED_BYTES_MAX, PIECE_BYTES_MAX)
    message = HandedBack(1, bytes(received), bytes(128 * 1_200))
    ends.worker.send(message)
    assert ends.router.receive() == (message, None)


def test_there_is_no_channel_without_a_worker(tmp_path: Path) -> None:
    assert HandoverChannel.connect(handover_path(tmp_path, 1)) is None
    listen(handover_path(tmp_path, 1)).close()
    assert HandoverChannel.connect(handover_path(tmp_path, 1)) is None
    with listen(handover_path(tmp_path, 1)):
        channel = HandoverChannel.connect(handover_path(tmp_path, 1))
        assert channel is not None
        channel.close()
