"""How much a client has used of a quota, and how long it has to wait: the arithmetic of Kafka.

A `SampledRate` is the rate over the last samples of some seconds (KIP-13); it is for quotas of
bytes, time and connections. A `TokenBucket` allows bursts (KIP-599); it is for controller
mutations. `BurstCredit` is not Kafka's: it smooths quotas of bytes. Times are in milliseconds of
any clock that does not go back, limits in units per second.
"""

from collections import deque

THROTTLE_MS_MAX = 2**31 - 1
"""The largest throttle_time_ms that a response can have."""


class SampledRate:
    """The sum of what was recorded in the last samples, over the time that they cover.

    `sample_count` samples of `sample_ms` each are kept, and one that overlaps the beginning of that
    window. The first samples of a client count as if the whole window but one sample had passed.
    """

    __slots__ = ("_samples", "sample_count", "sample_ms")

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        """Both may change between calls."""
        self.sample_count = sample_count
        self.sample_ms = sample_ms
        # Of each sample: when it began, when it was recorded to last, the sum.
        self._samples: deque[tuple[int, int, float]] = deque()

    def record(self, value: float, now_ms: int) -> None:
        """Add what was used; a negative value takes back what was recorded."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self.sample_ms:
            began_ms, _, total = samples[-1]
            samples[-1] = began_ms, now_ms, total + value
        else:
            samples.append((now_ms, now_ms, value))
            while len(samples) > self.sample_count + 1:
                samples.popleft()

    def rate(self, now_ms: int) -> float:
        """Units per second."""
        total, window_ms = self._measure(now_ms)
        return total * 1000 / window_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long nothing may be used, so that the rate gets back to the limit; 0 within it.

        The time by which the window must be longer: (rate - limit) / limit * window.
        """
        total, window_ms = self._measure(now_ms)
        rate = total * 1000 / window_ms
        if rate <= limit:
            return 0
        return min(round((rate - limit) / limit * window_ms), THROTTLE_MS_MAX)

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing was recorded within the window."""
        samples = self._samples
        return not samples or now_ms - samples[-1][1] >= self.sample_count * self.sample_ms

    def _measure(self, now_ms: int) -> tuple[float, int]:
        """The sum, and the time that it is of."""
        samples, sample_ms = self._samples, self.sample_ms
        expiry_ms = self.sample_count * sample_ms
        while samples and now_ms - samples[0][1] >= expiry_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0][0] if samples else 0
        missing = self.sample_count - 1 - elapsed_ms // sample_ms
        if missing > 0:
            elapsed_ms += missing * sample_ms
        return sum(total for _, _, total in samples), max(elapsed_ms, 1)


class BurstCredit:
    """Keeps a client that uses all of its limit from doing so in bursts.

    A sampled rate lets a client use the whole window at once, forgets that when the window has
    passed, and lets it do so again: over half a minute it may be a quarter above or below the limit
    (measured with Kafka, too). Here a burst uses up a credit, which comes back while the client
    uses less than its limit. Without credit it may be ahead of its limit by one sample.
    """

    __slots__ = ("_credit_ms", "_even_at_ms")

    def __init__(self) -> None:
        self._credit_ms: float | None = None
        self._even_at_ms = 0.0
        """When the client will have used as much as its limit allows."""

    def record(
        self, value: float, limit: float, now_ms: int, *, sample_ms: int, credit_ms_max: int
    ) -> None:
        """Add what was used. A new client has all of the credit."""
        ahead_ms = self._even_at_ms - now_ms
        credit_ms = credit_ms_max if self._credit_ms is None else self._credit_ms
        if ahead_ms < 0:
            credit_ms = min(credit_ms_max, credit_ms - ahead_ms)
            ahead_ms = 0
        grown_ms = ahead_ms + 1000 * value / limit
        used_ms = max(0.0, grown_ms - max(ahead_ms, sample_ms))
        self._credit_ms = max(0.0, credit_ms - used_ms)
        self._even_at_ms = now_ms + grown_ms

    def throttle_ms(self, now_ms: int, sample_ms: int) -> int:
        """How long a client without credit has to wait until it is ahead by one sample."""
        if self._credit_ms != 0:
            return 0
        return min(max(0, round(self._even_at_ms - now_ms - sample_ms)), THROTTLE_MS_MAX)


class TokenBucket:
    """Tokens that refill at the limit's rate, up to `burst_s` seconds of it. A new one is full.

    It may be overdrawn once: it is exhausted while it is below zero.
    """

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._updated_ms = 0

    def tokens(self, limit: float, burst_s: float, now_ms: int) -> float:
        """What is left; negative if more was taken than there was."""
        burst = limit * burst_s
        if self._tokens is None:
            self._tokens = burst
        else:
            refill = limit * max(0, now_ms - self._updated_ms) / 1000
            self._tokens = min(burst, self._tokens + refill)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, limit: float, burst_s: float, now_ms: int) -> None:
        """Use tokens, also if there are not as many."""
        self._tokens = self.tokens(limit, burst_s, now_ms) - count

    def throttle_ms(self, limit: float, burst_s: float, now_ms: int) -> int:
        """The time until it is no longer below zero."""
        missing = -self.tokens(limit, burst_s, now_ms)
        return min(round(missing / limit * 1000), THROTTLE_MS_MAX) if missing > 0 else 0
