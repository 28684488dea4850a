"""An Iceberg table, committed by pyiceberg: one snapshot for each plan.

The same commit of the catalog adds the files and sets the table's property `odradek.plan.<job>`, so
what the property says is in the table. Without `catalog.*` options the catalog is a sqlite file in
the table's folder; with them it is any catalog of pyiceberg.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import JobCommit, TableJob
from odradek.pipeline.tables.parquet_log import move_into_place
from odradek.pipeline.tables.rows import time_column

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Table
except ImportError as error:
    raise PipelineError(
        "format iceberg needs the package pyiceberg: pip install 'odradek[iceberg]'"
    ) from error

# It warns, for each file, of columns without statistics: nested ones and bytes have none here.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

CATALOG_FILE: Final = "catalog.db"
"""Of the default catalog, in the table's folder."""
NAMESPACE: Final = "odradek"
"""Name of the default catalog, and of the namespace of tables without `catalog.table`."""
_PROPERTIES: Final = {"write.metadata.delete-after-commit.enabled": "true"}
"""Each commit writes a file with all snapshots. Iceberg keeps the last 100 of these then, not all:
`write.metadata.previous-versions-max`."""


class IcebergLog:
    """Snapshots; `catalog.*` options are pyiceberg's, `catalog.table` is `namespace.name`."""

    # add_files takes the values of partitions from the statistics of the files.
    is_time_in_file = True

    def __init__(self, files: JobFolder, options: Mapping[str, str]) -> None:
        self._files = files
        found = {
            name.removeprefix("catalog."): value
            for name, value in options.items()
            if name.startswith("catalog.")
        }
        self._identifier = tuple(found.pop("table", "").split(".")) if "table" in found else ()
        self._options = found

    def publish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        """One commit of the catalog: new columns, the files, and the plan's number."""
        folder = self._files.folder
        key = f"odradek.plan.{commit.job}"
        try:
            table = self._opened(job, schema)
            if int(table.properties.get(key, "0")) >= commit.number:
                return
            move_into_place(folder, commit)
            known = {each.name for each in table.schema().fields}
            with table.transaction() as transaction:
                if any(name not in known for name in schema.names):
                    with transaction.update_schema() as update:
                        update.union_by_name(schema)
                transaction.set_properties({key: str(commit.number)})
                if commit.files:
                    transaction.add_files(
                        [folder.uri_of(file.path) for file in commit.files],
                        snapshot_properties={
                            "odradek.job": commit.job,
                            "odradek.plan": str(commit.number),
                        },
                        # The property above says whether they are in the table.
                        check_duplicate_files=False,
                    )
        except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
            raise self.failure(error) from error

    def scan(
        self, schema: pa.Schema, columns: Sequence[str], wanted: PartitionRange | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the current snapshot."""
        job = self._files.job()
        if job is None:
            return
        # As text: names of topics have no quotes.
        condition = "true"
        if wanted is not None:
            condition = (
                f"kafka_topic = '{wanted.topic}' AND kafka_partition = {wanted.partition}"
                f" AND kafka_offset >= {wanted.start} AND kafka_offset < {wanted.end}"
            )
        kept = pa.schema([schema.field(name) for name in columns])
        try:
            table = self._catalog().load_table(self._name(job))
            scan = table.scan(row_filter=condition, selected_fields=tuple(columns))
            for batch in scan.to_arrow_batch_reader():
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).select([*columns]).cast(kept)
                    yield from rows.to_batches()
        except NoSuchTableError:
            return
        except Exception as error:
            raise self.failure(error) from error

    def load(self, job: TableJob) -> Table:
        """The table as the catalog has it now; PipelineError if it has none."""
        try:
            return self._catalog().load_table(self._name(job))
        except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
            raise self.failure(error) from error

    def failure(self, error: Exception) -> PipelineError:
        """What pyiceberg or a catalog says, as one line; one of ours stays as it is."""
        if isinstance(error, PipelineError):
            return error
        text = " ".join(str(error).split())[:500]
        return PipelineError(f"Iceberg table {self._files.folder.location}: {text}")

    def _catalog(self) -> Catalog:
        folder = self._files.folder
        if not self._options and not folder.is_local:
            raise PipelineError(
                f"the Iceberg table {folder.location} needs a catalog: set catalog.uri and"
                " catalog.type, as pyiceberg has them"
            )
        default = {
            "type": "sql",
            "uri": f"sqlite:///{folder.path_of(CATALOG_FILE)}",
            "warehouse": folder.uri_of(""),
        }
        return load_catalog(NAMESPACE, **(self._options or default))

    def _name(self, job: TableJob) -> tuple[str, ...]:
        return self._identifier or (NAMESPACE, job.name)

    def _opened(self, job: TableJob, schema: pa.Schema) -> Table:
        catalog, name = self._catalog(), self._name(job)
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(name[:-1])
            location = self._files.folder.uri_of("").rstrip("/")
            table = catalog.create_table(
                name, schema=schema, location=location, properties=_PROPERTIES
            )
        time = time_column(job.time_partition)
        # A crash may have come between this and the creation.
        if time and not table.spec().fields:
            with table.update_spec() as update:
                update.add_identity(time)
            table = catalog.load_table(name)
        return table
