"""A table of the last records of keys, against a node: also after a crash at any point."""

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.dead_letter_reader import letter_ranges, read_letters
from odradek.pipeline.jobs.job_options import JobOptions, job_options
from odradek.pipeline.jobs.upsert import LastChanges, Upsert, UpsertProgress
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.topic_records import TopicRecords

SCHEMA = "id BIGINT, name STRING"


class Source:
    """A topic with two partitions, and what the table should have."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = f"upsert-{uuid4().hex[:12]}"
        self.folder = folder
        self.expected: dict[bytes, tuple[int, str]] = {}
        TopicRecords({"bootstrap.servers": bootstrap}).create(self.topic, partitions=2)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def settings(self, **more: str) -> Mapping[str, str]:
        return {
            "name": self.topic,
            "topics": self.topic,
            "table": str(self.folder),
            "bootstrap.servers": self.bootstrap,
            "value.format": "json",
            "value.schema": SCHEMA,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def options(self, **more: str) -> JobOptions:
        return job_options(self.settings(**more))

    def put(self, key: bytes, row: tuple[int, str] | None) -> None:
        value = None if row is None else json.dumps({"id": row[0], "name": row[1]}).encode()
        self.send(key, value)
        if row is None:
            self.expected.pop(key, None)
        else:
            self.expected[key] = row

    def send(self, key: bytes | None, value: bytes | None) -> None:
        partition = 0 if key is None else sum(key) % 2
        self._producer.produce(self.topic, value, key, partition)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def run(self, **more: str) -> list[UpsertProgress]:
        self.flush()
        told: list[UpsertProgress] = []
        with Upsert(self.options(**more), "none", told.append) as job:
            job.run_once(Event())
        return told

    def rows(self) -> dict[bytes, tuple[int, str]]:
        """The table, read by deltalake alone."""
        found = DeltaTable(self.folder).to_pyarrow_table().to_pylist()
        by_key = {row["kafka_key"]: (row["id"], row["name"]) for row in found}
        assert len(by_key) == len(found)
        return by_key


@pytest.fixture
def source(kafka_broker: EmbeddedBroker, tmp_path: Path) -> Source:
    return Source(str(kafka_broker.bootstrap_servers), tmp_path / "table")


@pytest.mark.parametrize("seed", range(3))
def test_the_table_has_the_last_record_of_each_key(source: Source, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        for _ in range(300):
            key = b"key-%d" % chance.randrange(80)
            row = (chance.randrange(1_000), f"n{chance.random()}")
            source.put(key, None if chance.random() < 0.3 else row)
        source.run(rows_per_trigger=str(chance.choice([70, 1_000_000])))
        assert source.rows() == source.expected


def test_progress_and_the_groups_offsets_are_told(source: Source) -> None:
    source.put(b"a", (1, "one"))
    source.put(b"c", (2, "two"))
    first = source.run()
    source.put(b"a", None)
    source.put(b"c", (3, "three"))
    source.put(b"e", (4, "four"))
    (second,) = source.run()

    assert [each.to_text().rpartition(" in ")[0] for each in (first[0], second)] == [
        "plan 1: 2 records, 2 rows inserted, 0 updated, 0 deleted",
        "plan 2: 3 records, 1 rows inserted, 1 updated, 1 deleted",
    ]
    assert source.run() == []
    found = committed_offsets(
        {"bootstrap.servers": source.bootstrap},
        f"pipe.{source.topic}",
        [PartitionName(source.topic, 1), PartitionName(source.topic, 0)],
        timeout_s=30,
    )
    assert found == {PartitionName(source.topic, 1): 5, PartitionName(source.topic, 0): 0}


def test_records_that_change_no_row_are_dead_letters(source: Source) -> None:
    source.put(b"a", (1, "one"))
    source.send(b"a", b"{")
    source.send(None, b'{"id": 5}')
    (progress,) = source.run()

    assert (progress.records, progress.bad) == (3, 2)
    assert source.rows() == {b"a": (1, "one")}
    with KafkaCluster(source.bootstrap) as cluster:
        ranges = letter_ranges(cluster, f"{source.topic}.dlq")
        reasons = {
            each.letter.record.key: each.letter.record.reason
            for each in read_letters(cluster, ranges)
        }
    assert reasons[None] == "it has no key, so it changes no row"
    assert reasons[b"a"].startswith("not JSON: ")


@pytest.mark.parametrize("moment", ["write_plan", "merge", "write_prepared", "finish_commit"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_killed_upsert_goes_on_where_it_was(source: Source, moment: str, is_after: bool) -> None:
    source.put(b"a", (1, "one"))
    source.put(b"b", (1, "two"))
    source.run()
    source.put(b"a", None)
    source.put(b"b", (2, "two"))
    source.send(b"c", b"{")
    source.flush()
    driver = """if True:
        import json, os, signal, sys
        from threading import Event
        from odradek.pipeline.jobs.job_options import job_options
        from odradek.pipeline.jobs.upsert import Upsert
        settings, moment, is_after = json.loads(sys.argv[1])
        with Upsert(job_options(settings), "none", print) as job:
            owner = job._table if moment == "merge" else job._folder
            call = getattr(owner, moment)
            def call_and_die(*arguments):
                if is_after:
                    call(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            setattr(owner, moment, call_and_die)
            job.run_once(Event())
        """
    given = json.dumps([dict(source.settings()), moment, is_after])
    killed = subprocess.run([sys.executable, "-c", driver, given], timeout=120, check=False)
    assert killed.returncode == -9

    source.put(b"d", (4, "four"))
    source.run()

    assert source.rows() == source.expected == {b"b": (2, "two"), b"d": (4, "four")}
    with KafkaCluster(source.bootstrap) as cluster:
        ranges = letter_ranges(cluster, f"{source.topic}.dlq")
        assert len([*read_letters(cluster, ranges)]) == 1


def test_envelopes_of_debezium(source: Source) -> None:
    def change(key: bytes, op: str, after: object) -> None:
        source.send(key, json.dumps({"payload": {"op": op, "after": after}}).encode())

    change(b"a", "c", {"id": 1, "name": "one"})
    change(b"b", "r", {"id": 2, "name": "two"})
    change(b"a", "u", {"id": 1, "name": "three"})
    change(b"b", "d", None)
    source.send(b"b", None)
    source.flush()
    with Upsert(source.options(), "debezium", lambda progress: None) as job:
        job.run_once(Event())

    assert source.rows() == {b"a": (1, "three")}


def test_wrong_options_are_told(source: Source) -> None:
    def start(envelope: str = "none", **more: str) -> None:
        with Upsert(source.options(**more), envelope, lambda progress: None):
            pass

    with pytest.raises(PipelineError, match="upsert takes one topic"):
        start(topics=f"{source.topic},other")
    with pytest.raises(PipelineError, match=r"needs value\.format json, avro or protobuf"):
        start("debezium", value_format="raw")
    with pytest.raises(PipelineError, match="topic nowhere does not exist"):
        start(topics="nowhere")
    assert not source.folder.exists()
    start()
    with pytest.raises(PipelineError, match=r"is of the job .* \(upsert json none of "):
        start("debezium")
    with Upsert(source.options(), "none", lambda progress: None):
        arguments = ["upsert", "--once", "--name", source.topic, "--topics", source.topic]
        arguments += ["--table", str(source.folder), "-b", source.bootstrap]
        arguments += ["--value-format", "json", "--value-schema", SCHEMA]
        other = subprocess.run(
            [sys.executable, "-m", "odradek", "pipe", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert other.returncode == 1
    assert "is being written by process" in other.stderr


def test_the_last_change_of_a_key_is_by_offset_and_between_partitions_by_time() -> None:
    schema = pa.schema(
        [
            pa.field("kafka_key", pa.binary()),
            pa.field("kafka_timestamp", pa.int64()),
            pa.field("v", pa.string()),
        ]
    )

    def rows(*listed: tuple[bytes | None, int, str]) -> pa.Table:
        columns = [[row[index] for row in listed] for index in range(3)]
        arrays = [pa.array(each, kind) for each, kind in zip(columns, schema.types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    changes = LastChanges(schema)
    changes.add(rows((b"a", 9, "first"), (b"b", 5, "b"), (None, 1, "no key")))
    changes.add(rows((b"a", 3, "last")))
    changes.end_partition()
    changes.add(rows((b"a", 2, "older"), (b"b", 7, "younger")))
    changes.end_partition()

    found = changes.result().to_pylist()
    assert {row["kafka_key"]: row["v"] for row in found} == {b"a": "last", b"b": "younger"}
    assert len(found) == 2
