"""An Iceberg table, committed by pyiceberg: one snapshot for each plan.

The same commit of the catalog adds the files and sets the table's property `odradek.plan.<job>`, so
what the property says is in the table. Without `catalog.*` options the catalog is a sqlite file in
the table's folder; with them it is any catalog of pyiceberg.
"""

import logging
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyarrow import fs

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import JobCommit, TableJob
from odradek.pipeline.tables.parquet_log import move_into_place
from odradek.pipeline.tables.parquet_snapshot import FileBounds, ParquetSnapshot
from odradek.pipeline.tables.rows import time_column

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.manifest import DataFile as IcebergFile
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
_OFFSET_END: Final = 2**63
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

    def snapshot(self, job: TableJob, schema: pa.Schema) -> ParquetSnapshot:
        """The files of the current snapshot, which Arrow reads."""
        table = self.load(job)
        try:
            tasks = list(table.scan().plan_files())
            fields = [
                table.schema().find_field(name).field_id
                for name in ("kafka_partition", "kafka_offset")
            ]
        except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
            raise self.failure(error) from error
        folder = self._files.folder
        if any(task.delete_files for task in tasks):
            raise PipelineError(
                f"table {folder.location} has deletes by row, which no job of ours makes:"
                " rewrite its data files with Spark's procedure rewrite_data_files first"
            )
        found = []
        for task in tasks:
            partitions, offsets = (_bounds(task.file, each) for each in fields)
            path = fs.FileSystem.from_uri(task.file.file_path)[1]
            found.append(FileBounds(path, partitions, offsets))
        return ParquetSnapshot(tuple(found), folder, schema)

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


def _bounds(file: IcebergFile, field: int) -> tuple[int, int]:
    """The least and the greatest value of a column of integers; any, if the file does not say."""
    low, high = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
    return (
        -_OFFSET_END if low is None else int.from_bytes(low, "little", signed=True),
        _OFFSET_END if high is None else int.from_bytes(high, "little", signed=True),
    )
