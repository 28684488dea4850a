"""A job's table is verified by the job's own options; tests/pipeline/cli plays the command."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.job_options import job_options
from odradek.pipeline.jobs.partition_comparison import PartitionReport
from odradek.pipeline.jobs.verify_job import verify_job
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.offloaded_tables import OffloadedTable
from tests.support.topic_records import TopicRecords


@pytest.fixture
def made(kafka_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[OffloadedTable]:
    """Three records in a Delta table."""
    topic = f"verify-job-{uuid4().hex[:12]}"
    records = TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})
    records.create(topic)
    records.send(topic, [b"a", None, b"c"])
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        table = OffloadedTable(tmp_path / "table", cluster, topic, kind="delta")
        table.offload()
        yield table


def _settings(made: OffloadedTable, broker: EmbeddedBroker, **more: str) -> dict[str, str]:
    settings = {
        "name": made.job,
        "topics": made.topic,
        "table": str(made.folder),
        "format": "delta",
        "bootstrap.servers": str(broker.bootstrap_servers),
    }
    return settings | {name.replace("_", "."): value for name, value in more.items()}


def test_a_table_is_verified_while_its_job_has_the_lock(
    kafka_broker: EmbeddedBroker, made: OffloadedTable
) -> None:
    told: list[PartitionReport] = []

    report = verify_job(job_options(_settings(made, kafka_broker)), told.append)

    assert report.is_proven
    assert [(each.partition, each.records, each.rows) for each in told] == [(0, 3, 3)]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("name", "other", "made with name job-.* and not other"),
        ("topics", "other", r"made with topics verify-job-.* and not other"),
        ("format", "parquet", "made with format delta and not parquet"),
        ("value_format", "avro", r"made with value\.format raw and not avro"),
        ("time_partition", "hour", r"made with time\.partition date and not hour"),
    ],
)
def test_options_that_are_not_the_jobs_are_told(
    kafka_broker: EmbeddedBroker, made: OffloadedTable, name: str, value: str, text: str
) -> None:
    options = job_options(_settings(made, kafka_broker, **{name: value}))

    with pytest.raises(PipelineError, match=text):
        verify_job(options, lambda report: None)
