"""The pauses between the attempts of a retry."""

from collections.abc import Iterator


def exponential_backoff(first_s: float, max_s: float) -> Iterator[float]:
    """Pauses in seconds, without end: `first_s`, then each twice the one before, up to `max_s`."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, max_s)
