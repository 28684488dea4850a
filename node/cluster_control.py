"""Requests to a running `odradek cluster up`, by a Unix socket in its folder.

Nodes end with the process that started them, so only that process can start one again. Each
connection carries one request and one answer, each a JSON document up to the end of the stream.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec

SOCKET_NAME: Final = "control.socket"
REQUEST_TIMEOUT_S: Final = 5.0
"""For a client to send its request; those who wait are other requests and restarts."""
ANSWER_TIMEOUT_S: Final = 120.0
"""For a node to stop or start."""
_PIECE_BYTES: Final = 4096


class ControlError(Exception):
    """The request was refused, or nothing serves the folder."""


class NoClusterError(ControlError):
    """No `odradek cluster up` runs in the folder."""


class ControlRequest(msgspec.Struct, frozen=True):
    """What to do with a node: `stop`, `kill` (SIGKILL) or `start`."""

    action: str
    node_id: int


class ControlAnswer(msgspec.Struct, frozen=True):
    """The result: an error, or whether the node was changed and its process id if it runs."""

    error: str = ""
    is_changed: bool = True
    pid: int = 0


class ControlServer:
    """Listens in the folder of a cluster. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._path = folder / SOCKET_NAME
        self._path.unlink(missing_ok=True)  # of a process that was killed: the folder is locked
        self._socket = socket.socket(socket.AF_UNIX)
        with _short_path(folder) as path:
            self._socket.bind(path)
        self._path.chmod(0o600)
        self._socket.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def fileno(self) -> int:
        """For select: readable when a client has connected."""
        return self._socket.fileno()

    @contextmanager
    def exchange(self) -> Iterator[tuple[ControlRequest, socket.socket]]:
        """The next request, and the connection to `answer`. Raises OSError, and ControlError if it
        is no request."""
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            try:
                request = msgspec.json.decode(_receive(connection), type=ControlRequest)
            except msgspec.MsgspecError as error:
                raise ControlError(f"not a request: {error}") from error
            yield request, connection


def answer(connection: socket.socket, result: ControlAnswer) -> None:
    """Answer a request. Raises OSError if the client has gone."""
    connection.sendall(msgspec.json.encode(result))


def ask(folder: Path, request: ControlRequest) -> ControlAnswer:
    """The answer of the cluster that runs in the folder. Raises ControlError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, _short_path(folder) as path:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(msgspec.json.encode(request))
            connection.shutdown(socket.SHUT_WR)
            result = msgspec.json.decode(_receive(connection), type=ControlAnswer)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoClusterError(f"no cluster runs in {folder}") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ControlError(f"the cluster in {folder} does not answer: {error}") from error
    if result.error:
        raise ControlError(result.error)
    return result


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits into an address, which has 108 bytes only."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(_PIECE_BYTES), b""))
