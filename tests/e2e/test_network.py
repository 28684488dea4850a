"""The network of the fault tests: cuts, delays and resets."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.network import CLIENTS, Gate, NodeNetwork, inodes_of, owners_of, pids_of
from tests.support.ports import free_port

ONE, OTHER = 1, 2
WAIT_S = 30.0


class Ends(NamedTuple):
    """A connection through a gate: both of its ends."""

    network: NodeNetwork
    near: socket.socket
    far: socket.socket
    port: int


@contextmanager
def connected() -> Iterator[Ends]:
    """ONE is connected to OTHER."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = Gate(port, listener.getsockname()[1], OTHER, source=ONE)
        with (
            NodeNetwork([gate], {}) as network,
            socket.create_connection(("127.0.0.1", port), WAIT_S) as near,
        ):
            listener.settimeout(WAIT_S)
            far, _ = listener.accept()
            with far:
                far.settimeout(WAIT_S)
                yield Ends(network, near, far, port)


def has_nothing(end: socket.socket) -> bool:
    """Nothing arrives: a byte in the other direction would be later than bytes that are on their
    way."""
    end.setblocking(False)
    try:
        end.recv(1)
    except BlockingIOError:
        return True
    finally:
        end.settimeout(WAIT_S)
    return False


def passes(source: socket.socket, destination: socket.socket, text: bytes) -> bool:
    source.sendall(text)
    return received(destination, len(text)) == text


def received(source: socket.socket, count: int) -> bytes:
    """So many bytes. MSG_WAITALL does not wait for them where the socket has a timeout."""
    found = b""
    while len(found) < count and (more := source.recv(count - len(found))):
        found += more
    return found


def test_both_directions_pass() -> None:
    with connected() as ends:
        assert passes(ends.near, ends.far, b"there")
        assert passes(ends.far, ends.near, b"and back")


def test_what_was_sent_into_a_cut_arrives_when_it_is_healed_and_the_other_way_is_open() -> None:
    with connected() as ends:
        ends.network.cut([ONE], [OTHER])
        ends.near.sendall(b"held")
        assert passes(ends.far, ends.near, b"the other way")
        assert has_nothing(ends.far)
        ends.network.heal()
        assert received(ends.far, 4) == b"held"


def test_an_end_does_not_pass_a_cut_either() -> None:
    with connected() as ends:
        ends.network.part([ONE], [OTHER])
        ends.near.close()
        assert has_nothing(ends.far)
        ends.network.heal()
        assert ends.far.recv(1) == b""


def test_others_are_not_cut() -> None:
    with connected() as ends:
        ends.network.part([3], [OTHER])
        ends.network.part([ONE], [OTHER], "another kind")
        assert passes(ends.near, ends.far, b"there")


def test_connections_are_reset_and_new_ones_too() -> None:
    with connected() as ends:
        ends.network.reset([ONE], [OTHER])
        for end in (ends.near, ends.far):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", ends.port), WAIT_S) as again,
        ):
            again.recv(1)


def test_what_is_delayed_arrives_later_and_in_order() -> None:
    with connected() as ends:
        ends.network.delay([ONE], [OTHER], 0.05)
        begin = time.monotonic()
        for letter in (b"a", b"b", b"c"):
            ends.near.sendall(letter)
        assert received(ends.far, 3) == b"abc"
        assert time.monotonic() - begin >= 0.05


def test_who_connects_is_found_out() -> None:
    """This process's command line has the mark of one party; the other party's mark is in none."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = Gate(port, listener.getsockname()[1], OTHER)
        mark = Path(f"/proc/{os.getpid()}/cmdline").read_text().replace("\0", " ").strip()
        with (
            NodeNetwork([gate], {ONE: mark}) as network,
            socket.create_connection(("127.0.0.1", port), WAIT_S) as near,
        ):
            listener.settimeout(WAIT_S)
            far, _ = listener.accept()
            with far:
                far.settimeout(WAIT_S)
                assert passes(near, far, b"there")
                network.cut([ONE], [OTHER])
                near.sendall(b"held")
                assert passes(far, near, b"the other way")
                assert has_nothing(far)


def test_a_connection_to_nobody_is_reset() -> None:
    gate = Gate(free_port(), free_port(), OTHER, source=CLIENTS)
    # It may be reset before `connect` returns.
    with (
        NodeNetwork([gate], {}),
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", gate.port), WAIT_S) as near,
    ):
        near.recv(1)


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_a_connection_is_its_process_s(address: str) -> None:
    """The party is that of the process whose command line, or whose parent's, has the mark."""
    connect = (
        "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1)"
    )
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:4]])"
    mark = f"mark-{os.getpid()}-of-a-test"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        port = listener.getsockname()[1]
        command = [sys.executable, "-c", start, connect, address, str(port), mark]
        with subprocess.Popen(command) as parent:
            connection, (_, source_port) = listener.accept()
            with connection:
                pids = pids_of({OTHER: mark})
                assert len(pids[OTHER]) == 2
                [inode] = inodes_of([(source_port, port)]).values()
                assert owners_of([inode], {ONE: [os.getpid()], **pids}) == {inode: OTHER}
                assert owners_of([inode], {ONE: [os.getpid()]}) == {}
            assert parent.wait(WAIT_S) == 0
            assert inodes_of([(source_port, port)]) == {}
        assert pids_of({OTHER: mark}) == {OTHER: []}
