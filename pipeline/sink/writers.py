"""Spark's face of the sink: writers of a stream's batches and of a DataFrame.

A stream is exactly once: each task commits the rows of its partition of the DataFrame in one
transaction, whose mark (batch_marks.py) says which batch it was. Transactional ids and groups are
`<prefix>-<task>`; the prefix is the option `transactionalIdPrefix`, or `odradek-` and the id that
Spark keeps in the query's checkpoint. It is not the query's name: a name may be given to another
query, and a new name would not know what was committed. Records become visible task by task, so a
reader can see a part of a batch.

After a restart Spark runs the last batch again if it does not know that it was complete. Tasks
whose mark is there send nothing. That is right only if the same task has the same rows again, so
each compares what it has with the mark, and the driver compares all of them before Spark's commit.
The marks expire with the cluster's offsets.retention.minutes (7 days).

A DataFrame is written in one transaction a task, too, under ids that are used once: a task that
runs twice writes once, and a job that fails leaves the tasks that were complete. That is also what
`foreachBatch` gets: a batch that Spark runs again is written again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.librdkafka import open_client
from odradek.pipeline.sink.batch_marks import BatchMark, check_whole_batch, last_mark
from odradek.pipeline.sink.sink_columns import check_columns
from odradek.pipeline.sink.sink_options import SinkOptions, sink_options
from odradek.pipeline.sink.task_writer import TaskName, TaskResult, write_task

# Spark's properties of a task: StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY, and
# the group of its jobs, which is the id of the run.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
_EXECUTION_ID: Final = "spark.sql.execution.query.id"


@dataclass(frozen=True)
class TaskCommitted(WriterCommitMessage):
    """What a task tells the driver."""

    name: TaskName
    result: TaskResult


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """For `DataSource.streamWriter`. Any output mode is taken, as by the stock connector: each
    batch is appended. PipelineError if schema or options are wrong."""
    del overwrite
    return StreamWriter(_checked(schema, options))


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """For `DataSource.writer`. PipelineError if schema or options are wrong."""
    if overwrite:
        raise PipelineError(
            "a topic cannot be overwritten: use mode('append'), or delete its records before"
        )
    return BatchWriter(_checked(schema, options))


def _checked(schema: StructType, options: Mapping[str, str]) -> SinkOptions:
    found = sink_options(options)
    check_columns(schema, has_topic=found.topic is not None, keeps_timestamp=found.keeps_timestamp)
    return found


class StreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver for each batch, and sent to its tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: the rows of one task."""
        context = _task_context()
        query = _property_of(context, _QUERY_ID)
        name = TaskName(
            prefix=self._options.prefix or f"odradek-{query}",
            query=query,
            run=_property_of(context, _RUN_ID),
            batch=int(_property_of(context, _BATCH_ID)),
            task=context.partitionId(),
        )
        return TaskCommitted(name, write_task(name, self._options, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, before Spark writes that the batch is complete. The first batch of a run
        may be one that an earlier run has begun."""
        done = [each for each in messages if isinstance(each, TaskCommitted)]
        if not done or any(_is_later_batch_of_run(each) for each in done):
            return
        name = done[0].name
        written = {each.name.task: each.result.mark for each in done}
        check_whole_batch(self._marks(name.prefix, name.query, batchId), written)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: tasks that are complete stay so, and are skipped when the batch runs
        again; the others have aborted."""

    def _marks(self, prefix: str, query: str, batch: int) -> list[BatchMark]:
        """The marks of a batch, of whichever tasks."""
        properties = self._options.properties
        admin = open_client(AdminClient, properties)
        try:
            listed = (
                admin.list_consumer_groups(request_timeout=self._options.timeout_s).result().valid
                or []
            )
        except KafkaException as error:
            raise PipelineError(
                f"cannot list the groups {prefix}-* with the marks of batch {batch}:"
                f" {error.args[0].str()}"
            ) from error
        groups = [each.group_id for each in listed if _is_of_task(each.group_id, prefix)]
        marks = (
            last_mark(properties, each, query, timeout_s=self._options.timeout_s) for each in groups
        )
        return [mark for mark in marks if mark is not None and mark.batch == batch]


def _is_of_task(group: str, prefix: str) -> bool:
    return group.startswith(f"{prefix}-") and group.removeprefix(f"{prefix}-").isdecimal()


def _is_later_batch_of_run(message: TaskCommitted) -> bool:
    """Whether the task has seen that this run has committed a batch before: Spark runs a batch
    again only at the start of a run."""
    earlier = message.result.earlier
    return (
        earlier is not None
        and earlier.run == message.name.run
        and earlier.batch < message.name.batch
    )


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver for one job, and sent to its tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: the rows of one task."""
        context = _task_context()
        execution = _property_of(context, _EXECUTION_ID)
        name = TaskName(
            prefix=f"{self._options.prefix or 'odradek'}-batch-{execution}",
            query=execution,
            run=execution,
            batch=0,
            task=context.partitionId(),
        )
        return TaskCommitted(name, write_task(name, self._options, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: no task runs again, so their groups are deleted."""
        self._forget(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: what complete tasks have written stays."""
        self._forget(messages)

    def _forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        groups = [
            each.name.transactional_id
            for each in messages
            if isinstance(each, TaskCommitted) and each.result.mark.rows
        ]
        if not groups:
            return
        admin = open_client(AdminClient, self._options.properties)
        for deleted in admin.delete_consumer_groups(
            groups, request_timeout=self._options.timeout_s
        ).values():
            try:
                deleted.result()
            except KafkaException:
                # Without the right to delete groups they expire with their offsets.
                continue


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("the sink writes in Spark's tasks only")
    return context


def _property_of(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise PipelineError(f"Spark does not tell {name} to its tasks: use pyspark 4.2")
    return value
