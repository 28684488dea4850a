"""`odradek pipe upsert` against a real node."""

from pathlib import Path
from uuid import uuid4

from click.testing import CliRunner
from deltalake import DeltaTable

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from tests.support.topic_records import TopicRecords


def test_a_compacted_topic_is_merged_once(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = f"upsert-{uuid4().hex[:12]}"
    bootstrap = str(kafka_broker.bootstrap_servers)
    records = TopicRecords({"bootstrap.servers": bootstrap})
    records.create(topic)
    records.send(topic, [b"1", b"2", b"3", None], keys=[b"a", b"b", b"a", b"b"])
    arguments = ["upsert", "--name", topic, "--topics", topic, "-b", bootstrap, "--once"]
    arguments += ["--table", str(tmp_path / "table")]

    result = CliRunner().invoke(pipe, arguments)

    assert result.exit_code == 0, result.output
    assert result.output.startswith("plan 1: 4 records, 1 rows inserted, 0 updated, 0 deleted in ")
    (row,) = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert (row["kafka_key"], row["kafka_value"], row["kafka_offset"]) == (b"a", b"3", 2)
    assert CliRunner().invoke(pipe, arguments).output == "no new records\n"
    verified = CliRunner().invoke(pipe, ["verify", *arguments[1:-3], *arguments[-2:]])
    assert verified.exit_code == 1
    assert "has only the last record of each key" in verified.output


def test_once_or_every_must_be_said(tmp_path: Path) -> None:
    arguments = ["upsert", "--name", "x", "--topics", "t", "--table", str(tmp_path)]

    result = CliRunner().invoke(pipe, arguments)

    assert result.exit_code == 2
    assert "say either --once or --every TIME" in result.output
