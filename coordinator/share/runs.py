"""The records in flight of a share partition, as runs of adjacent records in the same state.

Kafka's SharePartition has InFlightBatch for this. A consumer without lag has a few runs, whatever
the number of records. A run is split where its records get different states, and joined with an
adjacent one in the same state. Invariant: the runs are sorted and cover `[start_offset,
end_offset)` without gaps; all ranges are half-open.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState

NOBODY: Final = ""
"""The member id of records that are not acquired."""
TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""Final states: the start offset may move past them."""


@dataclass(slots=True)
class Target:
    """The state of an acquired run when the pending write is durable."""

    state: RecordState
    deadline_ms: int = 0
    is_rejected: bool = False


@dataclass(slots=True)
class Run:
    """Records [start, end) in the same state.

    `deadline_ms` is when the lock of an acquired run expires, or when an available run may be
    delivered again. A run with a `target` does not change until its write is complete. `is_dirty`:
    it has a change that is to be written and that no request waits for.
    """

    start: int
    end: int
    state: RecordState = RecordState.AVAILABLE
    delivery_count: int = 0
    member_id: str = NOBODY
    deadline_ms: int = 0
    target: Target | None = None
    is_dirty: bool = False
    is_rejected: bool = False
    """Of an archiving run: a member rejected it. Others have reached the delivery count limit."""
    is_dead_letter_taken: bool = False
    """Of an archiving run: it is being written to the dead-letter topic."""

    def is_like(self, other: "Run") -> bool:
        """Whether the two can be one run."""
        if self.target is not None or other.target is not None or self.state is not other.state:
            return False
        if self.is_dirty is not other.is_dirty:
            return False
        if self.state in TERMINAL and not self.is_dirty:
            return True
        return (
            self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.deadline_ms == other.deadline_ms
            and self.is_rejected is other.is_rejected
            and self.is_dead_letter_taken is other.is_dead_letter_taken
        )


_start_of = attrgetter("start")


class Runs:
    """The runs in order. See the module's docstring for the invariant."""

    def __init__(self, start_offset: int) -> None:
        self._runs: list[Run] = []
        self.start_offset = start_offset
        self.end_offset = start_offset

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def append(self, run: Run) -> Run:
        """Append a run."""
        assert run.start == self.end_offset < run.end, "runs are adjacent and not empty"
        self._runs.append(run)
        self.end_offset = run.end
        return run

    def from_offset(self, offset: int) -> Iterator[Run]:
        """The run that contains `offset` and all that follow. Do not split or join runs during the
        iteration."""
        for at in range(self._at(offset), len(self._runs)):
            yield self._runs[at]

    def overlapping(self, start: int, end: int) -> list[Run]:
        """The runs that have records of [start, end)."""
        start, end = max(start, self.start_offset), min(end, self.end_offset)
        return [] if start >= end else self._runs[self._at(start) : self._at(end - 1) + 1]

    def split_out(self, start: int, end: int) -> list[Run]:
        """The runs of exactly [start, end), split at both ends if necessary. The range is clipped
        to `[start_offset, end_offset)`."""
        start, end = max(start, self.start_offset), min(end, self.end_offset)
        if start >= end:
            return []
        self._split_at(start)
        self._split_at(end)
        return self.overlapping(start, end)

    def join(self, start: int, end: int) -> None:
        """Join runs in the same state in [start, end) and at its two ends."""
        if not self._runs:
            return
        first = max(0, self._at(start) - 1)
        last = min(len(self._runs) - 1, self._at(end))
        joined: list[Run] = []
        for run in self._runs[first : last + 1]:
            if joined and joined[-1].is_like(run):
                joined[-1].end = run.end
            else:
                joined.append(run)
        if len(joined) <= last - first:
            self._runs[first : last + 1] = joined

    def drop_before(self, offset: int) -> list[Run]:
        """Remove and return all runs below `offset`, which may be beyond the end offset."""
        self._split_at(offset)
        if offset >= self.end_offset:
            gone, self._runs = self._runs, []
            self.end_offset = offset
        else:
            count = self._at(offset)
            gone = self._runs[:count]
            del self._runs[:count]
        self.start_offset = offset
        return gone

    def _at(self, offset: int) -> int:
        """The index of the run that contains `offset`, or of the nearest one."""
        return max(0, bisect_right(self._runs, offset, key=_start_of) - 1)

    def _split_at(self, offset: int) -> None:
        """Split the run that contains `offset`, so that one begins there."""
        if not self.start_offset < offset < self.end_offset:
            return
        at = self._at(offset)
        run = self._runs[at]
        if run.start == offset:
            return
        self._runs.insert(at + 1, replace(run, start=offset))
        run.end = offset


def is_acquired_by(run: Run, member_id: str, now_ms: int) -> bool:
    """Whether the member may acknowledge the run: its lock has not expired."""
    return (
        run.state is RecordState.ACQUIRED
        and run.member_id == member_id
        and run.target is None
        and run.deadline_ms > now_ms
    )


def is_available(run: Run, now_ms: int) -> bool:
    """Whether the run may be acquired now: not before its redelivery delay is over."""
    return run.state is RecordState.AVAILABLE and run.deadline_ms <= now_ms


def state_batch(run: Run) -> PersisterStateBatch:
    """The state of the run when the pending write is durable."""
    state = run.state if run.target is None else run.target.state
    return PersisterStateBatch(run.start, run.end - 1, int(state), run.delivery_count)
