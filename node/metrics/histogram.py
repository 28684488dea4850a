"""A histogram of durations whose buckets double: one shift, one bit length, two additions a time.

Bucket `i` holds durations below 2^(FIRST_BIT + i) nanoseconds: from 65 us to 17 s, then the rest.
"""

from functools import cache
from typing import Final

FIRST_BIT: Final = 16
"""The first bucket ends at 2^16 ns = 65.5 us: shorter ones are below what a client notices."""
BUCKETS: Final = 19
"""The last bucket with an end ends at 2^34 ns = 17.2 s; then follows the one for all others."""
_SUM_AT: Final = 63
"""Where a row has the sum; before it there is an entry for each bit length of a duration."""


class DurationHistogram:
    """See the module's docstring."""

    __slots__ = ("_row",)

    def __init__(self) -> None:
        self._row = [0] * (_SUM_AT + 1)

    def observe(self, duration_ns: int) -> None:
        """Count a duration; one below zero (a clock of another process) is one of zero."""
        if duration_ns < 0:
            duration_ns = 0
        row = self._row
        row[(duration_ns >> FIRST_BIT).bit_length()] += 1
        row[_SUM_AT] += duration_ns

    @property
    def count(self) -> int:
        """Of all durations."""
        return sum(self._row[:_SUM_AT])

    @property
    def sum_s(self) -> float:
        """Of all durations, in seconds."""
        return self._row[_SUM_AT] / 1e9

    def cumulative(self) -> list[int]:
        """For each bucket, and at last for all: how many durations are not above its end."""
        total = 0
        found = []
        for count in self._row[:BUCKETS]:
            total += count
            found.append(total)
        found.append(total + sum(self._row[BUCKETS:_SUM_AT]))
        return found


@cache
def le_texts() -> tuple[str, ...]:
    """The ends of the buckets in seconds, as label values."""
    ends = (2 ** (FIRST_BIT + index) / 1e9 for index in range(BUCKETS))
    return (*(f"{end:.9g}" for end in ends), "+Inf")
