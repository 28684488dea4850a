"""Deletions of records that wait until every live replica's log starts where they want it.

As Kafka's DeleteRecords: the leader has moved its own log start already, the followers take it over
with their next fetch, and a replica that is not alive is not waited for. What is answered is the
low watermark, the smallest start of all of them. One `DelayedDeletes` is one partition's; pure.
"""

from typing import Generic, NamedTuple, TypeVar

from odradek.protocol.errors import ErrorCode

T = TypeVar("T")


class CompletedDelete(NamedTuple, Generic[T]):
    """A deletion that may be answered, with this code and low watermark."""

    token: T
    code: ErrorCode
    low_watermark: int


class _DelayedDelete(NamedTuple, Generic[T]):
    token: T
    offset: int
    deadline_ms: int


class DelayedDeletes(Generic[T]):
    """See the module. `T` is whatever its owner knows a deletion by."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: list[_DelayedDelete[T]] = []

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._parked)

    def park(self, token: T, offset: int, deadline_ms: int) -> None:
        """It waits for a low watermark of `offset`; `reached` is to be asked next."""
        self._parked.append(_DelayedDelete(token, offset, deadline_ms))

    def reached(self, low_watermark: int) -> list[CompletedDelete[T]]:
        """The low watermark is there now."""
        done = [each for each in self._parked if each.offset <= low_watermark]
        self._parked = [each for each in self._parked if each.offset > low_watermark]
        return [CompletedDelete(each.token, ErrorCode.NONE, low_watermark) for each in done]

    def expired(self, now_ms: int, low_watermark: int) -> list[CompletedDelete[T]]:
        """Time has passed: REQUEST_TIMED_OUT for those whose deadline has come. The records are
        deleted all the same, as soon as whoever is slow comes around to it."""
        late = [each for each in self._parked if each.deadline_ms <= now_ms]
        self._parked = [each for each in self._parked if each.deadline_ms > now_ms]
        return [
            CompletedDelete(each.token, ErrorCode.REQUEST_TIMED_OUT, low_watermark) for each in late
        ]

    def resigned(self) -> list[CompletedDelete[T]]:
        """The lead is lost: NOT_LEADER_OR_FOLLOWER for all."""
        parked, self._parked = self._parked, []
        return [
            CompletedDelete(each.token, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) for each in parked
        ]
