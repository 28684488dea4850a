"""What `verify` found wrong: every finding is counted, the first of each kind are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from odradek.pipeline.kafka_types import PartitionName

SHOWN_MAX = 20
"""Findings of a kind that are kept with their coordinates."""


class FindingKind(StrEnum):
    """In the order of a report."""

    MISSING = "missing"
    """A committed record of the topic is not in the table."""
    DOUBLED = "doubled"
    """An offset is in the table more than once."""
    ALTERED = "altered"
    """A row is not what its record gives."""
    UNEXPECTED = "unexpected"
    """A row of which the topic has no committed record, or which does not belong to the job."""
    UNREADABLE = "unreadable"
    """A part of the table cannot be read: a file is deleted or cut."""
    DEAD_LETTER_MISSING = "dead letter missing"
    """A record does not fit the schema and is not in the dead-letter topic."""
    DEAD_LETTER_DOUBLED = "dead letter doubled"
    DEAD_LETTER_ALTERED = "dead letter altered"
    DEAD_LETTER_UNEXPECTED = "dead letter unexpected"
    """A dead letter whose record is good, or which does not belong to the job."""
    GAP_UNEXPLAINED = "gap unexplained"
    """An offset that the topic gives neither as a record nor as anything else."""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """Something that must not be."""

    kind: FindingKind
    topic: str
    partition: int
    offset: int
    detail: str = ""
    """The columns that differ, or how often; empty if the kind says it all."""


class Findings:
    """All findings of a run: bounded, however wrong the table is."""

    def __init__(self, shown_max: int = SHOWN_MAX) -> None:
        self._shown_max = shown_max
        self._counts: dict[FindingKind, int] = {}
        self._shown: dict[FindingKind, list[TableFinding]] = {}

    def add(
        self, kind: FindingKind, name: PartitionName, offsets: Sequence[int], detail: str = ""
    ) -> None:
        """One finding per offset, with the same detail."""
        shown = self._shown.setdefault(kind, [])
        shown += [
            TableFinding(kind, name.topic, name.partition, offset, detail)
            for offset in offsets[: self._shown_max - len(shown)]
        ]
        self._counts[kind] = self._counts.get(kind, 0) + len(offsets)

    def counts(self) -> dict[FindingKind, int]:
        """How many there are of each kind that there is, in the order of kinds."""
        return {kind: self._counts[kind] for kind in FindingKind if self._counts.get(kind)}

    def shown(self, kind: FindingKind) -> tuple[TableFinding, ...]:
        """The first ones of a kind, as they were found."""
        return tuple(self._shown.get(kind, ()))
