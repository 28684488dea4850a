"""`upsert`: a compacted or a Debezium topic becomes a Delta table with a row for each key.

Without Spark: a plan's changes are reduced to the last one of each key while they are read, and
merged in one version of the table. Plans, their numbers and the lock are those of other tables
(tables/job_folder.py): a plan runs again after a crash as it was, and no step of it is done twice.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.jobs.change_events import (
    IS_DELETE,
    CompactedChanges,
    DebeziumJson,
    DebeziumRecords,
)
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.jobs.job_options import JobOptions
from odradek.pipeline.jobs.offload import job_values
from odradek.pipeline.jobs.offload_plan import PartitionProgress, next_ranges
from odradek.pipeline.jobs.setting_names import UPSERT_VALUES
from odradek.pipeline.jobs.topic_progress import topic_progress
from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.tables.delta_merge import KEY, DeltaMerge, MergeCounts
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import JobCommit, JobPlan, PlanResult, TableJob, commit_of
from odradek.pipeline.tables.rows import BadRecord, rows_of, table_schema
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.wire.partition_reader import read_partition

ENVELOPES: Final = ("none", "debezium")
ROWS_MAX: Final = 1_000_000
"""Of a plan: the last change of each of its keys is in memory."""
REDUCE_ROWS: Final = 100_000
"""Changes that are held before they are reduced to the last one of each key."""


@dataclass(frozen=True, slots=True)
class UpsertProgress:
    """A plan that was committed."""

    plan: int
    records: int
    bad: int
    counts: MergeCounts
    seconds: float

    def to_text(self) -> str:
        """One line."""
        bad = f", {self.bad} bad" if self.bad else ""
        return (
            f"plan {self.plan}: {self.records} records{bad}, {self.counts.inserted} rows inserted,"
            f" {self.counts.updated} updated, {self.counts.deleted} deleted"
            f" in {self.seconds:.1f} s"
        )


def change_values(options: JobOptions, envelope: str) -> ValueDecoder:
    """How values become changes; PipelineError if they cannot."""
    if envelope not in ENVELOPES:
        raise PipelineError(f"envelope is {envelope!r}: take one of {', '.join(ENVELOPES)}")
    if envelope == "none":
        return CompactedChanges(job_values(options))
    if options.value_format == "json":
        if options.value_schema is None:
            raise PipelineError("envelope debezium needs value.schema, that of the row")
        return DebeziumJson(
            options.value_schema, has_wire_format=options.value_registry is not None
        )
    if options.value_format == "raw":
        raise PipelineError("envelope debezium needs value.format json, avro or protobuf")
    return DebeziumRecords(job_values(options))


class Upsert:
    """A running upsert: the only writer of its table."""

    def __init__(
        self, options: JobOptions, envelope: str, told: Callable[[UpsertProgress], None]
    ) -> None:
        """Claims the table. PipelineError if table, topic or options do not fit."""
        if len(options.topics) != 1:
            raise PipelineError("upsert takes one topic: keys of several may be the same")
        self._options = options
        self._told = told
        self._values = change_values(options, envelope)
        self._schema = table_schema(self._values, "none")
        self._properties = client_properties(
            options.kafka, bootstrap_servers=options.bootstrap_servers
        )
        self._timeout_s = timeout_s(options.kafka)
        self._folder = JobFolder(TableFolder(options.table))
        self._table = DeltaMerge(options.table, options.table_options)
        with ExitStack() as opening:
            self._cluster = opening.enter_context(
                open_cluster(options.bootstrap_servers, options.kafka)
            )
            # Before the table is made: a name that is wrong leaves nothing behind.
            topic_progress(self._cluster, options, self._last_commit())
            opening.callback(self._folder.unlock)
            self._claim(f"{UPSERT_VALUES}{options.value_format} {envelope}")
            self._commit_group(self._last_commit())
            self._closing = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.close()

    def run_once(self, stop: Event) -> int:
        """Merge all that the topic has now, in as many plans as needed; how many plans."""
        plans = 0
        pending = self._folder.read_plan(self._folder.last_number() + 1)
        if pending is not None and not stop.is_set():
            self._run(pending)
            plans += 1
        progress = topic_progress(self._cluster, self._options, self._last_commit())
        ends = {name: at.end for name, at in progress.items()}
        while not stop.is_set():
            found = topic_progress(self._cluster, self._options, self._last_commit())
            # Records that come meanwhile are for the next time.
            bounded = {
                name: PartitionProgress(at.topic_id, at.position, min(at.end, ends.get(name, 0)))
                for name, at in found.items()
            }
            number = self._folder.last_number() + 1
            ranges = next_ranges(
                bounded, min(self._options.rows_per_trigger, ROWS_MAX), is_first=number == 1
            )
            if not ranges:
                break
            self._run(JobPlan(self._options.name, number, ranges))
            plans += 1
        return plans

    def run_every(self, seconds: float, stop: Event) -> None:
        """Like `run_once` again and again, so many seconds after each beginning, until `stop`."""
        while not stop.is_set():
            began = time.monotonic()
            self.run_once(stop)
            stop.wait(max(0.0, began + seconds - time.monotonic()))

    def _claim(self, values: str) -> None:
        job = TableJob(
            name=self._options.name,
            topics=self._options.topics,
            topic_pattern="",
            format="delta",
            value_format=values,
            time_partition="none",
        )
        known = self._folder.job()
        if known is not None and known != job:
            raise PipelineError(
                f"table {self._options.table} is of the job {known.name} ({known.value_format} of"
                f" {','.join(known.topics)}): choose another table, or go back to its options"
            )
        self._folder.lock()
        if known is None:
            self._folder.write_job(job)
        prepared = self._folder.prepared_commit()
        if prepared is not None:
            # The merge was done before this was written.
            self._folder.finish_commit(prepared[0])

    def _last_commit(self) -> JobCommit | None:
        number = self._folder.last_number()
        return self._folder.read_commit(number)[0] if number else None

    def _run(self, plan: JobPlan) -> None:
        began = time.monotonic()
        self._folder.write_plan(plan)
        changes = LastChanges(self._schema)
        bad: list[BadRecord] = []
        records = 0
        for wanted in plan.ranges:
            records += self._read(wanted, changes, bad)
        if bad:
            self._send_bad(plan, bad)
        committed_ms = time.time_ns() // 1_000_000
        counts = self._table.merge(plan.job, plan.number, changes.result(), IS_DELETE, committed_ms)
        schema = self._schema.remove(self._schema.get_field_index(IS_DELETE))
        result = PlanResult((), len(bad), committed_ms, schema)
        commit = commit_of(plan, result, self._last_commit())
        self._folder.write_prepared(commit, schema)
        self._folder.finish_commit(commit)
        self._commit_group(commit)
        self._told(UpsertProgress(plan.number, records, len(bad), counts, time.monotonic() - began))

    def _read(self, wanted: PartitionRange, changes: "LastChanges", bad: list[BadRecord]) -> int:
        if wanted.start == wanted.end:
            return 0
        records = 0
        for batch in read_partition(self._cluster, wanted):
            records += len(batch)
            made = rows_of(batch, self._values, "none")
            bad += made.bad
            changes.add(made.rows)
            bad += _without_key(batch, made.bad)
        changes.end_partition()
        return records

    def _send_bad(self, plan: JobPlan, bad: list[BadRecord]) -> None:
        with DeadLetterSender(
            self._properties,
            self._options.group,
            self._options.dead_letter_topic,
            timeout_s=self._timeout_s,
        ) as sender:
            sender.send(plan.number, bad)

    def _commit_group(self, commit: JobCommit | None) -> None:
        if commit is not None:
            commit_offsets(
                self._properties, self._options.group, commit.ends, timeout_s=self._timeout_s
            )


class LastChanges:
    """The last change of each key: of a partition by offset, then of all by time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._done = [schema.empty_table()]
        self._held: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Rows of a partition, in offset order. Those without a key are left out."""
        self._held.append(rows.filter(pc.is_valid(rows.column(KEY))))
        self._rows += len(self._held[-1])
        if self._rows >= REDUCE_ROWS:
            self._held = [_last_of_keys(pa.concat_tables(self._held))]
            # So that many keys are not reduced again and again.
            self._rows = 0

    def end_partition(self) -> None:
        """What follows is of another partition."""
        if self._held:
            self._done.append(_last_of_keys(pa.concat_tables(self._held)))
        self._held, self._rows = [], 0

    def result(self) -> pa.Table:
        """One row for each key."""
        rows = pa.concat_tables(self._done)
        return _last_of_keys(rows.take(pc.sort_indices(rows.column("kafka_timestamp"))))


def _last_of_keys(rows: pa.Table) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    places = pa.table({KEY: rows.column(KEY), "place": pa.array(range(len(rows)), pa.int64())})
    last = places.group_by(KEY).aggregate([("place", "max")]).column("place_max")
    return rows.take(last.take(pc.sort_indices(last)))


def _without_key(batch: pa.RecordBatch, known: tuple[BadRecord, ...]) -> list[BadRecord]:
    """Records that have no key, but for those that are bad for another reason."""
    rows = batch.filter(pc.is_null(batch.column("key")))
    if not len(rows):
        return []
    bad = {each.offset for each in known}
    times = pc.fill_null(rows.column("timestamp").cast(pa.int64()), 0).to_pylist()
    return [
        BadRecord(
            topic=row["topic"],
            partition=row["partition"],
            offset=row["offset"],
            timestamp_ms=time_us // 1000,
            reason="it has no key, so it changes no row",
            key=None,
            value=row["value"],
            headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for row, time_us in zip(rows.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
        if row["offset"] not in bad
    ]
