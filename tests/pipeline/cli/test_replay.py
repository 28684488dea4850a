"""`odradek pipe replay` against a real node, and killed in the middle."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, plan
from tests.support.killed_commands import kill_while_it_writes, run_command
from tests.support.settled_topics import settled_records


def table(folder: Path, *bounds: tuple[int, int, int]) -> str:
    """A table of raw values."""
    opened = open_table("parquet", str(folder / "table"))
    opened.claim(job(time_partition="none"))
    fill(opened, plan(1, *bounds))
    opened.close()
    return opened.location


def test_a_table_is_replayed_and_told(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    location = table(tmp_path, (0, 0, 20))
    arguments = ["replay", "--table", location, "--to", "cli-replay"]
    arguments += ["-b", kafka_broker.bootstrap_servers]
    result = CliRunner().invoke(pipe, arguments)
    assert result.stdout == f"20 records from {location} to topic cli-replay\n"
    # The first two records of the samples have the time 0 or follow it by six hours.
    assert result.stderr.startswith("1 records had the time 0 (1970-01-01) and have 1 ms now")
    again = CliRunner().invoke(pipe, arguments)
    assert again.stdout.startswith("0 records from ")
    assert again.stdout.endswith("to topic cli-replay, going on with an earlier run\n")


def test_what_is_wrong_is_one_line(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    address = kafka_broker.bootstrap_servers
    result = CliRunner().invoke(
        pipe, ["replay", "--table", str(tmp_path), "--to", "a", "-b", address]
    )
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {tmp_path} is no table of a job: it has no _odradek/job.json\n"
    )
    result = CliRunner().invoke(pipe, ["replay", "--to", "a"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        2,
        "Error: table is not set: say it in the file, or with --table",
    )


@pytest.mark.slow
def test_killed_at_any_moment_it_writes_each_record_once(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = 6_000
    location = table(tmp_path, (0, 0, rows), (1, 100, 100 + rows))
    # The records of the samples are of 1970.
    kafka_broker.create_topic("killed-replay", partitions=2, configs={"retention.ms": "-1"})
    address = kafka_broker.bootstrap_servers
    arguments = ["pipe", "replay", "--table", location, "--to", "killed-replay", "-b", address]
    arguments += ["--rows-per-transaction", "200"]
    kills = [
        kill_while_it_writes(arguments, address, "killed-replay", seed=seed, records_max=2_500)
        for seed in range(5)
    ]
    assert any(kills)
    ended = run_command(arguments)
    assert (ended.returncode, ended.stdout.startswith("0 records")) == (0, False), ended
    found = settled_records(address, "killed-replay")
    for partition, start in ((0, 0), (1, 100)):
        values = [record.value for record in found if record.partition == partition]
        assert values == [b"value-%d" % offset for offset in range(start, start + rows)]
