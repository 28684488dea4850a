"""Liveness checks of the other processes of this node.

    state         event                                    next
    -----------------------------------------------------------------
    ALIVE         CHECK_MS have passed                     CHECKED
    CHECKED       it responds                              ALIVE
                  no response for the timeout              UNRESPONSIVE
    UNRESPONSIVE  it responds                              ALIVE

A process is unresponsive if it is frozen, waits for a disk, or crashes again and again. The node
then asks to be fenced, other nodes lead its partitions, and it returns by itself. Time in which the
controller process itself was paused does not count.
"""

from collections.abc import Iterable
from typing import Final

from odradek.node.structured_log import get_logger

log = get_logger(__name__)

CHECK_MS: Final = 500
TIMEOUT_SESSIONS: Final = 3
"""The timeout in sessions (broker.session.timeout.ms): a sync of a slow disk or a busy machine may
take a second, and moving all leaders has its cost."""
_PAUSE_MS: Final = 2 * CHECK_MS


class ProcessLiveness:
    """See the module's docstring. Times are milliseconds of a clock that does not go back. Without
    expected processes there are no checks."""

    def __init__(self, expected: Iterable[str], *, timeout_ms: int) -> None:
        self._sent_ms: dict[str, int | None] = dict.fromkeys(expected)
        self._timeout_ms = timeout_ms
        self._due_ms = 0
        self._checked_at_ms = 0
        self.unresponsive: frozenset[str] = frozenset()
        """The processes that do not respond."""

    def set_expected(self, names: Iterable[str]) -> None:
        """Check these processes from now on, each with the whole timeout: some may be starting."""
        self._sent_ms = dict.fromkeys(names)
        self.unresponsive &= self._sent_ms.keys()

    def on_response(self, name: str) -> None:
        """The process has responded or subscribed."""
        if name in self._sent_ms:
            self._sent_ms[name] = None
            if name in self.unresponsive:
                log.warning("a process of this node responds again", child=name)
                self.unresponsive -= {name}

    def check(self, now_ms: int) -> bool:
        """Detect unresponsive processes; True if a check is to be sent to all now."""
        if now_ms - self._checked_at_ms > _PAUSE_MS:
            for name, sent_ms in self._sent_ms.items():
                if sent_ms is not None:
                    self._sent_ms[name] = now_ms
        self._checked_at_ms = now_ms
        is_due = bool(self._sent_ms) and now_ms >= self._due_ms
        for name, sent_ms in self._sent_ms.items():
            if sent_ms is None:
                if is_due:
                    self._sent_ms[name] = now_ms
            elif now_ms - sent_ms >= self._timeout_ms and name not in self.unresponsive:
                log.warning(
                    "a process of this node does not respond: this node asks to be fenced, so"
                    " that other nodes lead its partitions",
                    child=name,
                    duration_ms=now_ms - sent_ms,
                )
                self.unresponsive |= {name}
        if is_due:
            self._due_ms = now_ms + CHECK_MS
        return is_due

    def next_deadline_ms(self) -> int | None:
        """When `check` has something to do."""
        return self._due_ms if self._sent_ms else None
