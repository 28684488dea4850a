"""The type of the records of group shards.

Each type of group defines its own records; `records` has the table of all.
"""

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker


class KeyedGroupRecord(Protocol):
    """A record of `__consumer_offsets` outside of a transaction."""

    @property
    def group_id(self) -> str:
        """The group of the record."""


GroupRecord: TypeAlias = (
    KeyedGroupRecord | TransactionalRecord[KeyedGroupRecord] | TransactionMarker
)
"""Transactional offsets and markers are written in separate batches."""


def group_ids_of(records: Iterable[GroupRecord]) -> dict[str, None]:
    """The groups of the records outside of transactions, each once, in order."""
    return {
        record.group_id: None
        for record in records
        if not isinstance(record, TransactionalRecord | TransactionMarker)
    }
