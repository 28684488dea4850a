"""DeleteRecords requests of one partition that wait for the low watermark. Pure.

As in Kafka, the leader has moved its own log start offset already, followers take it over with
their next fetch, and only live replicas count. The response is the low watermark, the smallest log
start offset of all of them.
"""

from typing import Generic, NamedTuple, TypeVar

from odradek.protocol.errors import ErrorCode

T = TypeVar("T")


class CompletedDelete(NamedTuple, Generic[T]):
    """A request to answer with this code and low watermark."""

    token: T
    code: ErrorCode
    low_watermark: int


class _DelayedDelete(NamedTuple, Generic[T]):
    token: T
    offset: int
    deadline_ms: int


class DelayedDeletes(Generic[T]):
    """See the module's docstring. `T` identifies a request to the owner."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: list[_DelayedDelete[T]] = []

    def __bool__(self) -> bool:
        """Whether a request waits."""
        return bool(self._parked)

    def park(self, token: T, offset: int, deadline_ms: int) -> None:
        """Wait for a low watermark of `offset`. Call `reached` next."""
        self._parked.append(_DelayedDelete(token, offset, deadline_ms))

    def reached(self, low_watermark: int) -> list[CompletedDelete[T]]:
        """The low watermark has moved."""
        done = [each for each in self._parked if each.offset <= low_watermark]
        self._parked = [each for each in self._parked if each.offset > low_watermark]
        return [CompletedDelete(each.token, ErrorCode.NONE, low_watermark) for each in done]

    def expired(self, now_ms: int, low_watermark: int) -> list[CompletedDelete[T]]:
        """REQUEST_TIMED_OUT for requests past their deadline. Slow replicas delete the records
        later all the same."""
        late = [each for each in self._parked if each.deadline_ms <= now_ms]
        self._parked = [each for each in self._parked if each.deadline_ms > now_ms]
        return [
            CompletedDelete(each.token, ErrorCode.REQUEST_TIMED_OUT, low_watermark) for each in late
        ]

    def resigned(self) -> list[CompletedDelete[T]]:
        """The lead is lost: NOT_LEADER_OR_FOLLOWER for all requests."""
        parked, self._parked = self._parked, []
        return [
            CompletedDelete(each.token, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) for each in parked
        ]
