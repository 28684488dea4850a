"""`odradek pipe offload` on real Sparks: what is in the topic is in the table, read by others."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.offload_job import (
    OffloadJob,
    environment,
    job_settings,
    read_by_others,
    verify,
)
from tests.support.ports import free_port
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*"),
]

SCHEMA = "id BIGINT, name STRING"


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(records: TopicRecords) -> str:
    """With three partitions."""
    name = f"orders-{uuid4().hex[:8]}"
    records.create(name, 3)
    return name


def job_of(kafka_broker: EmbeddedBroker, folder: Path, topic: str, **more: str) -> OffloadJob:
    named = {"name": topic, "topics": topic, **more}
    return OffloadJob(job_settings(kafka_broker.bootstrap_servers, folder / "lake", **named))


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_topic_is_a_table(
    kind: str, kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    """JSON with bad records, tombstones, headers, an aborted transaction, and a field that comes
    later; in several plans."""
    job = job_of(
        kafka_broker,
        tmp_path,
        topic,
        format=kind,
        value_format="json",
        value_schema=SCHEMA,
        rows_per_trigger="40",
    )
    for partition in range(2):
        records.send(
            topic,
            [b'{"id": %d, "name": "n"}' % number for number in range(30)],
            partition=partition,
            keys=[b"key-%d" % number for number in range(30)],
            headers=[[("trace", b"%d" % number)] for number in range(30)],
        )
    records.send(topic, [b"{", None, b'{"id": "no number"}'], partition=2)
    records.abort(f"of-{topic}", topic, [b'{"id": 666}'] * 5)
    records.commit(f"of-{topic}", topic, [b'{"id": 77}'])
    ran = job.once()
    assert ran.exit_code == 0, ran.errors
    assert sum(plan["records"] for plan in ran.plans) == 64
    assert sum(plan["bad"] for plan in ran.plans) == 2
    assert len(ran.plans) > 1
    assert ran.plans[-1]["lag"] == 0
    # A field is added to the schema.
    records.send(topic, [b'{"id": 78, "name": "m", "size": 0.5}'], partition=2)
    wider = OffloadJob({**job.settings, "value.schema": f"{SCHEMA}, size DOUBLE"})
    assert [plan["records"] for plan in wider.once().plans] == [1]
    rows = read_by_others(kind, job).to_pylist()
    assert len(rows) == 63
    found = {(row["kafka_partition"], row["kafka_offset"]): row for row in rows}
    assert len(found) == 63
    assert {row["kafka_topic"] for row in rows} == {topic}
    seventh = found[1, 7]
    assert (seventh["id"], seventh["name"], seventh["size"]) == (7, "n", None)
    assert seventh["kafka_key"] == b"key-7"
    assert seventh["kafka_headers"] == [{"key": "trace", "value": b"7"}]
    assert str(seventh["kafka_date"]) == seventh["kafka_timestamp"].strftime("%Y-%m-%d")
    assert (found[2, 1]["id"], found[2, 3]["size"]) == (None, 0.5)
    assert sorted(row["id"] for row in rows if row["id"] in (77, 666)) == [77]
    verify(wider)


def test_the_group_shows_no_lag(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    records.send(topic, [b"v"] * 10, partition=1)
    job = job_of(kafka_broker, tmp_path, topic)
    assert job.once().exit_code == 0
    lag = subprocess.run(
        [
            *(sys.executable, "-m", "odradek", "-b", kafka_broker.bootstrap_servers),
            *("group", "lag", f"pipe.{topic}", "--output", "json"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(lag.stdout)
    rows = found if isinstance(found, list) else found["partitions"]
    assert sorted((row["partition"], row["committed"], row["lag"]) for row in rows) == [
        (0, 0, 0),
        (1, 10, 0),
        (2, 0, 0),
    ]


def test_a_job_runs_until_sigterm_and_shows_its_metrics(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    job = job_of(kafka_broker, tmp_path, topic)
    records.send(topic, [b"first"] * 5)
    port = free_port()
    arguments = ["--every", "200ms", "--metrics-listen", f"127.0.0.1:{port}"]
    log = tmp_path / "log"

    def plans() -> int:
        return sum(line.startswith('{"job"') for line in log.read_text().splitlines())

    with job.running(*arguments, log=log) as process:
        wait_until(lambda: plans() == 1, timeout_s=120, what="the first plan")
        records.send(topic, [b"second"] * 7)
        wait_until(lambda: plans() == 2, timeout_s=60, what="the second plan")
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            page = answer.read().decode()
        assert f'odradek_pipe_records_total{{job_name="{topic}"}} 12' in page
        assert f'lag_records{{job_name="{topic}",topic="{topic}",partition="0"}} 0' in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert read_by_others("parquet", job).num_rows == 12


def test_without_java_it_says_so(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    records.send(topic, [b"v"])
    job = job_of(kafka_broker, tmp_path, topic)
    ran = subprocess.run(
        job.command("--once"),
        capture_output=True,
        text=True,
        env=environment() | {"JAVA_HOME": str(tmp_path)},
        check=False,
    )
    assert ran.returncode == 1
    assert "Error: Spark found no Java: install Java 17 or newer, or set JAVA_HOME" in ran.stderr
    groups = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    listed = groups.list_consumer_groups().result().valid or []
    assert f"pipe.{topic}" not in {each.group_id for each in listed}
