"""The leader epochs of one partition and their start offsets (Kafka's LeaderEpochFileCache;
KIP-101, KIP-279).

Epochs and start offsets are strictly ascending. An epoch without records is kept only as the last
one. The next epoch, which starts at the same offset, replaces it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

from odradek.protocol.types import NO_EPOCH, NO_OFFSET

_epoch, _start_offset = itemgetter(0), itemgetter(1)


class LeaderEpochs:
    """(epoch, start offset) pairs, both ascending."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: tuple[tuple[int, int], ...] = tuple(entries)

    @property
    def latest(self) -> int:
        """The last epoch, -1 if there is none."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """The epoch starts at `start_offset`. Entries with the same or a later epoch or start
        offset are removed. The last epoch keeps its start."""
        entries = self.entries
        if epoch >= 0 and epoch != self.latest:
            kept = [entry for entry in entries if entry[0] < epoch and entry[1] < start_offset]
            self.entries = (*kept, (epoch, start_offset))

    def truncate_start(self, log_start_offset: int) -> None:
        """The log starts here now: remove epochs that end before, and let the first one start
        here."""
        entries = self.entries
        first = bisect_right(entries, log_start_offset, key=_start_offset) - 1
        if first < 0:
            return
        epoch, _ = entries[first]
        self.entries = ((epoch, log_start_offset), *entries[first + 1 :])

    def truncate_end(self, log_end_offset: int) -> None:
        """The log ends here now: remove epochs that start at or after it."""
        entries = self.entries
        self.entries = entries[: bisect_left(entries, log_end_offset, key=_start_offset)]

    def drop_if_empty(self, base_offset: int) -> None:
        """Remove the last epoch if it has no records: a batch of an earlier epoch is appended at
        `base_offset`. (While a segment is replayed, epochs that start later are known already.)"""
        if self.entries and self.entries[-1][1] <= base_offset:
            self.entries = self.entries[:-1]

    def with_records(self, log_end_offset: int) -> tuple[tuple[int, int], ...]:
        """The entries of epochs with records. Only these are stored."""
        return self.entries[: bisect_left(self.entries, log_end_offset, key=_start_offset)]

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 if it is not known."""
        index = bisect_right(self.entries, offset, key=_start_offset) - 1
        return self.entries[index][0] if index >= 0 else NO_EPOCH

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """For OffsetForLeaderEpoch: the largest epoch up to `epoch`, and its end offset. (-1, -1)
        if the epoch is newer than all known ones, or undefined.

        An epoch older than all known ones is returned itself, with the start of the first known one
        as its end.
        """
        entries = self.entries
        if epoch == NO_EPOCH or not entries:
            return NO_EPOCH, NO_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        higher = bisect_right(entries, epoch, key=_epoch)
        if higher == len(entries):
            return NO_EPOCH, NO_OFFSET
        if higher == 0:
            return epoch, entries[0][1]
        return entries[higher - 1][0], entries[higher][1]
