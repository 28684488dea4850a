"""Waiting for a condition with a deadline: the only way in which tests let time pass."""

import select
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

POLL_S = 0.005
LIVENESS_S = 30.0
"""Timeout on a busy machine for something that otherwise takes less than a second."""


class HasDescriptor(Protocol):
    """A file, a pipe, a thread that tells through one."""

    def fileno(self) -> int:
        """The descriptor."""


def is_readable(file: HasDescriptor | int, timeout_s: float = 0) -> bool:
    """Whether the descriptor is readable, now or within this time. Not select(), which takes no
    descriptors above 1,023."""
    events = select.poll()
    events.register(file, select.POLLIN)
    return bool(events.poll(timeout_s * 1000))


def wait_until(condition: Callable[[], T], *, timeout_s: float = LIVENESS_S, what: str = "") -> T:
    """The first truthy value of `condition`; AssertionError that names `what` after the deadline.

    An exception of the condition counts as "not yet" and is shown at the deadline. A condition ends
    the wait with pytest.fail.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        failure: Exception | None = None
        try:
            value = condition()
        except Exception as error:
            failure = error
        else:
            if value:
                return value
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__name__", "condition")
            raise AssertionError(f"not within {timeout_s} s: {name}") from failure
        time.sleep(POLL_S)
