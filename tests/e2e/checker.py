"""Compares what clients observed during faults with the log (after Jepsen's workload for Kafka).

Every record carries its producer and a sequence number, so that lost, duplicated and reordered
records show in the log itself. An `ObservedHistory` has the observations of producers and
consumers, and the log as it was read at the end. `anomalies` compares them without knowledge of the
run. Partitions are numbers: a history has one topic.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple

SHOWN_OF_A_KIND = 3
UNKNOWN_OFFSET = -1


class Value(NamedTuple):
    """The content of a record's value."""

    producer: int
    number: int


class Position(NamedTuple):
    """Partition and offset of a record."""

    partition: int
    offset: int


Log = dict[int, list[tuple[int, Value]]]
"""The records of each partition, with their offsets."""


@dataclass(slots=True)
class ObservedRead:
    """The records that one consumer read of a partition during one assignment."""

    consumer: str
    partition: int
    records: list[tuple[int, Value]] = field(default_factory=list)
    committed: int = -1
    """The newest offset that it has committed, -1 for none."""
    resumed_from: int | None = None
    """The newest committed offset that was acknowledged to anyone before it began, -1 for none;
    None if that is the newest of the readings before it. With KIP-848 a member that was assigned a
    partition and has not confirmed it yet may lose it again, and read and commit meanwhile."""


@dataclass(slots=True)
class ObservedHistory:
    """One run. `readings` of a partition are in the order of their begin."""

    sent: dict[Value, int] = field(default_factory=dict)
    acknowledged: dict[Value, Position] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """Errors that reached an application."""
    readings: list[ObservedRead] = field(default_factory=list)
    log: Log = field(default_factory=dict)
    aborted: set[Value] = field(default_factory=set)
    """Records of aborted transactions; consumers are read_committed."""


def anomalies(history: ObservedHistory) -> list[str]:
    """Violations as sentences, with some examples of each kind."""
    found: list[str] = []
    for kind in _KINDS:
        sentences = kind(history)
        found += islice(sentences, SHOWN_OF_A_KIND)
        more = sum(1 for _ in sentences)
        if more:
            found.append(f"... and {more} more like this")
    return found


def _places(history: ObservedHistory) -> dict[Value, list[Position]]:
    places: dict[Value, list[Position]] = {}
    for partition, records in history.log.items():
        for offset, value in records:
            places.setdefault(value, []).append(Position(partition, offset))
    return places


def _told(history: ObservedHistory) -> Iterator[str]:
    for complaint in history.complaints:
        yield f"an application was told: {complaint}"


def _lost(history: ObservedHistory) -> Iterator[str]:
    places = _places(history)
    for value, promised in history.acknowledged.items():
        found = places.get(value)
        if found is None:
            yield f"lost: {value} was acknowledged at {promised} and is nowhere"
        elif promised.offset != UNKNOWN_OFFSET and promised not in found:
            yield f"moved: {value} was acknowledged at {promised} and is at {found}"


def _doubled(history: ObservedHistory) -> Iterator[str]:
    for value, found in _places(history).items():
        if len(found) > 1:
            yield f"doubled: {value} is at {found}"


def _invented(history: ObservedHistory) -> Iterator[str]:
    for value, found in _places(history).items():
        if history.sent.get(value) != found[0].partition:
            yield f"invented: {value} is at {found} and nobody sent it there"


def _reordered(history: ObservedHistory) -> Iterator[str]:
    for partition, records in history.log.items():
        last: dict[int, Value] = {}
        for offset, value in records:
            before = last.get(value.producer)
            if before is not None and before.number > value.number:
                yield f"reordered: {value} at {Position(partition, offset)} comes after {before}"
            last[value.producer] = value


def _holes(history: ObservedHistory) -> Iterator[str]:
    for partition, records in history.log.items():
        yield from _steps(f"the log of partition {partition}", records)


def _misread(history: ObservedHistory) -> Iterator[str]:
    for reading in history.readings:
        log = dict(history.log.get(reading.partition, ()))
        for offset, value in reading.records:
            there = log.get(offset)
            if there is None:
                yield (
                    f"vanished: {reading.consumer} read {value} at"
                    f" {Position(reading.partition, offset)}, where nothing is"
                )
            elif there != value:
                yield (
                    f"inconsistent: {reading.consumer} read {value} at"
                    f" {Position(reading.partition, offset)}, where {there} is"
                )


def _aborted(history: ObservedHistory) -> Iterator[str]:
    """KIP-98: read_committed consumers never see records of an aborted transaction."""
    if not history.aborted:
        return
    for reading in history.readings:
        for offset, value in reading.records:
            if value in history.aborted:
                yield (
                    f"aborted: {reading.consumer} read {value} at"
                    f" {Position(reading.partition, offset)}, whose transaction was aborted"
                )


def _leaps(history: ObservedHistory) -> Iterator[str]:
    for reading in history.readings:
        yield from _steps(f"{reading.consumer} in partition {reading.partition}", reading.records)


def _steps(who: str, records: Iterable[tuple[int, Value]]) -> Iterator[str]:
    """Offsets must be consecutive: nothing in these logs is hidden from consumers."""
    for (before, _), (offset, _) in pairwise(records):
        if offset != before + 1:
            yield f"{'skipped' if offset > before else 'went back'}: {who}, {before} to {offset}"


def _resumed(history: ObservedHistory) -> Iterator[str]:
    """A group resumes at its committed offset. No record remains unread, neither between two
    assignments nor at the end."""
    reached: dict[int, int] = dict.fromkeys(history.log, 0)
    committed: dict[int, int] = {}
    for reading in history.readings:
        if not reading.records:
            continue
        partition = reading.partition
        first, last = reading.records[0][0], max(reading.records)[0]
        if first > reached.get(partition, 0):
            yield (
                f"unread: {reading.consumer} began partition {partition} at {first}, nobody had"
                f" read beyond {reached.get(partition, 0)}"
            )
        promised = committed.get(partition, 0)
        if reading.resumed_from is not None:
            promised = reading.resumed_from
        if first < promised:
            yield (
                f"commit lost: {reading.consumer} began partition {partition} at {first},"
                f" {promised} was committed"
            )
        reached[partition] = max(reached.get(partition, 0), last + 1)
        committed[partition] = max(committed.get(partition, 0), reading.committed)
    for partition, records in history.log.items():
        if history.readings and records and reached[partition] <= records[-1][0]:
            yield f"unread: partition {partition} from {reached[partition]} on"


_KINDS = (
    _told,
    _lost,
    _doubled,
    _invented,
    _reordered,
    _holes,
    _misread,
    _aborted,
    _leaps,
    _resumed,
)
