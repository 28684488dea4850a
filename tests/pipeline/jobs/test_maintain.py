"""A table is maintained while nobody writes it, and `verify` says the same afterwards."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_options import ReplayOptions
from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex
from odradek.pipeline.jobs.maintain import MaintainOptions, maintain
from odradek.pipeline.jobs.replay import replay
from odradek.pipeline.jobs.verify import verify_table
from odradek.pipeline.tables.target import open_table
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan
from tests.support.disks import small_disk
from tests.support.offloaded_tables import OffloadedTable
from tests.support.topic_records import TopicRecords


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


def _made(broker: EmbeddedBroker, cluster: KafkaCluster, folder: Path, kind: str) -> OffloadedTable:
    """60 records in six plans."""
    topic = f"maintain-{uuid4().hex[:12]}"
    records = TopicRecords({"bootstrap.servers": broker.bootstrap_servers})
    records.create(topic)
    headers = [[("h", b"1"), ("n", None)], None]
    records.send(topic, [b"v", None] * 30, headers=headers * 30, keys=[b"k", None] * 30)
    made = OffloadedTable(folder, cluster, topic, kind=kind)
    for number in range(1, 7):
        made.offload({0: 10 * number})
    return made


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_maintained_table_is_proven_and_goes_on(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, tmp_path: Path, kind: str
) -> None:
    made = _made(kafka_broker, cluster, tmp_path / "table", kind)
    made.table.close()

    report = maintain(MaintainOptions(table=str(made.folder)))
    assert (report.compacted, report.written) == (6, 1)

    TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers}).send(made.topic, [b"x"] * 5)
    made.offload()
    found = verify_table(cluster, made.table, made.values, DeadLetterIndex)
    assert found.findings.counts() == {}
    assert [each.rows for each in found.partitions] == [65]


def test_what_cannot_be_maintained_is_told(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, tmp_path: Path
) -> None:
    options = MaintainOptions(table=str(tmp_path / "table"))
    with pytest.raises(PipelineError, match="is no table of a job"):
        maintain(options)
    made = _made(kafka_broker, cluster, tmp_path / "table", "delta")
    with pytest.raises(PipelineError, match="is being written by process"):
        maintain(options)
    made.table.prepare(made.plan())
    made.table.close()
    with pytest.raises(PipelineError, match=r"plan 7 of .* is not committed yet: let the job run"):
        maintain(options)
    with pytest.raises(PipelineError, match="less than an hour"):
        maintain(MaintainOptions(table=str(tmp_path / "table"), keep=timedelta(minutes=59)))


def test_a_maintained_table_is_replayed(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, tmp_path: Path
) -> None:
    made = _made(kafka_broker, cluster, tmp_path / "table", "parquet")
    made.table.close()
    maintain(MaintainOptions(table=str(made.folder)))
    result = replay(
        ReplayOptions(
            name="again",
            bootstrap_servers=kafka_broker.bootstrap_servers,
            table=str(made.folder),
            to=f"{made.topic}-again",
            rows_per_transaction=7,
        )
    )
    assert result.rows == 60


def test_a_full_disk_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        folder = disk.folder / "orders"
        table = open_table("parquet", str(folder))
        table.claim(job("parquet", "none"))
        for number in range(1, 21):
            fill(table, plan(number, (0, 100 * number, 100 * number + 100)))
        table.close()
        refused: list[str] = []
        for kilobytes in (0, 4, 8, 12, 16, 24, 40):
            disk.fill(leave_bytes=kilobytes << 10)
            try:
                maintain(MaintainOptions(table=str(folder)))
            except PipelineError as error:
                refused.append(str(error))
            assert offsets_in(open_table("", str(folder))) == [*range(100, 2100)]
            disk.empty()
        assert len(refused) >= 3
        for text in refused:
            assert text.startswith(f"{folder} cannot be compacted: ")
            assert "No space left on device" in text
            assert "\n" not in text
        maintain(MaintainOptions(table=str(folder)))
        assert len([*folder.glob("*.parquet")]) == 1
        assert offsets_in(open_table("", str(folder))) == [*range(100, 2100)]
