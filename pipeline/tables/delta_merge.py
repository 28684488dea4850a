"""Merges changes by key into a Delta table, a version for each plan.

The version names the plan as the transaction of an application, and a plan that the table has is
not merged again. A merge that changes nothing makes no version: it may run again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.table_folder import TableFolder

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import DeltaError
except ImportError as error:
    raise PipelineError(
        "upsert needs the package deltalake: pip install 'odradek[delta]'"
    ) from error

KEY: Final = "kafka_key"
# A key that has moved to another partition, when the topic got more, has no order but time.
_IS_NEWER: Final = (
    "(s.kafka_partition = t.kafka_partition OR s.kafka_timestamp >= t.kafka_timestamp)"
)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What a merge did to rows; all 0 if the table had it."""

    inserted: int
    updated: int
    deleted: int


class DeltaMerge:
    """The table of an upsert."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """`storage.*` of the options are deltalake's storage options."""
        folder = TableFolder(location)
        self._location = location
        self._uri = folder.path if folder.is_local else location
        self._storage = {
            name.removeprefix("storage."): value
            for name, value in options.items()
            if name.startswith("storage.")
        }

    def merge(
        self, job: str, number: int, changes: pa.Table, is_delete: str, committed_ms: int
    ) -> MergeCounts:
        """Merge at most one change for each key; the column `is_delete` is no column of the table.

        PipelineError for what Delta refuses.
        """
        schema = changes.schema.remove(changes.schema.get_field_index(is_delete))
        application = f"odradek.{job}"
        try:
            table = self._opened(job, schema)
            if (table.transaction_version(application) or 0) >= number or not len(changes):
                return MergeCounts(0, 0, 0)
            columns = {f'"{name}"': f's."{name}"' for name in schema.names}
            done = (
                table.merge(
                    changes,
                    f"t.{KEY} = s.{KEY}",
                    source_alias="s",
                    target_alias="t",
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(application, number, committed_ms)],
                        custom_metadata={"job": job, "plan": str(number)},
                    ),
                )
                .when_matched_delete(f"s.{is_delete} AND {_IS_NEWER}")
                .when_matched_update(columns, predicate=f"NOT s.{is_delete} AND {_IS_NEWER}")
                .when_not_matched_insert(columns, predicate=f"NOT s.{is_delete}")
                .execute()
            )
        except DeltaError as error:
            text = " ".join(str(error).split())
            raise PipelineError(f"Delta table {self._location}: {text}") from error
        return MergeCounts(
            done["num_target_rows_inserted"],
            done["num_target_rows_updated"],
            done["num_target_rows_deleted"],
        )

    def _opened(self, job: str, schema: pa.Schema) -> DeltaTable:
        """With all columns: new ones are added in a version of their own."""
        storage = self._storage or None
        if not DeltaTable.is_deltatable(self._uri, storage):
            return DeltaTable.create(self._uri, schema=schema, name=job, storage_options=storage)
        table = DeltaTable(self._uri, storage_options=storage)
        known = {each.name for each in table.schema().fields}
        added = [each for each in Schema.from_arrow(schema).fields if each.name not in known]
        if added:
            table.alter.add_columns(added)
            table = DeltaTable(self._uri, storage_options=storage)
        return table
