"""What group shards write: the type of records below all types of groups.

The records themselves stand with their types of groups, their table in `records`.
"""

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker


class KeyedGroupRecord(Protocol):
    """A record of `__consumer_offsets` outside of a transaction."""

    @property
    def group_id(self) -> str:
        """The group it is about."""


GroupRecord: TypeAlias = (
    KeyedGroupRecord | TransactionalRecord[KeyedGroupRecord] | TransactionMarker
)
"""Offsets of transactions and markers have batches of their own."""


def group_ids_of(records: Iterable[GroupRecord]) -> dict[str, None]:
    """The groups that the records outside of transactions are about, each once, in order."""
    return {
        record.group_id: None
        for record in records
        if not isinstance(record, TransactionalRecord | TransactionMarker)
    }
