"""Adaptive spinning: whether to poll for a message for a moment before sleeping.

A wakeup costs both sides a few microseconds, and tens of microseconds of latency. Spinning takes
CPU from other processes: on a small machine, from the process that is waited for and from the
client. So a process spins only if it waits for a single message, and after a spin without result it
skips the next ones, twice as many each time. With fewer than PROCESSORS_MIN processors router and
worker do not spin for each other: a client on the same machine is served as fast without, for a
third less CPU (docs/adr/0005-processors.md). A worker that serves a client itself spins for it with
fewer (node/worker/turnaround_spin.py).
"""

from typing import Final

PROCESSORS_MIN: Final = 4
"""One for the router, one for a worker and one for a client leave one over then."""

SPIN_S = 0.0003
"""How long a spin lasts: a worker's turn with one small append, also on a slow machine. A spin that
ends too early costs most: its own time and the wakeup."""
_SKIPPED_MAX = 64


class AdaptiveSpin:
    """Remembers the results of spins. One for each waiting side, with the number of processors that
    it may use together with the other processes."""

    __slots__ = ("_skip", "_skips_left", "is_useful")

    def __init__(self, processors: int, processors_min: int = PROCESSORS_MIN) -> None:
        self.is_useful: Final = processors >= processors_min
        """Whether it spins at all."""
        self._skip = 0
        self._skips_left = 0

    def should_spin(self) -> bool:
        """Whether to spin this time. If so, call `spin_ended` with the result."""
        if not self.is_useful:
            return False
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def spin_ended(self, *, has_message: bool) -> None:
        """A spin has ended."""
        self._skip = 0 if has_message else min(_SKIPPED_MAX, 2 * self._skip + 1)
        self._skips_left = self._skip
