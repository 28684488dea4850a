"""Transactions in one partition: the undecided and the aborted ones (Kafka's TransactionIndex).

The last stable offset is the first offset of the oldest undecided transaction, at most the high
watermark. A transaction is undecided until its marker is below the high watermark. An aborted
transaction has a row in the segment that holds its marker. A read_committed fetch returns the rows
that overlap its records.
"""

from struct import Struct
from typing import NamedTuple

_ABORTED = Struct(">qqqq")


class AbortedTransactionRow(NamedTuple):
    """An aborted transaction: the offsets [first_offset, last_offset], the marker included.

    `last_stable_offset` is the log's last stable offset right after the marker. Transactions that
    ended later start at or after it, so that a search may stop there.
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
        return cls(*_ABORTED.unpack(row))


class UndecidedTransactions:
    """The ongoing transactions of a partition, and those whose marker is not replicated yet."""

    __slots__ = ("ongoing", "unreplicated")

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        """Producer id to first offset, in the order of first offsets."""
        self.unreplicated: list[tuple[int, int]] = []
        """(first offset, marker's offset) of those whose marker is at or above the high watermark,
        in the order of the markers."""

    def copy(self) -> "UndecidedTransactions":
        copied = UndecidedTransactions()
        copied.ongoing = dict(self.ongoing)
        copied.unreplicated = list(self.unreplicated)
        return copied

    def open(self, producer_id: int, first_offset: int) -> None:
        """A transactional batch was appended. No effect inside the producer's transaction."""
        self.ongoing.setdefault(producer_id, first_offset)

    def complete(
        self, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> AbortedTransactionRow | None:
        """A marker was appended. Returns the row to write if it aborted a transaction."""
        first_offset = self.ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self.unreplicated.append((first_offset, marker_offset))
        if is_commit:
            return None
        last_stable_offset = min(self.ongoing.values(), default=marker_offset + 1)
        return AbortedTransactionRow(producer_id, first_offset, marker_offset, last_stable_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget the transactions whose marker is below the high watermark."""
        unreplicated = self.unreplicated
        if unreplicated and unreplicated[0][1] < high_watermark:
            self.unreplicated = [entry for entry in unreplicated if entry[1] >= high_watermark]

    def last_stable_offset(self, high_watermark: int) -> int:
        """End (exclusive) of what read_committed may see."""
        if self.ongoing:
            high_watermark = min(high_watermark, next(iter(self.ongoing.values())))
        for first_offset, _ in self.unreplicated:
            high_watermark = min(high_watermark, first_offset)
        return high_watermark
