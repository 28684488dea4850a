"""Rows of a table window after window, all as of one time: what `verify` and `replay` read.

The list of files is read once: a table may have many thousand commits, and what its job commits
meanwhile is of later offsets. It is read again only when a compaction has replaced files.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.table_log import TableSnapshot
from odradek.pipeline.tables.target import TableTarget


class ExactScan:
    """Scans of a table, for rows that are committed when it is first asked."""

    def __init__(self, table: TableTarget) -> None:
        self._table = table
        self._snapshot: TableSnapshot | None = None

    def batches(
        self, columns: Sequence[str], wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `TableTarget.scan`. FileNotFoundError if a file is lost, or was replaced."""
        if self._snapshot is None:
            self._snapshot = self._table.snapshot()
        return iter(()) if self._snapshot is None else self._snapshot.scan(columns, wanted)

    def read(self, columns: Sequence[str], wanted: PartitionRange) -> list[pa.RecordBatch]:
        """All rows of a range at once, also if a compaction replaces files meanwhile."""
        while True:
            try:
                return list(self.batches(columns, wanted))
            except FileNotFoundError:
                if not self.refresh():
                    raise

    def refresh(self) -> bool:
        """Read the list of files again; whether it is another one, as after a compaction."""
        known, self._snapshot = self._snapshot, self._table.snapshot()
        return known != self._snapshot
