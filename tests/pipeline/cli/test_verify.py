"""`odradek pipe verify` against a real node: exit codes, both outputs, and the verified group."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.values.value_format import value_format
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.offloaded_tables import OffloadedTable
from tests.support.topic_records import TopicRecords

SCHEMA = "id BIGINT"


@pytest.fixture
def properties(kafka_broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}


@pytest.fixture
def made(properties: dict[str, str], tmp_path: Path) -> Iterator[OffloadedTable]:
    """20 records, of which two do not fit the schema, with their dead letters."""
    topic = f"verify-{uuid4().hex[:12]}"
    records = TopicRecords(properties)
    records.create(topic, partitions=2)
    records.send(topic, [b'{"id": 1}'] * 9 + [b"{"] + [b'{"id": 2}'] * 9 + [b"no"], partition=1)
    with KafkaCluster(properties["bootstrap.servers"]) as cluster:
        table = OffloadedTable(
            tmp_path / "table",
            cluster,
            topic,
            values=value_format("json", schema=SCHEMA),
            value_format="json",
        )
        table.offload()
        name = table.job
        with DeadLetterSender(properties, f"pipe.{name}", f"{name}.dlq", timeout_s=30) as sender:
            sender.send(1, table.bad)
        yield table


def _run(made: OffloadedTable, *more: str, bootstrap: str) -> Result:
    arguments = ["--name", made.job, "--topics", made.topic, "--table", str(made.folder)]
    arguments += ["--value-format", "json", "--value-schema", SCHEMA, "-b", bootstrap]
    return CliRunner().invoke(pipe, ["verify", *arguments, *more])


def test_a_proven_table_exits_with_zero_and_commits_if_asked(
    made: OffloadedTable, properties: dict[str, str]
) -> None:
    bootstrap = properties["bootstrap.servers"]
    names = [PartitionName(made.topic, 0), PartitionName(made.topic, 1)]
    group = f"pipe.{made.job}.verified"

    result = _run(made, bootstrap=bootstrap)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == (
        "Verified: 18 records are in the table once and unchanged; 2 are dead letters."
    )
    assert committed_offsets(properties, group, names, timeout_s=30) == {}

    result = _run(made, "--commit-verified", "--output", "json", bootstrap=bootstrap)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["is_proven"] is True
    assert committed_offsets(properties, group, names, timeout_s=30) == {names[0]: 0, names[1]: 20}


def test_a_wrong_table_exits_with_one_and_commits_nothing(
    made: OffloadedTable, properties: dict[str, str]
) -> None:
    made.change_file(lambda rows: rows.filter(pc.field("kafka_offset") != 4))

    result = _run(made, "--commit-verified", bootstrap=properties["bootstrap.servers"])

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-3:] == [
        "missing: 1",
        f"  {made.topic}-1 offset 4",
        "NOT verified: 1 findings in 20 records.",
    ]
    names = [PartitionName(made.topic, 1)]
    group = f"pipe.{made.job}.verified"
    assert committed_offsets(properties, group, names, timeout_s=30) == {}


def test_options_of_another_job_are_told(made: OffloadedTable, properties: dict[str, str]) -> None:
    result = _run(made, "--value-format", "raw", bootstrap=properties["bootstrap.servers"])

    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the table was made with value.format json and not raw: verify with the options"
        " that the job has\n"
    )


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        pipe, ["verify", "--name", "x", "--topics", "t", "--table", str(tmp_path)]
    )

    assert result.exit_code == 1
    assert "is no table of a job" in result.stderr
