"""What the sink tells Spark, and the driver's part of a commit, against a real node.

With Spark itself it runs in tests/e2e/spark/test_sink.py.
"""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructType

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.sink.sink_options import sink_options
from odradek.pipeline.sink.task_writer import TaskName, write_task
from odradek.pipeline.sink.writers import (
    BatchWriter,
    StreamWriter,
    TaskCommitted,
    batch_writer,
    stream_writer,
)

SCHEMA = StructType().add("value", StringType())
NOWHERE = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.fixture
def options(kafka_broker: EmbeddedBroker) -> dict[str, str]:
    topic = f"writers-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic)
    return {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "topic": topic}


def rows_of(*values: str) -> Iterator[pa.RecordBatch]:
    if values:
        yield pa.record_batch({"value": pa.array(values)})


def written(
    options: dict[str, str], task: int, *values: str, batch: int = 0, run: str = "first"
) -> TaskCommitted:
    """As StreamWriter.write returns it, with a context of Spark's."""
    name = TaskName(prefix=options["topic"], query="q", run=run, batch=batch, task=task)
    return TaskCommitted(name, write_task(name, sink_options(options), rows_of(*values)))


def test_options_and_schema_are_checked_on_the_driver() -> None:
    assert isinstance(stream_writer(SCHEMA, NOWHERE, False), StreamWriter)
    assert isinstance(batch_writer(SCHEMA, NOWHERE, False), BatchWriter)
    without_value = StructType().add("number", IntegerType())
    for writer in (stream_writer, batch_writer):
        with pytest.raises(PipelineError, match="no column value"):
            writer(without_value, NOWHERE, False)
        with pytest.raises(PipelineError, match="topik is unknown"):
            writer(SCHEMA, {**NOWHERE, "topik": "t"}, False)


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(PipelineError, match=r"use mode\('append'\)"):
        batch_writer(SCHEMA, NOWHERE, True)


def test_a_stream_in_complete_mode_appends_each_batch() -> None:
    assert isinstance(stream_writer(SCHEMA, NOWHERE, True), StreamWriter)


def test_it_writes_in_tasks_of_spark_only() -> None:
    with pytest.raises(PipelineError, match="in Spark's tasks only"):
        stream_writer(SCHEMA, NOWHERE, False).write(iter(()))


def test_a_batch_that_runs_again_as_it_was_is_committed(options: dict[str, str]) -> None:
    writer = stream_writer(SCHEMA, options, False)
    written(options, 1, "b")
    again = [written(options, 0, "a", run="second"), written(options, 1, "b", run="second")]
    writer.commit([*again, written(options, 2, run="second")], 0)


@pytest.mark.parametrize("values", [None, ()])
def test_a_batch_that_lost_a_committed_task_is_refused(
    options: dict[str, str], values: tuple[str, ...] | None
) -> None:
    """No task can see it: task 1 is not there any more, or has no rows."""
    writer = stream_writer(SCHEMA, options, False)
    written(options, 1, "b")
    again: list[WriterCommitMessage | None] = [written(options, 0, "a", "b", run="second")]
    if values is not None:
        again.append(written(options, 1, *values, run="second"))
    with pytest.raises(PipelineError, match=r"batch 0 of query q is not the same .* task 1 has"):
        writer.commit(again, 0)


def test_fewer_tasks_in_a_later_batch_are_nothing_wrong(options: dict[str, str]) -> None:
    writer = stream_writer(SCHEMA, options, False)
    writer.commit([written(options, 0, "a"), written(options, 1, "b")], 0)
    writer.commit([written(options, 0, "c", batch=1)], 1)
    writer.commit([written(options, 0, "d", batch=2, run="second")], 2)


def test_marks_of_other_prefixes_are_not_of_the_query(options: dict[str, str]) -> None:
    writer = stream_writer(SCHEMA, options, False)
    written({**options, "topic": options["topic"]}, 0, "a")
    other = TaskName(prefix=f"{options['topic']}-other", query="q", run="r", batch=0, task=5)
    write_task(other, sink_options(options), rows_of("x"))
    writer.commit([written(options, 0, "a", run="second")], 0)


def test_an_aborted_batch_needs_nothing(options: dict[str, str]) -> None:
    stream_writer(SCHEMA, options, False).abort([None, written(options, 0, "a")], 0)


def test_a_written_dataframe_leaves_no_groups(
    kafka_broker: EmbeddedBroker, options: dict[str, str]
) -> None:
    message = written(options, 0, "a")
    batch_writer(SCHEMA, options, False).commit([message, written(options, 1)])
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert not [group for group in groups if group.startswith(options["topic"])]
