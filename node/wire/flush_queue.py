"""Writing at the end of an iteration of the loop, once for each connection.

One invariant: a connection is in the queue at most once; it knows that itself. Called by
connection.py, and by who completes many requests at once.
"""

import asyncio
from typing import Protocol

from odradek.node.structured_log import get_logger

log = get_logger(__name__)


class Flushable(Protocol):
    """A connection with responses to write."""

    def flush(self) -> None: ...
    def abort(self) -> None: ...
    def log_fields(self) -> dict[str, object]: ...


class FlushQueue:
    """The connections that have completed responses and were not written to yet.

    They are written at the end of the iteration of the loop. A caller that completes many slots
    calls `expect_flush` before the first and `flush` after the last one, which saves an iteration.
    """

    __slots__ = ("_connections", "_is_flush_expected", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: list[Flushable] = []
        self._is_flush_expected = False

    def expect_flush(self) -> None:
        """The caller will call `flush` in this iteration of the loop, whatever happens."""
        self._is_flush_expected = True

    def add(self, connection: Flushable) -> None:
        """Flush the connection soon. It must not be in the queue already."""
        if not self._connections and not self._is_flush_expected:
            self._loop.call_soon(self.flush)
        self._connections.append(connection)

    def flush(self) -> None:
        """Write what is ready on all connections."""
        self._is_flush_expected = False
        while self._connections:
            connections, self._connections = self._connections, []
            for connection in connections:
                try:
                    connection.flush()
                except Exception:
                    # The responses of the other connections must still be sent.
                    log.exception(
                        "writing to a client failed; closing its connection",
                        **connection.log_fields(),
                    )
                    connection.abort()
