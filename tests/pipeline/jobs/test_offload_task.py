"""A task without Spark: records become staged files, and failures are results."""

from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from pyspark.cloudpickle import dumps, loads

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.jobs.offload_task import OffloadTasks, TaskReport
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.staging import StagingPlace, read_bad
from odradek.pipeline.values.value_format import value_format
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.e2e

VALUES = value_format("json", schema="id BIGINT")


def tasks(
    bootstrap: str, folder: Path, *pieces: tuple[PartitionRange, ...], timeout_ms: int = 30_000
) -> OffloadTasks:
    return OffloadTasks(
        bootstrap_servers=bootstrap,
        kafka={"default.api.timeout.ms": str(timeout_ms)},
        values=VALUES,
        place=StagingPlace(str(folder), 1, "kafka_date", is_time_in_file=False),
        time_partition="date",
        pieces=pieces,
    )


def test_a_task_moves_its_pieces(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    records = TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})
    records.create(topic, 2)
    records.send(topic, [b'{"id": %d}' % number for number in range(10)])
    records.send(topic, [b'{"id": 100}', b"{", None], partition=1)
    wanted = PartitionRange(topic, "", 0, 2, 9), PartitionRange(topic, "", 1, 0, 3)
    made = tasks(kafka_broker.bootstrap_servers, tmp_path, (), wanted)
    # As Spark sends it, and as the driver gets the answer.
    sent = loads(dumps(made))
    report = TaskReport.from_json(sent.run(1))
    assert (report.error, report.rows, report.bad) == ("", 10, 1)
    assert report.bytes > 0
    ids = [
        number
        for file in report.files
        for number in pq.read_table(tmp_path / file.path, partitioning=None)
        .column("id")
        .to_pylist()
    ]
    assert ids == [2, 3, 4, 5, 6, 7, 8, 100, None]
    (bad,) = [bad for name in report.bad_files for bad in read_bad(made.place, name)]
    assert (bad.partition, bad.offset, bad.value) == (1, 1, b"{")
    assert TaskReport.from_json(sent.run(0)) == TaskReport()


def test_a_failure_is_one_line(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    piece = (PartitionRange(topic, "", 0, 0, 1),)
    report = TaskReport.from_json(tasks("127.0.0.1:1", tmp_path, piece, timeout_ms=300).run(0))
    assert "127.0.0.1:1" in report.error
    records = TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})
    records.create(topic)
    records.send(topic, [b'{"id": 1}'])
    (tmp_path / "file").write_text("")
    made = tasks(kafka_broker.bootstrap_servers, tmp_path / "file" / "staging", piece)
    report = TaskReport.from_json(made.run(0))
    assert "staging cannot be written: " in report.error
    assert "\n" not in report.error
