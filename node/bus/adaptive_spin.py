"""Whether it pays to look for a message for a moment before sleeping.

Being woken costs a few microseconds of both sides and some tens of latency, a look that finds
nothing costs a core that somebody else may need: on a small machine, the very process one waits
for. So only who waits for a single message looks, and who looked in vain leaves the next ones out,
twice as many each time.
"""

SPIN_S = 0.0003
"""How long a look lasts: what a worker needs for a turn of one small append, on a slow machine too.
Looks that end a moment too soon cost most: the time, and the waking."""
_SKIPPED_MAX = 64


class AdaptiveSpin:
    """Remembers how looks ended. One for each waiting side."""

    __slots__ = ("_skip", "_skips_left")

    def __init__(self) -> None:
        self._skip = 0
        self._skips_left = 0

    def should_spin(self) -> bool:
        """Whether to look this time. If so, tell `spin_ended` how it went."""
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def spin_ended(self, *, has_message: bool) -> None:
        """A look has ended."""
        self._skip = 0 if has_message else min(_SKIPPED_MAX, 2 * self._skip + 1)
        self._skips_left = self._skip
