"""Marks in the metadata of committed offsets, against a real node."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.sink.batch_marks import BatchMark, check_whole_batch, last_mark, mark_of

MARK = BatchMark(query="q", run="r", batch=7, task=2, rows=3, checksum="00ff")


def with_mark(**changes: object) -> BatchMark:
    fields = {"query": "q", "run": "r", "batch": 7, "task": 2, "rows": 3, "checksum": "00ff"}
    return BatchMark(**{**fields, **changes})  # type: ignore[arg-type]  # fields of the test


def test_a_mark_is_read_as_it_was_written() -> None:
    assert mark_of(MARK.text()) == MARK
    # Kafka's default of offset.metadata.max.bytes is 4096.
    assert len(MARK.text()) < 300


@pytest.mark.parametrize("text", ["", "7", "{}", "null", '{"odradek.sink":2}', "[1]", "not json"])
def test_metadata_of_others_is_no_mark(text: str) -> None:
    assert mark_of(text) is None


def test_the_newest_mark_of_the_query_counts(kafka_broker: EmbeddedBroker) -> None:
    properties = client_properties({}, bootstrap_servers=kafka_broker.bootstrap_servers)
    for topic in ("marks-a", "marks-b", "marks-c"):
        kafka_broker.create_topic(topic)
    consumer = Consumer({**properties, "group.id": "marks-2"})
    marks = {
        "marks-a": MARK,
        "marks-b": with_mark(batch=8),
        "marks-c": with_mark(query="other", batch=9),
    }
    consumer.commit(
        offsets=[
            TopicPartition(topic, 0, mark.batch, mark.text()) for topic, mark in marks.items()
        ],
        asynchronous=False,
    )
    consumer.close()
    assert last_mark(properties, "marks-2", "q", timeout_s=30) == with_mark(batch=8)
    assert last_mark(properties, "marks-2", "none", timeout_s=30) is None
    assert last_mark(properties, "marks-3", "q", timeout_s=30) is None


def test_a_batch_with_the_same_rows_in_each_task_is_whole() -> None:
    others = {0: with_mark(task=0, rows=5), 2: with_mark(run="later")}
    check_whole_batch([MARK], others)
    check_whole_batch([], others)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({0: with_mark(task=0)}, "none"),
        ({2: with_mark(rows=0, checksum="0")}, "0"),
        ({2: with_mark(checksum="0100")}, "3"),
    ],
)
def test_a_batch_with_other_tasks_or_rows_is_told(
    written: dict[int, BatchMark], found: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        check_whole_batch([MARK], written)
    text = str(refused.value)
    assert text.startswith("batch 7 of query q is not the same as before the restart: task 2 has")
    assert f"now has other rows ({found})" in text
    assert "Restart it with the plan it had" in text
