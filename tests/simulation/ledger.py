"""Invariants of transactions: atomic, with one outcome, and none that stays open for ever.

The ledger gets all responses to payers, and reads logs with read_committed: a record counts once
its producer's marker is COMMIT. At the end it reads all committed batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from odradek.coordinator.group.offsets.records import OffsetCommitRecord
from odradek.coordinator.group.records import decode
from odradek.coordinator.loader import TransactionalEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.node.router.shards.shard_log import decode_entries
from tests.simulation.simulation import Violation


class Fate(Enum):
    """The outcome of a transaction, as its payer knows it."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class Payment:
    """One transaction. `places` are the partitions in which its records were acknowledged."""

    name: str
    number: int
    is_commit: bool
    places: set[int] = field(default_factory=set)
    fate: Fate = Fate.OPEN
    is_ending: bool = False

    @property
    def text(self) -> str:
        """The value of its records."""
        return f"{self.name}:{self.number}"


class Reading:
    """Reads a log from its beginning, with read_committed."""

    def __init__(self, ledger: "Ledger", place: int) -> None:
        self._ledger = ledger
        self._place = place
        self._pending: dict[int, list[str]] = {}

    def take(self, data: bytes, offset: int) -> None:
        """Read the next batch."""
        for entry in decode_entries(memoryview(data), offset):
            if isinstance(entry, TransactionMarker):
                for text in self._pending.pop(entry.producer_id, ()):
                    if entry.is_commit:
                        self._ledger.read(text, self._place)
            elif isinstance(entry, TransactionalEntry):
                assert entry.value is not None
                text = bytes(entry.value).decode()
                self._pending.setdefault(entry.producer_id, []).append(text)


class Ledger:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.payments: dict[str, Payment] = {}
        self.read_count = 0
        self._read: dict[str, set[int]] = {}
        self._offsets: dict[str, int] = {}
        """By payer, the offset of its last transaction that was acknowledged as committed."""

    # -- what payers are told ----------------------------------------------------------------------

    def begin(self, name: str, number: int, *, is_commit: bool) -> Payment:
        payment = Payment(name, number, is_commit)
        self.payments[payment.text] = payment
        return payment

    def written(self, payment: Payment, place: int) -> None:
        payment.places.add(place)

    def asks_for_end(self, payment: Payment) -> None:
        payment.is_ending = True

    def decided(self, payment: Payment, *, is_commit: bool) -> None:
        """The outcome was acknowledged."""
        payment.fate = Fate.COMMITTED if is_commit else Fate.ABORTED
        if is_commit:
            self._offsets[payment.name] = payment.number
        elif self._read.get(payment.text):
            raise Violation(f"{payment.text} was aborted and read before")

    def abandoned(self, payment: Payment) -> None:
        """The payer has initialized its producer again."""
        is_open = payment.is_ending and payment.is_commit
        payment.fate = Fate.UNKNOWN if is_open else Fate.ABORTED
        if not is_open and self._read.get(payment.text):
            raise Violation(f"{payment.text} was never committed and is read")

    def told_offset(self, name: str, offset: int) -> None:
        """A payer without an open transaction fetched its stable offset."""
        floor = self._offsets.get(name, -1)
        known = self.payments.get(f"{name}:{offset}")
        if offset < floor:
            raise Violation(f"the offset of {name} is {offset}, and {floor} was committed")
        if offset >= 0 and (known is None or known.fate in (Fate.ABORTED, Fate.OPEN)):
            raise Violation(f"the offset of {name} is {offset}, which was not committed")

    # -- what is read ------------------------------------------------------------------------------

    def reading(self, place: int) -> Reading:
        return Reading(self, place)

    def read(self, text: str, place: int) -> None:
        """A read_committed consumer has read these records."""
        self.read_count += 1
        payment = self.payments.get(text)
        if payment is None:
            return
        if payment.fate is Fate.ABORTED or not payment.is_ending or not payment.is_commit:
            raise Violation(f"{text} is read in {place} and was {payment.fate.name}")
        self._read.setdefault(text, set()).add(place)

    def check_end(self, logs: Iterable[tuple[int, Iterable[tuple[int, bytes]]]]) -> None:
        """All committed batches, by partition, are read: no transaction is partly visible."""
        self._read.clear()
        for place, batches in logs:
            reading = self.reading(place)
            for offset, data in batches:
                reading.take(data, offset)
        for text, payment in self.payments.items():
            found = self._read.get(text, set())
            if payment.fate is Fate.COMMITTED and found != payment.places:
                raise Violation(f"{text} was committed in {payment.places} and is in {found}")
            if found and found != payment.places:
                raise Violation(f"{text} is torn: in {found} of {payment.places}")

    def check_offsets(self, batches: Iterable[tuple[int, bytes]]) -> None:
        """The groups' offsets are those of the committed transactions, and of all of them."""
        pending: dict[int, dict[str, int]] = {}
        offsets: dict[str, int] = {}
        for offset, data in batches:
            for entry in decode_entries(memoryview(data), offset):
                if isinstance(entry, TransactionMarker):
                    ended = pending.pop(entry.producer_id, {})
                    offsets.update(ended if entry.is_commit else {})
                elif isinstance(entry, TransactionalEntry):
                    assert entry.key is not None
                    value = None if entry.value is None else bytes(entry.value)
                    record = decode(bytes(entry.key), value)
                    if isinstance(record, OffsetCommitRecord) and record.committed is not None:
                        mine = pending.setdefault(entry.producer_id, {})
                        mine[record.group_id] = record.committed.offset
        for text, payment in self.payments.items():
            is_there = text in self._read
            if is_there and offsets.get(payment.name, -1) < payment.number:
                raise Violation(f"{text} is committed, and the offset is {offsets[payment.name]}")
        for name, number in offsets.items():
            known = self.payments[f"{name}:{number}"]
            if known.places and known.text not in self._read:
                raise Violation(f"the offset of {name} is {number}, which was aborted")
