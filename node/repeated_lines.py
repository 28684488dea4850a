"""What keeps a log short although others cause its lines: the same complaint about the same peer is
said once a minute with a count, and no event of a logger has more than `FLOOD_LINES_MAX` lines in
`FLOOD_WINDOW_S`, of however many peers. What was held back is said as well, when its time is over:
the last of the lines, with a count. Memory is bounded.
"""

import copy
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

PEER_FIELDS: Final = ("client_address", "peer_address", "peer_node")
"""The fields that name a peer: a warning with one of them is a complaint about it."""
KIND_FIELDS: Final = ("kind", "reason", "error_code", "listener", "api")
"""The fields in which two complaints about a peer differ. Of `kind` and `reason`, the first that
there is: a reason may have numbers in it that differ each time."""
COMPLAINT_WINDOW_S: Final = 60.0
COMPLAINTS_MAX: Final = 1_000
"""Complaints that are remembered at a time; those beyond only have the limit of their event."""
FLOOD_WINDOW_S: Final = 10.0
FLOOD_LINES_MAX: Final = 20


class _HeldLines:
    """The lines of one key in a window: the time it began, and what was held back since."""

    __slots__ = ("count", "last", "passed", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.passed = 0
        self.count = 0
        self.last: logging.LogRecord | None = None

    def hold(self, record: logging.LogRecord) -> None:
        self.count += 1
        # Another handler may still have use for the record itself.
        self.last = copy.copy(record)
        # The first line had the traceback, which holds on to what it goes through.
        self.last.exc_info = self.last.exc_text = None


class RepeatedLineFilter(logging.Filter):
    """See the module's docstring. `emit` writes a line that has been held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.emit: Callable[[logging.LogRecord], None] = lambda _record: None
        self._clock = clock
        self._complaints: dict[Hashable, _HeldLines] = {}
        self._floods: dict[Hashable, _HeldLines] = {}
        # Threads log, too.
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written now."""
        now_s = self._clock()
        complaint, event = _complaint(record), (record.name, record.msg)
        with self._lock:
            due = self._due(now_s)
            passes = self._passes(complaint, event, record, now_s)
        self._say(due)
        return passes

    def say_due(self) -> None:
        """Write the lines whose time to be held back is over."""
        with self._lock:
            due = self._due(self._clock())
        self._say(due)

    def say_all(self) -> None:
        """Write all lines that are held back: the process ends."""
        with self._lock:
            due = self._due(float("inf"))
        self._say(due)

    def _passes(
        self, complaint: Hashable | None, event: Hashable, record: logging.LogRecord, now_s: float
    ) -> bool:
        if complaint is not None and complaint in self._complaints:
            self._complaints[complaint].hold(record)
            return False
        flood = self._floods.get(event)
        if flood is None:
            flood = self._floods[event] = _HeldLines(now_s)
        if flood.passed >= FLOOD_LINES_MAX:
            flood.hold(record)
            return False
        flood.passed += 1
        if complaint is not None and len(self._complaints) < COMPLAINTS_MAX:
            self._complaints[complaint] = _HeldLines(now_s)
        return True

    def _due(self, now_s: float) -> list[logging.LogRecord]:
        """The lines to write now. A complaint that did not come again is forgotten."""
        due = []
        # The windows of a kind have one length: the oldest come first.
        while self._complaints:
            key, held = next(iter(self._complaints.items()))
            if now_s - held.since_s < COMPLAINT_WINDOW_S:
                break
            del self._complaints[key]
            if held.last is not None:
                held.last.repeated = held.count
                due.append(held.last)
                if now_s < float("inf"):
                    self._complaints[key] = _HeldLines(now_s)
        while self._floods:
            key, held = next(iter(self._floods.items()))
            if now_s - held.since_s < FLOOD_WINDOW_S:
                break
            del self._floods[key]
            if held.last is not None:
                held.last.suppressed = held.count
                due.append(held.last)
        return due

    def _say(self, due: list[logging.LogRecord]) -> None:
        for record in due:
            record.created = time.time()
            record.msecs = record.created % 1 * 1000
            self.emit(record)


def _complaint(record: logging.LogRecord) -> Hashable | None:
    """What makes two complaints the same; None for a line that is none."""
    if record.levelno < logging.WARNING:
        return None
    fields = record.__dict__
    peer = [fields.get(name) for name in PEER_FIELDS]
    if not any(each is not None for each in peer):
        return None
    kinds = [fields.get(name) for name in KIND_FIELDS]
    if kinds[0] is not None:
        kinds[1] = None
    error = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
    return (record.name, record.levelno, str(record.msg), *map(str, (*peer, *kinds)), error)
