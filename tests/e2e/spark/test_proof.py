"""What `verify` says of tables that real jobs have written: aborted and open transactions are
explained, a topic that was created again stops the job, and each row that somebody dropped, doubled
or altered is reported exactly."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.offload_job import (
    OffloadJob,
    job_settings,
    read_by_others,
    run_verify,
    verify,
)
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*")

TRANSACTIONS, OF_TRANSACTION = 20, 50
DROPPED, DOUBLED, ALTERED = (0, 3), (1, 5), (1, 7)
"""(partition, offset)"""


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(records: TopicRecords) -> str:
    """With two partitions."""
    name = f"proof-{uuid4().hex[:8]}"
    records.create(name, 2)
    return name


def job_of(kafka_broker: EmbeddedBroker, folder: Path, topic: str, **more: str) -> OffloadJob:
    named = {"name": topic, "topics": topic, **more}
    return OffloadJob(job_settings(kafka_broker.bootstrap_servers, folder / "lake", **named))


def test_of_transactions_committed_records_arrive_and_gaps_are_explained(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    """30 % are aborted. One is left open, with committed records behind it."""
    chance = random.Random(14)
    aborted = {*chance.sample(range(TRANSACTIONS), TRANSACTIONS * 3 // 10)}
    for number in range(TRANSACTIONS):
        end = records.abort if number in aborted else records.commit
        end(topic, topic, [b"%d" % number] * OF_TRANSACTION)
    held = records.open_transaction(f"{topic}-open", topic, [b"open"] * 5)
    records.send(topic, [b"behind"] * 7)
    job = job_of(kafka_broker, tmp_path, topic)

    assert job.once().exit_code == 0

    committed = [number for number in range(TRANSACTIONS) if number not in aborted]
    expected = sorted([b"%d" % number for number in committed] * OF_TRANSACTION)
    assert sorted(read_by_others("parquet", job).column("kafka_value").to_pylist()) == expected
    gaps = {"control": TRANSACTIONS, "aborted": len(aborted) * OF_TRANSACTION}
    first, _ = verify(job)["partitions"]
    assert (first["end"], first["rows"]) == (sum(gaps.values()) + len(expected), len(expected))
    assert first["gaps"] == gaps

    held.commit_transaction(30)
    assert job.once().exit_code == 0
    expected = sorted([*expected, *[b"open"] * 5, *[b"behind"] * 7])
    assert sorted(read_by_others("parquet", job).column("kafka_value").to_pylist()) == expected
    first, _ = verify(job)["partitions"]
    assert first["gaps"] == gaps | {"control": TRANSACTIONS + 1}


def test_a_topic_that_is_created_again_and_longer_stops_the_job(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    job = job_of(kafka_broker, tmp_path, topic)
    records.send(topic, [b"old"] * 5)
    assert job.once().exit_code == 0
    records.recreate(topic, 2)
    records.send(topic, [b"new"] * 50)

    ran = job.once()

    assert (ran.exit_code, ran.plans) == (1, [])
    (line,) = ran.errors.splitlines()
    assert line.startswith(f"Error: topic {topic} was deleted and created again (its id was ")
    assert line.endswith("its new records belong into a new table, by a job with a new name")
    assert read_by_others("parquet", job).column("kafka_value").to_pylist() == [b"old"] * 5
    checked = run_verify(job, "text")
    assert checked.returncode == 1
    assert "created again" in checked.stderr


def of_row(place: tuple[int, int]) -> pc.Expression:
    return (pc.field("kafka_partition") == place[0]) & (pc.field("kafka_offset") == place[1])


def words(place: tuple[int, int]) -> str:
    """As SQL, for Delta and Iceberg."""
    return f"kafka_partition = {place[0]} and kafka_offset = {place[1]}"


def altered(row: pa.Table) -> pa.Table:
    index = row.column_names.index("name")
    return row.set_column(index, row.schema.field(index), pa.array(["other"], pa.string()))


def change_parquet(job: OffloadJob) -> None:
    """The files themselves."""
    for path in job.table.glob("kafka_date=*/*.parquet"):
        rows = pq.ParquetFile(path).read()
        kept = rows.filter(~(of_row(DROPPED) | of_row(ALTERED)))
        other = [altered(each) for each in [rows.filter(of_row(ALTERED))] if each.num_rows]
        pq.write_table(pa.concat_tables([kept, rows.filter(of_row(DOUBLED)), *other]), path)


def change_delta(job: OffloadJob) -> None:
    """As another writer of the table does it."""
    table = DeltaTable(job.table)
    doubled = table.to_pyarrow_table().filter(of_row(DOUBLED))
    table.delete(words(DROPPED))
    table.update(updates={"name": "'other'"}, predicate=words(ALTERED))
    write_deltalake(table, doubled, mode="append")


def change_iceberg(job: OffloadJob) -> None:
    """As another writer of the table does it."""
    catalog = load_catalog("odradek", type="sql", uri=f"sqlite:///{job.table}/catalog.db")
    table: IcebergTable = catalog.load_table(("odradek", job.settings["name"]))
    rows = table.scan().to_arrow()
    table.delete(words(DROPPED))
    table.delete(words(ALTERED))
    table.append(rows.filter(of_row(DOUBLED)))
    table.append(altered(rows.filter(of_row(ALTERED))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"),
    [("parquet", change_parquet), ("delta", change_delta), ("iceberg", change_iceberg)],
)
def test_each_changed_row_is_reported_exactly(
    kind: str,
    change: Callable[[OffloadJob], None],
    kafka_broker: EmbeddedBroker,
    records: TopicRecords,
    topic: str,
    tmp_path: Path,
) -> None:
    settings = {"value_format": "json", "value_schema": "id BIGINT, name STRING"}
    job = job_of(kafka_broker, tmp_path, topic, format=kind, **settings)
    for partition in range(2):
        values = [b'{"id": %d, "name": "n"}' % number for number in range(30)]
        # With headers: pyiceberg makes an empty list of null when it writes rows again.
        headers = [[("trace", b"%d" % number)] for number in range(30)]
        records.send(topic, values, partition=partition, headers=headers)
    assert job.once().exit_code == 0
    verify(job)

    change(job)

    checked = run_verify(job, "json")
    assert checked.returncode == 1, checked.stderr
    found = json.loads(checked.stdout)
    assert found["is_proven"] is False

    def told(place: tuple[int, int], detail: str) -> dict[str, Any]:
        partition, offset = place
        only = {"topic": topic, "partition": partition, "offset": offset, "detail": detail}
        return {"count": 1, "first": [only]}

    assert found["findings"] == {
        "missing": told(DROPPED, ""),
        "doubled": told(DOUBLED, "2 times"),
        "altered": told(ALTERED, "name"),
    }
    checked = run_verify(job, "text")
    assert checked.returncode == 1
    lines = checked.stdout.splitlines()
    assert lines[lines.index("missing: 1") :] == [
        "missing: 1",
        f"  {topic}-0 offset 3",
        "doubled: 1",
        f"  {topic}-1 offset 5: 2 times",
        "altered: 1",
        f"  {topic}-1 offset 7: name",
        "NOT verified: 3 findings in 60 records.",
    ]
