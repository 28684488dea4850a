"""Metadata logs filled with payloads instead of records."""

from collections.abc import Sequence

from odradek.storage.metadata_log import MetadataLog, MetadataLogEntry, StoredHardState


def append_payloads(
    log: MetadataLog,
    payloads: Sequence[bytes],
    *,
    term: int,
    hard_state: StoredHardState | None = None,
    may_use_reserve: bool = False,
) -> int:
    """Append payloads of one term after the last entry; returns the new last index."""
    first = log.last_index + 1
    entries = [MetadataLogEntry(first + at, term, data) for at, data in enumerate(payloads)]
    return log.append_entries(entries, hard_state=hard_state, may_use_reserve=may_use_reserve)
