"""Transactions as one partition sees them: which are undecided, and which were aborted.

The first offset of the oldest undecided transaction bounds the last stable offset. A transaction
whose marker is written is still undecided for readers until the high watermark has passed the
marker. Aborted ones get a row in the segment that holds their marker; a read_committed fetch is
told those that touch what it returns.
"""

from struct import Struct
from typing import NamedTuple

_ABORTED = Struct(">qqqq")


class AbortedTransactionRow(NamedTuple):
    """An aborted transaction: the offsets [first_offset, last_offset], the marker included.

    `last_stable_offset` is where the log was stable right after the marker: transactions that ended
    later all start at or after it, which is where a search may stop.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """The row under (number, last_offset)."""
        return _ABORTED.pack(*self)

    @classmethod
    def decode(cls, row: bytes | memoryview) -> "AbortedTransactionRow":
        """The reverse of `encode`."""
        return cls(*_ABORTED.unpack(row))


class UndecidedTransactions:
    """The open transactions of a partition, and those decided above the high watermark."""

    __slots__ = ("ongoing", "unreplicated")

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        """Producer id to first offset, in the order of first offsets."""
        self.unreplicated: list[tuple[int, int]] = []
        """(first offset, marker's offset) of those whose marker the high watermark has not passed,
        in the order of markers."""

    def copy(self) -> "UndecidedTransactions":
        """An independent copy, to go back to when a turn fails."""
        copied = UndecidedTransactions()
        copied.ongoing = dict(self.ongoing)
        copied.unreplicated = list(self.unreplicated)
        return copied

    def open(self, producer_id: int, first_offset: int) -> None:
        """A transactional batch was appended; no effect if the producer's transaction is open."""
        self.ongoing.setdefault(producer_id, first_offset)

    def complete(
        self, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> AbortedTransactionRow | None:
        """A marker was appended. Returns the row to write if it aborted something."""
        first_offset = self.ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self.unreplicated.append((first_offset, marker_offset))
        if is_commit:
            return None
        last_stable_offset = min(self.ongoing.values(), default=marker_offset + 1)
        return AbortedTransactionRow(producer_id, first_offset, marker_offset, last_stable_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """The high watermark moved: markers below it are decided for good."""
        unreplicated = self.unreplicated
        if unreplicated and unreplicated[0][1] < high_watermark:
            self.unreplicated = [entry for entry in unreplicated if entry[1] >= high_watermark]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Everything below is decided: end (exclusive) of what read_committed may see."""
        if self.ongoing:
            high_watermark = min(high_watermark, next(iter(self.ongoing.values())))
        for first_offset, _ in self.unreplicated:
            high_watermark = min(high_watermark, first_offset)
        return high_watermark
