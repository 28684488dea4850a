"""A token bucket in bytes per second: the replication quotas of KIP-73.

Tokens accumulate up to those of `_BURST_MS`. A batch may overdraw them, since it cannot be split;
then nothing is available until they are positive again.
"""

_BURST_MS = 1_000


class TokenBudget:
    """The bytes that may be sent now. No limit without a rate."""

    __slots__ = ("_now_ms", "_tokens", "rate")

    def __init__(self, now_ms: int, rate: int | None = None) -> None:
        self.rate = rate
        """Bytes per second. May be changed at any time."""
        self._tokens = float(rate or 0) * _BURST_MS / 1_000
        self._now_ms = now_ms

    def available(self, now_ms: int) -> bool:
        if self.rate is None:
            return True
        self._refill(self.rate, now_ms)
        return self._tokens > 0

    def allowance(self, now_ms: int) -> int | None:
        """The bytes that may be sent without overdrawing; None without a limit."""
        if self.rate is None:
            return None
        self._refill(self.rate, now_ms)
        return max(0, int(self._tokens))

    def spend(self, byte_count: int, now_ms: int) -> None:
        """Bytes were sent."""
        if self.rate is not None:
            self._refill(self.rate, now_ms)
            self._tokens -= byte_count

    def next_ms(self, now_ms: int) -> int:
        """When anything may be sent again."""
        if self.available(now_ms) or not self.rate:
            return now_ms if self.rate is None or self.rate else now_ms + _BURST_MS
        return now_ms + int(-self._tokens * 1_000 / self.rate) + 1

    def _refill(self, rate: int, now_ms: int) -> None:
        elapsed_ms = max(0, now_ms - self._now_ms)
        self._now_ms = max(now_ms, self._now_ms)
        self._tokens = min(self._tokens + rate * elapsed_ms / 1_000, rate * _BURST_MS / 1_000)
