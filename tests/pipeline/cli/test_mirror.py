"""`odradek pipe mirror` between real nodes, and killed in the middle."""

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.jobs.mirrored_offsets import map_topic, runs_in
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.killed_commands import (
    kill_while_it_writes,
    log_end,
    run_command,
    running_command,
)
from tests.support.settled_topics import settled_records
from tests.support.waiting import wait_until
from tests.support.written_records import WrittenRecord, write_records, write_values


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("source")) as broker:
        yield broker


def clusters(source: EmbeddedBroker, target: EmbeddedBroker) -> list[str]:
    return [
        *("--source-bootstrap-servers", source.bootstrap_servers),
        *("--target-bootstrap-servers", target.bootstrap_servers),
    ]


def test_a_file_says_what_is_mirrored(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source.create_topic("cli-mirror")
    write_records(source.bootstrap_servers, "cli-mirror", [WrittenRecord(0, b"a")])
    file = tmp_path / "mirror.yaml"
    file.write_text(
        f"""
name: filed
source: {{bootstrap.servers: "{source.bootstrap_servers}"}}
target:
  bootstrap.servers: "{kafka_broker.bootstrap_servers}"
  kafka: {{client.id: mirror}}
topics: [cli-mirror]
groups.pattern: none
"""
    )
    result = CliRunner().invoke(pipe, ["mirror", str(file), "--once"])
    assert result.output == "1 records of 1 topics in 1 transactions, offsets of 0 groups\n"
    result = CliRunner().invoke(pipe, ["mirror", str(file), "--once", "--output", "json"])
    assert json.loads(result.stdout) == {
        "records": 0,
        "topics": 1,
        "transactions": 0,
        "lost": {},
        "groups": {},
        "skipped_groups": {},
    }


def test_what_is_wrong_is_one_line(source: EmbeddedBroker, kafka_broker: EmbeddedBroker) -> None:
    named = ["mirror", "--name", "wrong", "--topics", "cli-none"]
    result = CliRunner().invoke(pipe, [*named, *clusters(source, kafka_broker), "--once"])
    assert result.exit_code == 1
    assert result.output == f"Error: topic cli-none is not at {source.bootstrap_servers}\n"
    for wrong in ([], ["--once", "--every", "1s"]):
        result = CliRunner().invoke(pipe, [*named, *clusters(source, kafka_broker), *wrong])
        assert (result.exit_code, "say either --once or --every" in result.output) == (2, True)


def test_rounds_follow_each_other_until_it_is_told_to_end(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("cli-every")
    write_values(source.bootstrap_servers, "cli-every", [b"1"])
    arguments = [*clusters(source, kafka_broker), "--name", "every", "--topics", "cli-every"]

    def has(count: int) -> bool:
        return len(settled_records(kafka_broker.bootstrap_servers, "cli-every")) == count

    with running_command(["pipe", "mirror", *arguments, "--every", "100ms"]) as child:
        wait_until(lambda: has(1), what="the first record")
        write_values(source.bootstrap_servers, "cli-every", [b"2"])
        wait_until(lambda: has(2), what="the second record")
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


@pytest.mark.slow
def test_killed_at_any_moment_it_copies_each_record_once(
    source: EmbeddedBroker, kafka_broker: EmbeddedBroker
) -> None:
    source.create_topic("cli-killed", partitions=2)
    for number in range(6):
        listed = [WrittenRecord(each % 2, b"%d-%d" % (number, each)) for each in range(2_000)]
        write_records(
            source.bootstrap_servers,
            "cli-killed",
            listed,
            transactional_id="cli-killed",
            aborts=number % 3 == 1,
        )
    expected = settled_records(source.bootstrap_servers, "cli-killed")
    assert len(expected) == 8_000
    target = kafka_broker.bootstrap_servers
    arguments = ["pipe", "mirror", *clusters(source, kafka_broker), "--once"]
    arguments += ["--name", "killed", "--topics", "cli-killed", "--rows-per-transaction", "200"]
    kills = [
        kill_while_it_writes(arguments, target, "cli-killed", seed=seed, records_max=1_800)
        for seed in range(5)
    ]
    assert any(kills)
    # Nothing is left for it where one of the others came to its end before it was killed.
    ended = run_command(arguments)
    assert ended.returncode == 0, ended
    copied = settled_records(target, "cli-killed")
    assert [each._replace(offset=0) for each in copied] == [
        each._replace(offset=0) for each in expected
    ]
    by_place = {(each.partition, each.offset): each.value for each in expected}
    copies = {(each.partition, each.offset): each.value for each in copied}
    led = {}
    with KafkaCluster(target) as cluster:
        for name, run in runs_in(cluster, map_topic("killed")):
            for step in range(run.records):
                there = copies[name.partition, run.target_offset + step]
                led[name.partition, run.source_offset + step] = there
    assert led == by_place


@pytest.mark.slow
def test_processes_of_the_target_are_killed_and_each_record_arrives_once(
    source: EmbeddedBroker, tmp_path: Path
) -> None:
    source.create_topic("cli-outage", partitions=2)
    listed = [WrittenRecord(each % 2, b"%d" % each) for each in range(20_000)]
    write_records(source.bootstrap_servers, "cli-outage", listed)
    with EmbeddedBroker(tmp_path / "target") as target:
        arguments = [*clusters(source, target), "--name", "outage", "--topics", "cli-outage"]
        arguments += ["--rows-per-transaction", "100", "--every", "100ms"]
        with running_command(["pipe", "mirror", *arguments]) as child:
            for process in ("worker-0", "router-0"):
                enough = log_end(target.bootstrap_servers, "cli-outage") + 500
                wait_until(
                    partial(has_written, target.bootstrap_servers, "cli-outage", enough),
                    what="progress",
                )
                target.kill_process(process)
                target.wait_until_ready()
            wait_until(
                lambda: len(settled_records(target.bootstrap_servers, "cli-outage")) >= len(listed),
                timeout_s=120,
                what="all records",
            )
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0
        copied = settled_records(target.bootstrap_servers, "cli-outage")
    expected = settled_records(source.bootstrap_servers, "cli-outage")
    assert [(each.partition, each.value) for each in copied] == [
        (each.partition, each.value) for each in expected
    ]


def has_written(bootstrap_servers: str, topic: str, end: int) -> bool:
    """Whether the topic's log is that long."""
    return log_end(bootstrap_servers, topic) >= end
