"""Leader epochs of one partition: which epoch's records start at which offset (KIP-101, KIP-279).

Both epochs and start offsets rise strictly. An epoch without records is kept only while it is the
last one: the next epoch that starts at the same offset takes its place.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from odradek.protocol.types import NO_EPOCH, NO_OFFSET


class LeaderEpochs:
    """(epoch, start offset) pairs, both ascending; small, so that copies are cheap."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: tuple[tuple[int, int], ...] = tuple(entries)

    @property
    def latest(self) -> int:
        """The last epoch, -1 before the first."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Records from `start_offset` on are of `epoch`. Entries this contradicts (a later or equal
        offset under an older epoch, or a newer epoch) are dropped. False if nothing changed."""
        entries = self.entries
        if epoch < 0 or (entries and entries[-1][0] == epoch):
            return False
        kept = [entry for entry in entries if entry[0] < epoch and entry[1] < start_offset]
        self.entries = (*kept, (epoch, start_offset))
        return True

    def truncate_start(self, log_start_offset: int) -> None:
        """The log now starts here: forget epochs that ended before, and let the one that is cut
        start here."""
        entries = self.entries
        first = bisect_right(entries, log_start_offset, key=_start_offset) - 1
        if first < 0:
            return
        epoch, _ = entries[first]
        self.entries = ((epoch, log_start_offset), *entries[first + 1 :])

    def truncate_end(self, log_end_offset: int) -> None:
        """The log now ends here: forget epochs that start at or after it."""
        entries = self.entries
        self.entries = entries[: bisect_left(entries, log_end_offset, key=_start_offset)]

    def drop_if_empty(self, base_offset: int) -> None:
        """A batch of an earlier epoch follows at `base_offset`: the last one has no record if it
        starts no later. (While a segment is read again, epochs that start later are known.)"""
        if self.entries and self.entries[-1][1] <= base_offset:
            self.entries = self.entries[:-1]

    def with_records(self, log_end_offset: int) -> tuple[tuple[int, int], ...]:
        """The entries of epochs that something was written in: what a disk is to keep. Of a reign
        without a record another log need not know."""
        return self.entries[: bisect_left(self.entries, log_end_offset, key=_start_offset)]

    def epoch_at(self, offset: int) -> int:
        """The epoch that the record at `offset` is of, -1 if none is known to start before it."""
        index = bisect_right(self.entries, offset, key=_start_offset) - 1
        return self.entries[index][0] if index >= 0 else NO_EPOCH

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """For OffsetForLeaderEpoch: the largest epoch not above the one asked and the offset where
        it ends; (-1, -1) if the epoch is newer than all that is known, or undefined.

        An epoch below all known ones ends where the first known one starts and is returned itself.
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


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start_offset(entry: tuple[int, int]) -> int:
    return entry[1]
