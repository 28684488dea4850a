"""Windows: their size does not change what is found, and what expires meanwhile is expired."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex
from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.jobs.partition_comparison import PartitionComparison, PartitionReport
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.offloaded_tables import OffloadedTable


@pytest.fixture
def made(kafka_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[OffloadedTable]:
    """1,000 records in transactions of 10, of which every third is aborted; two rows dropped."""
    topic = f"windows-{uuid4().hex[:12]}"
    kafka_broker.create_topic(topic)
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": topic}
    )
    producer.init_transactions(30)
    for number in range(100):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, b"%d" % each, partition=0)
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        table = OffloadedTable(tmp_path / "table", cluster, topic)
        table.offload({0: 500})
        table.offload()
        dropped = [12, 490]
        table.change_file(lambda rows: rows.filter(~pc.field("kafka_offset").isin(dropped)))
        yield table


def _compare(made: OffloadedTable, window_bytes: int) -> tuple[PartitionReport, list[int]]:
    commit = made.table.last_commit()
    assert commit is not None
    at = commit.topics[made.topic]
    schema = made.table.schema()
    assert schema is not None
    comparison = PartitionComparison(
        cluster=made.cluster,
        table=made.table,
        scan=ExactScan(made.table),
        values=made.values,
        time_partition=made.time_partition,
        columns=tuple(schema.names),
        columns_added={},
        letters=DeadLetterIndex(),
        window_bytes=window_bytes,
    )
    findings = Findings()
    wanted = PartitionRange(made.topic, at.topic_id, 0, at.starts[0], at.ends[0])
    report = comparison.compare(wanted, findings)
    assert findings.counts().keys() <= {FindingKind.MISSING}
    return report, [each.offset for each in findings.shown(FindingKind.MISSING)]


def test_all_sizes_of_windows_find_the_same(made: OffloadedTable) -> None:
    small, large = _compare(made, 1), _compare(made, 1 << 30)

    assert small == large
    report, missing = large
    assert missing == [12, 490]
    assert (report.records, report.rows) == (660, 658)
    assert report.gaps == {"aborted": 340, "control": 100}


def test_what_is_deleted_before_and_after_the_first_window_is_expired(
    kafka_broker: EmbeddedBroker, made: OffloadedTable
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition(made.topic, 0, 1_000)]).values()
    deleted.result(30)

    report, missing = _compare(made, 1)

    assert missing == []
    assert report.gaps == {"expired": 1_000, "control": 10, "aborted": 30}
    assert report.rows_of_gone == 598
