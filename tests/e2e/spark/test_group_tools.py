"""Apache Kafka's kafka-consumer-groups looks at a job: its group, its lag, and that lag 0 is
reached."""

from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.offload_job import OffloadJob, job_settings
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.kafka_tools import TOOLS
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools())


def consumer_groups(broker: EmbeddedBroker, folder: Path, *arguments: str) -> list[list[str]]:
    """The words of each line that the tool prints."""
    tool = TOOLS["kafka-consumer-groups"]
    ran = run_java_tool(
        tool.main, tool.server, broker.bootstrap_servers, *arguments, directory=folder
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line.split() for line in ran.stdout.splitlines() if line.strip()]


def test_kafka_consumer_groups_shows_the_job_and_reaches_lag_0(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = f"groups-{uuid4().hex[:8]}"
    records = TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})
    records.create(topic, 2)
    settings = job_settings(kafka_broker.bootstrap_servers, tmp_path / "lake")
    job = OffloadJob({**settings, "name": topic, "topics": topic})
    group = f"pipe.{topic}"

    def described() -> dict[int, tuple[str, str, str]]:
        """Committed offset, end and lag of each partition."""
        header, *rows = consumer_groups(kafka_broker, tmp_path, "--describe", "--group", group)
        assert " ".join(header).startswith(
            "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG"
        )
        assert {tuple(row[:2]) for row in rows} == {(group, topic)}
        return {int(row[2]): (row[3], row[4], row[5]) for row in rows}

    records.send(topic, [b"v"] * 10, partition=1)
    assert job.once().exit_code == 0
    assert [group] in consumer_groups(kafka_broker, tmp_path, "--list")
    assert described() == {0: ("0", "0", "0"), 1: ("10", "10", "0")}
    records.send(topic, [b"v"] * 7, partition=0)
    records.abort(f"of-{topic}", topic, [b"v"] * 3)
    # The marker is an offset, too.
    assert described() == {0: ("0", "11", "11"), 1: ("10", "10", "0")}
    assert job.once().exit_code == 0
    assert described() == {0: ("11", "11", "0"), 1: ("10", "10", "0")}
