"""Whether the other processes of this node do their work: asked again and again, and given time.

    state     event                                        next
    -----------------------------------------------------------------
    QUIET     it is time to ask                            ASKED
    ASKED     it answers                                   QUIET
              no answer for the time that it is given      SILENT
    SILENT    it answers                                   QUIET

A process that is frozen, waits for a disk that does not answer, or dies again and again is silent,
however often its supervisor starts it. The node then asks to be fenced: others lead what it led,
and it comes back by itself. Time in which the asking process was away itself counts for nobody.
"""

import logging
from collections.abc import Iterable
from typing import Final

log = logging.getLogger(__name__)

ASK_MS: Final = 500
PATIENCE_SESSIONS: Final = 3
"""Sessions (broker.session.timeout.ms) that a process is given: a sync of a slow disk or a busy
machine takes a second now and then, and moving all leaders is not for free."""
_AWAY_MS: Final = 2 * ASK_MS


class ProcessLiveness:
    """See the module's docstring. Times are of a clock that does not go back, in milliseconds.
    Where nobody is expected nobody is asked."""

    def __init__(self, expected: Iterable[str], *, patience_ms: int) -> None:
        self._asked_ms: dict[str, int | None] = dict.fromkeys(expected)
        self._patience_ms = patience_ms
        self._due_ms = 0
        self._looked_ms = 0
        self.unresponsive: frozenset[str] = frozenset()
        """Who has been asked and does not answer."""

    def expect(self, names: Iterable[str]) -> None:
        """From now on these are asked and nobody else. All are given the whole time: some of them
        may be starting just now, in the place of those that have been asked."""
        self._asked_ms = dict.fromkeys(names)
        self.unresponsive &= self._asked_ms.keys()

    def heard(self, name: str) -> None:
        """It has answered, or greeted."""
        if name in self._asked_ms:
            self._asked_ms[name] = None
            if name in self.unresponsive:
                log.warning("%s answers again", name)
                self.unresponsive -= {name}

    def look(self, now_ms: int) -> bool:
        """Notice who is silent; True if everybody is to be asked now."""
        if now_ms - self._looked_ms > _AWAY_MS:
            for name, asked_ms in self._asked_ms.items():
                if asked_ms is not None:
                    self._asked_ms[name] = now_ms
        self._looked_ms = now_ms
        is_due = bool(self._asked_ms) and now_ms >= self._due_ms
        for name, asked_ms in self._asked_ms.items():
            if asked_ms is None:
                if is_due:
                    self._asked_ms[name] = now_ms
            elif now_ms - asked_ms >= self._patience_ms and name not in self.unresponsive:
                log.warning(
                    "%s has not answered for %d ms: others shall lead what this node leads",
                    name,
                    now_ms - asked_ms,
                )
                self.unresponsive |= {name}
        if is_due:
            self._due_ms = now_ms + ASK_MS
        return is_due

    def next_deadline_ms(self) -> int | None:
        """When `look` has something to do."""
        return self._due_ms if self._asked_ms else None
