"""Stand-ins of kube-proxy and of a Gateway: threads that forward connections to pods.

A connection goes to one pod and stays there until one side closes it, as in Kubernetes: a pod that
is no longer ready gets no new ones. Where no pod may take it, it is closed.
"""

import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

Address = tuple[str, int]
CHUNK: Final = 1 << 16
PEEK_BYTES_MAX: Final = 16_384
CONNECT_S: Final = 5.0
_SERVER_NAME: Final = 0


class ServiceProxy:
    """Forwards every connection to one of the addresses that `targets` has for it. `targets` gets
    the server name of the client's TLS, or an empty text if `is_gateway` is not set."""

    def __init__(
        self,
        address: Address,
        targets: Callable[[str], Sequence[Address]],
        *,
        is_gateway: bool = False,
    ) -> None:
        self._targets = targets
        self._is_gateway = is_gateway
        self._server = socket.create_server(address, backlog=128)
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and all connections."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(CONNECT_S)
        for connection in list(self._connections):
            _close(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._connections.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            pod = self._connect(client)
        except OSError:
            pod = None
        if pod is not None:
            self._connections.add(pod)
            back = threading.Thread(target=_copy, args=(pod, client), daemon=True)
            back.start()
            _copy(client, pod)
            back.join()
            self._connections.discard(pod)
            pod.close()
        self._connections.discard(client)
        client.close()

    def _connect(self, client: socket.socket) -> socket.socket | None:
        name = server_name(_peek_client_hello(client)) if self._is_gateway else ""
        candidates = list(self._targets(name))
        if not candidates:
            return None
        pod = socket.create_connection(random.choice(candidates), CONNECT_S)
        pod.settimeout(None)
        return pod


def server_name(hello: bytes) -> str:
    """The host of a TLS client hello with its record header (RFC 6066); empty if it has none."""
    # Record header, handshake header, version and random; then session id, cipher suites,
    # compression methods, each behind its length.
    position = 5 + 4 + 2 + 32
    position += 1 + hello[position]
    position += 2 + int.from_bytes(hello[position : position + 2])
    position += 1 + hello[position]
    end = position + 2 + int.from_bytes(hello[position : position + 2])
    position += 2
    while position < end:
        kind = int.from_bytes(hello[position : position + 2])
        length = int.from_bytes(hello[position + 2 : position + 4])
        if kind == _SERVER_NAME:
            return hello[position + 9 : position + 4 + length].decode("ascii")
        position += 4 + length
    return ""


def _peek_client_hello(client: socket.socket) -> bytes:
    """The first TLS record, which stays in the socket. OSError if it does not come."""
    client.settimeout(CONNECT_S)
    wanted = 5
    while True:
        seen = client.recv(min(wanted, PEEK_BYTES_MAX), socket.MSG_PEEK | socket.MSG_WAITALL)
        if len(seen) < wanted:
            raise ConnectionError("the client has closed the connection")
        if wanted > 5 or len(seen) >= PEEK_BYTES_MAX:
            client.settimeout(None)
            return seen
        wanted = 5 + int.from_bytes(seen[3:5])


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(CHUNK):
            target.sendall(chunk)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
