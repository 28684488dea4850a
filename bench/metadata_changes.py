"""Metadata changes per second of a cluster: clients that change a topic's configuration.

Every change is committed by a majority of the nodes before the response. A client has one
IncrementalAlterConfigs request (version 0) in flight, to any node.
"""

import socket
import struct
import threading
import time
from collections.abc import Sequence

_API_KEY = 44
_TOPIC = 2
_SET = 0
_RETENTION_MS = 604_800_000
_TIMEOUT_S = 30.0


class MetadataChangeError(Exception):
    """A change was refused."""


def metadata_changes_per_second(
    ports: Sequence[int], topic: str, clients: int, seconds: float
) -> float:
    """Acknowledged changes per second, of all clients. Raises MetadataChangeError and OSError."""
    counts = [0] * clients
    failures: list[Exception] = []
    end = time.monotonic() + seconds

    def change(index: int) -> None:
        address = "127.0.0.1", ports[index % len(ports)]
        try:
            with socket.create_connection(address, _TIMEOUT_S) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while time.monotonic() < end:
                    value = _RETENTION_MS + index * 1_000_000 + counts[index]
                    connection.sendall(request(topic, str(value)))
                    size = int.from_bytes(_receive(connection, 4), "big")
                    code = error_code(_receive(connection, size))
                    if code:
                        raise MetadataChangeError(f"a change was answered with error {code}")
                    counts[index] += 1
        except (OSError, MetadataChangeError) as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(index,)) for index in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.monotonic() - began)


def request(topic: str, value: str) -> bytes:
    """The frame of a request that sets retention.ms of the topic."""
    body = struct.pack(">hhi", _API_KEY, 0, 1) + _text("bench")
    body += struct.pack(">ib", 1, _TOPIC) + _text(topic)
    body += struct.pack(">i", 1) + _text("retention.ms") + bytes([_SET]) + _text(value)
    body += b"\0"  # not only validated
    return struct.pack(">i", len(body)) + body


def error_code(answer: bytes) -> int:
    """The error code of the only resource: behind correlation id, throttle time and count."""
    code: int = struct.unpack_from(">h", answer, 12)[0]
    return code


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return received
