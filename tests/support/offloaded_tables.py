"""Fills tables as the job `offload` does, without Spark: one plan at a time, in this process."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import DataFile, JobCommit, JobPlan, PlanResult, TableJob
from odradek.pipeline.tables.rows import BadRecord, rows_of, table_schema
from odradek.pipeline.tables.staging import PieceWriter
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.raw_values import RawValues
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition

COMMITTED_MS = 1_790_000_000_000


class OffloadedTable:
    """A table of one topic."""

    def __init__(
        self,
        folder: Path,
        cluster: KafkaCluster,
        topic: str,
        *,
        kind: str = "parquet",
        values: ValueDecoder | None = None,
        value_format: str = "raw",
        time_partition: str = "date",
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.values = values or RawValues()
        self.time_partition = time_partition
        self.folder = folder
        self.bad: list[BadRecord] = []
        """The dead letters that the job would have sent."""
        job = TableJob(
            name=f"job-{topic}",
            topics=(topic,),
            topic_pattern="",
            format=kind,
            value_format=value_format,
            time_partition=time_partition,
        )
        self.job = job.name
        self.table: TableTarget = open_table(kind, str(folder))
        self.table.claim(job)

    def offload(self, ends: dict[int, int] | None = None) -> JobCommit:
        """One plan, to these offsets of partitions, by default all committed records."""
        plan = self.plan(ends)
        self.table.prepare(plan)
        place = self.table.staging(plan)
        files: list[DataFile] = []
        bad = 0
        for wanted in plan.ranges:
            writer = PieceWriter(place, wanted)
            for batch in read_partition(self.cluster, wanted):
                made = rows_of(batch, self.values, self.time_partition)
                writer.add(made.rows)
                self.bad += made.bad
                bad += len(made.bad)
            files += writer.close()[0]
        schema = table_schema(self.values, self.time_partition)
        return self.table.commit(plan, PlanResult(tuple(files), bad, COMMITTED_MS, schema))

    def plan(self, ends: dict[int, int] | None = None) -> JobPlan:
        """What the next plan would be."""
        view = self.cluster.topics([self.topic])[self.topic]
        names = [PartitionName(self.topic, each) for each in view.partition_ids]
        last = self.table.last_commit()
        first = self.cluster.list_offsets(dict.fromkeys(names, EARLIEST), read_committed=True)
        ended = self.cluster.list_offsets(dict.fromkeys(names, LATEST), read_committed=True)
        starts = {} if last is None else last.ends
        ranges = [
            PartitionRange(
                self.topic,
                view.topic_id,
                name.partition,
                starts.get(name, first[name].offset),
                (ends or {}).get(name.partition, ended[name].offset),
            )
            for name in names
        ]
        return JobPlan(self.job, 1 if last is None else last.number + 1, tuple(ranges))

    def files(self) -> list[Path]:
        """The data files, in the order of commits."""
        return [self.folder / file.path for file in self.table.files()]

    def change_file(self, change: Callable[[pa.Table], pa.Table], index: int = 0) -> None:
        """Write a data file again, with other rows, behind the table's back."""
        path = self.files()[index]
        pq.write_table(change(pq.ParquetFile(path).read()), path)
