"""`offload`: topics become a table, exactly once.

A plan is written into the table's folder, Spark's tasks write files, bad records go to the
dead-letter topic in one transaction, the table's commit makes the files visible, and last the
offsets are committed to the job's group, for people and for the broker's retention gate. The table
is the truth: whatever is killed at whatever point, the next start runs the same plan again, and
each step skips a plan that it has.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Event
from types import TracebackType
from typing import Self

from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.jobs.job_metrics import TriggerProgress
from odradek.pipeline.jobs.job_options import JobOptions
from odradek.pipeline.jobs.offload_plan import PartitionProgress, next_ranges, task_pieces
from odradek.pipeline.jobs.offload_task import OffloadTasks, TaskReport, disk_error
from odradek.pipeline.jobs.spark_driver import SparkDriver
from odradek.pipeline.jobs.topic_progress import topic_progress, without_lost
from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.tables.job_plan import JobCommit, JobPlan, PlanResult, TableJob
from odradek.pipeline.tables.rows import table_schema
from odradek.pipeline.tables.staging import read_bad
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.value_format import ValueDecoder, value_format

ROW_BYTES_GUESS = 1000
"""Of a record, before any was seen: `bytes.per.trigger` counts with the average since."""


def table_job(options: JobOptions) -> TableJob:
    """What the options say that may not change."""
    return TableJob(
        name=options.name,
        topics=tuple(sorted(options.topics)),
        topic_pattern=options.topic_pattern,
        format=options.format,
        value_format=options.value_format,
        time_partition=options.time_partition,
    )


def job_values(options: JobOptions) -> ValueDecoder:
    """The format of values; the subject in a registry is that of the only topic by default."""
    subject = options.value_subject
    if subject is None and len(options.topics) == 1:
        subject = f"{options.topics[0]}-value"
    return value_format(
        options.value_format,
        schema=options.value_schema,
        message=options.value_message,
        registry_url=options.value_registry,
        subject=subject,
    )


class Offload:
    """A running job: the only writer of its table."""

    def __init__(
        self,
        options: JobOptions,
        told: Callable[[TriggerProgress], None],
        told_lags: Callable[[Mapping[PartitionName, int]], None] = lambda lags: None,
    ) -> None:
        """Claims the table, and finishes what an earlier process left; Spark starts when there is
        something to move. PipelineError if table, topics or options do not fit."""
        self._options = options
        self._told = told
        self._told_lags = told_lags
        self._row_bytes: float = ROW_BYTES_GUESS
        self._values = job_values(options)
        self._schema = table_schema(self._values, options.time_partition)
        self._properties = client_properties(
            options.kafka, bootstrap_servers=options.bootstrap_servers
        )
        self._timeout_s = timeout_s(options.kafka)
        self._sender: DeadLetterSender | None = None
        with ExitStack() as opening:
            self._cluster = opening.enter_context(
                open_cluster(options.bootstrap_servers, options.kafka)
            )
            # Before the table is made: a name that is wrong leaves nothing behind.
            topic_progress(self._cluster, options, self._opened_table().last_commit())
            opening.callback(self._table.close)
            self._table.claim(table_job(options))
            self._table.check_schema(self._schema)
            self._spark = opening.enter_context(
                SparkDriver(f"odradek offload {options.name}", options.master, options.spark)
            )
            if self._needs_sender():
                self._sender = opening.enter_context(
                    DeadLetterSender(
                        self._properties,
                        options.group,
                        options.dead_letter_topic,
                        timeout_s=self._timeout_s,
                    )
                )
            # An earlier process may have been killed between the table's commit and this one.
            self._commit_group(self._table.last_commit())
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
        """Move all that the cluster has now, in as many plans as the limits say; how many plans.

        Returns early, after the current plan, when `stop` is set.
        """
        plans = 0
        pending = self._table.pending()
        if pending is not None and not stop.is_set():
            self._run_again(pending)
            plans += 1
        ends = {name: at.end for name, at in self._progress().items()}
        while not stop.is_set():
            progress = self._progress()
            # Records that come meanwhile are for the next time.
            bounded = {
                name: PartitionProgress(at.topic_id, at.position, min(at.end, ends.get(name, 0)))
                for name, at in progress.items()
            }
            is_first = self._table.last_commit() is None
            ranges = next_ranges(bounded, self._rows_max(), is_first=is_first)
            if not ranges:
                break
            self._run(JobPlan(self._options.name, self._next_number(), ranges), progress)
            plans += 1
        return plans

    def run_every(self, seconds: float, stop: Event) -> None:
        """Like `run_once` again and again, so many seconds after each beginning, until `stop`."""
        while not stop.is_set():
            began = time.monotonic()
            self.run_once(stop)
            stop.wait(max(0.0, began + seconds - time.monotonic()))

    def _opened_table(self) -> TableTarget:
        options = self._options
        self._table = open_table(options.format, options.table, options.table_options)
        return self._table

    def _needs_sender(self) -> bool:
        """Raw values are never bad. Where no lock holds, transactions tell writers apart."""
        return self._options.value_format != "raw" or "://" in self._options.table

    def _progress(self) -> dict[PartitionName, PartitionProgress]:
        found = topic_progress(self._cluster, self._options, self._table.last_commit())
        self._told_lags(_lags(found))
        return found

    def _rows_max(self) -> int:
        limit = self._options.bytes_per_trigger
        if limit is None:
            return self._options.rows_per_trigger
        return max(1, min(self._options.rows_per_trigger, int(limit / self._row_bytes)))

    def _next_number(self) -> int:
        last = self._table.last_commit()
        return 1 if last is None else last.number + 1

    def _run_again(self, plan: JobPlan) -> None:
        """A plan that was prepared and not committed, as it is."""
        progress = self._progress()
        for each in plan.ranges:
            at = progress.get(each.name)
            if at is None:
                raise PipelineError(
                    f"{each.name} does not exist any more, and plan {plan.number}"
                    " has records of it: restore the topic, or fill a new table"
                )
            if each.topic_id and at.topic_id != each.topic_id:
                raise TopicRecreated(
                    f"topic {each.topic} was deleted and created again: its new records belong into"
                    " a new table, by a job with a new name"
                )
        ranges = without_lost(self._cluster, self._options, plan.ranges)
        self._run(JobPlan(plan.job, plan.number, ranges), progress)

    def _run(self, plan: JobPlan, progress: Mapping[PartitionName, PartitionProgress]) -> None:
        began = time.monotonic()
        try:
            self._table.prepare(plan)
            reports = self._run_tasks(plan)
            self._send_bad(plan, reports)
            result = PlanResult(
                files=tuple(file for report in reports for file in report.files),
                bad=sum(report.bad for report in reports),
                committed_ms=time.time_ns() // 1_000_000,
                schema=self._schema,
            )
            commit = self._table.commit(plan, result)
        except (PipelineError, OSError) as error:
            self._discard_staging()
            if isinstance(error, PipelineError):
                raise
            raise PipelineError(disk_error(error, self._options.table)) from error
        self._commit_group(commit)
        records = sum(report.rows for report in reports)
        size = sum(report.bytes for report in reports)
        if records:
            self._row_bytes = size / records
        lags = _lags(progress) | {
            each.name: max(0, progress[each.name].end - each.end) for each in plan.ranges
        }
        self._told(
            TriggerProgress(
                job=plan.job,
                plan=plan.number,
                records=records,
                bad=commit.bad,
                bytes=size,
                seconds=time.monotonic() - began,
                committed_ms=commit.committed_ms,
                lags=lags,
            )
        )

    def _run_tasks(self, plan: JobPlan) -> list[TaskReport]:
        if all(each.start == each.end for each in plan.ranges):
            return []
        pieces = task_pieces(plan.ranges, self._spark.parallelism())
        tasks = OffloadTasks(
            bootstrap_servers=self._options.bootstrap_servers,
            kafka=dict(self._options.kafka),
            values=self._values,
            place=self._table.staging(plan),
            time_partition=self._options.time_partition,
            pieces=pieces,
        )
        reports = [TaskReport.from_json(text) for text in self._spark.run(len(pieces), tasks.run)]
        failed = [report.error for report in reports if report.error]
        if failed:
            raise PipelineError(failed[0])
        return reports

    def _send_bad(self, plan: JobPlan, reports: list[TaskReport]) -> None:
        if self._sender is None:
            return
        place = self._table.staging(plan)
        names = [name for report in reports for name in report.bad_files]
        self._sender.send(
            plan.number, (record for name in names for record in read_bad(place, name))
        )

    def _commit_group(self, commit: JobCommit | None) -> None:
        if commit is not None:
            commit_offsets(
                self._properties, self._options.group, commit.ends, timeout_s=self._timeout_s
            )

    def _discard_staging(self) -> None:
        """So that a full disk has room again; a disk that is broken says so by the first error."""
        try:
            self._table.discard_staging()
        except OSError:
            return


def _lags(progress: Mapping[PartitionName, PartitionProgress]) -> dict[PartitionName, int]:
    return {name: max(0, at.end - at.position) for name, at in progress.items()}
