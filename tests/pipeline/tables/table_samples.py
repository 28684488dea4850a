"""Small tables for tests: jobs, plans, and tasks that write files as those of Spark do."""

from collections.abc import Iterable

import pyarrow as pa

from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionRange
from odradek.pipeline.tables.job_plan import JobPlan, PlanResult, TableJob
from odradek.pipeline.tables.rows import rows_of, table_schema
from odradek.pipeline.tables.staging import PieceWriter
from odradek.pipeline.tables.target import TableTarget
from odradek.pipeline.values.raw_values import RawValues
from odradek.pipeline.values.value_format import ValueDecoder

DAY_US = 86_400_000_000


def job(kind: str = "parquet", time_partition: str = "date") -> TableJob:
    return TableJob(
        name="archive",
        topics=("orders",),
        topic_pattern="",
        format=kind,
        value_format="raw",
        time_partition=time_partition,
    )


def plan(number: int, *bounds: tuple[int, int, int], topic: str = "orders") -> JobPlan:
    """Bounds are (partition, start, end)."""
    ranges = (PartitionRange(topic, "an-id", *each) for each in bounds)
    return JobPlan("archive", number, tuple(ranges))


def records(
    offsets: Iterable[int],
    *,
    partition: int = 0,
    topic: str = "orders",
    value: bytes = b"value-%d",
    step_us: int = DAY_US // 4,
) -> pa.RecordBatch:
    """Records of which each is a quarter of a day younger."""
    listed = [*offsets]
    count = len(listed)
    columns = [
        pa.array([b"key-%d" % offset for offset in listed], pa.binary()),
        pa.array([value % offset if b"%" in value else value for offset in listed], pa.binary()),
        pa.array([topic] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
        pa.array(listed, pa.int64()),
        pa.array([offset * step_us for offset in listed], KAFKA_SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.array([[] for _ in listed], KAFKA_SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KAFKA_SCHEMA)


def run_tasks(
    table: TableTarget,
    of: JobPlan,
    values: ValueDecoder | None = None,
    value: bytes = b"value-%d",
) -> PlanResult:
    """Write all that the ranges of the plan have."""
    values = values or RawValues()
    known = table.job()
    time_partition = "none" if known is None else known.time_partition
    place = table.staging(of)
    files = []
    for wanted in of.ranges:
        writer = PieceWriter(place, wanted)
        offsets = range(wanted.start, wanted.end)
        batch = records(offsets, partition=wanted.partition, topic=wanted.topic, value=value)
        writer.add(rows_of(batch, values, time_partition).rows)
        files += writer.close()[0]
    schema = table_schema(values, time_partition)
    return PlanResult(tuple(files), bad=0, committed_ms=1_795_478_399_999, schema=schema)


def fill(table: TableTarget, of: JobPlan, values: ValueDecoder | None = None) -> None:
    """Run a plan from beginning to end."""
    table.prepare(of)
    table.commit(of, run_tasks(table, of, values))


def offsets_in(table: TableTarget, wanted: PartitionRange | None = None) -> list[int]:
    """Offsets of all rows, sorted."""
    found = [
        offset
        for batch in table.scan(["kafka_offset"], wanted)
        for offset in batch.column("kafka_offset").to_pylist()
    ]
    return sorted(found)
