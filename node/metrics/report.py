"""The report of a process's metrics, in slices between its other work and in messages of a limited
size. Driven by SupervisorLink; one report at a time.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from odradek.node.metrics.registry import FamilyLines

SLICE_S: Final = 0.005
"""How long a slice takes at most, beside one step of a reading."""
MESSAGE_BYTES_MAX: Final = 48 * 1024
"""Of the texts in one message, whose encoding must fit into what a link carries."""


class SlicedReport:
    """`send(parts, is_last)` gets the parts of the report. To be run until it returns True."""

    def __init__(
        self,
        parts: Iterable[FamilyLines],
        send: Callable[[list[FamilyLines], bool], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._parts = _of_limited_size(parts)
        self._send = send
        self._clock = clock
        self._waiting: list[FamilyLines] = []
        self._waiting_bytes = 0

    def run(self) -> bool:
        """One slice. Returns whether it was the last one."""
        until = self._clock() + SLICE_S
        for part in self._parts:
            size = _size_of(part)
            if self._waiting and self._waiting_bytes + size > MESSAGE_BYTES_MAX:
                self._flush(is_last=False)
            self._waiting.append(part)
            self._waiting_bytes += size
            if self._clock() >= until:
                return False
        self._flush(is_last=True)
        return True

    def _flush(self, *, is_last: bool) -> None:
        parts, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        self._send(parts, is_last)


def _size_of(part: FamilyLines) -> int:
    # Texts of clients are rarely more than ASCII; then their size is known without encoding them.
    lines = part.lines
    return (
        len(part.name) + len(part.help) + (len(lines) if lines.isascii() else len(lines.encode()))
    )


def _of_limited_size(parts: Iterable[FamilyLines]) -> Iterator[FamilyLines]:
    """The parts, those that are too long divided. A line that is too long itself is left out."""
    for part in parts:
        if _size_of(part) <= MESSAGE_BYTES_MAX:
            yield part
            continue
        lines = part.lines.splitlines(keepends=True)
        if len(lines) > 1:
            half = len(lines) // 2
            for piece in (lines[:half], lines[half:]):
                divided = FamilyLines(part.name, part.kind, part.help, "".join(piece))
                yield from _of_limited_size((divided,))
