"""What a task of `offload` does: read its pieces over the wire, decode, write staged files.

It runs in Spark's Python workers, mapped over the numbers of tasks. What ends its work is told to
the driver as a result, so that people see one line and no stack of Java; only what kills the worker
is Spark's to run again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.wire_options import open_cluster
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.rows import rows_of
from odradek.pipeline.tables.staging import PieceWriter, StagingPlace
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition


@dataclass(frozen=True, slots=True)
class OffloadTasks:
    """What is sent to all tasks of a plan."""

    bootstrap_servers: str
    kafka: Mapping[str, str]
    values: ValueDecoder
    place: StagingPlace
    time_partition: str
    pieces: tuple[tuple[PartitionRange, ...], ...]
    """For each task."""

    def run(self, number: int) -> str:
        """On an executor: the task of this number; JSON of its TaskReport."""
        return self._report(number).to_json()

    def _report(self, number: int) -> "TaskReport":
        try:
            return self._work(self.pieces[number])
        except PipelineError as error:
            return TaskReport(error=str(error))
        except OSError as error:
            return TaskReport(error=disk_error(error, self.place.folder))

    def _work(self, pieces: tuple[PartitionRange, ...]) -> "TaskReport":
        with open_cluster(self.bootstrap_servers, self.kafka) as cluster:
            reports = [self._move(cluster, wanted) for wanted in pieces]
        return TaskReport(
            files=tuple(file for report in reports for file in report.files),
            bad_files=tuple(name for report in reports for name in report.bad_files),
            bad=sum(report.bad for report in reports),
            rows=sum(report.rows for report in reports),
            bytes=sum(report.bytes for report in reports),
        )

    def _move(self, cluster: KafkaCluster, wanted: PartitionRange) -> "TaskReport":
        writer = PieceWriter(self.place, wanted)
        rows = bad = size = 0
        for batch in read_partition(cluster, wanted):
            made = rows_of(batch, self.values, self.time_partition)
            writer.add(made.rows)
            writer.add_bad(made.bad)
            rows += batch.num_rows
            bad += len(made.bad)
            size += batch.nbytes
        files, bad_file = writer.close()
        return TaskReport(tuple(files), (bad_file,) if bad_file else (), bad, rows, size)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task tells the driver."""

    files: tuple[DataFile, ...] = ()
    bad_files: tuple[str, ...] = ()
    """Names of files in the staging folder, with records for the dead-letter topic."""
    bad: int = 0
    rows: int = 0
    """Records that were read, with the bad ones."""
    bytes: int = 0
    """Of these records, as Arrow has them."""
    error: str = ""
    """One line for people; empty if all is well."""

    def to_json(self) -> str:
        """As it travels in a column of Spark."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TaskReport":
        """Of `to_json`."""
        found = json.loads(text)
        files = tuple(DataFile(**each) for each in found.pop("files"))
        return cls(**found | {"files": files, "bad_files": tuple(found["bad_files"])})


def disk_error(error: OSError, folder: str) -> str:
    """A full disk and its like in one line."""
    text = " ".join(str(error).split())
    return f"{folder} cannot be written: {text}; nothing of this plan is visible, it runs again"
