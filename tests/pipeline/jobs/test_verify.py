"""Every way in which a table can be wrong is reported exactly, and nothing else is."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex
from odradek.pipeline.jobs.findings import FindingKind
from odradek.pipeline.jobs.verify import VerifyReport, verify_table
from odradek.pipeline.values.value_format import value_format
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.offloaded_tables import OffloadedTable
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

Told = dict[FindingKind, list[tuple[int, str]]]
TIME_MS = 1_760_000_000_000
KEEPS = {"retention.ms": "-1"}
"""Records are of that time, older than Kafka's default of seven days."""


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def topic(kafka_broker: EmbeddedBroker) -> str:
    name = f"verify-{uuid4().hex[:12]}"
    kafka_broker.create_topic(name, configs=KEEPS)
    return name


def _send(
    broker: EmbeddedBroker, topic: str, values: list[bytes | None], *, partition: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value=value,
            key=b"key-%d" % number,
            partition=partition,
            timestamp=TIME_MS + number,
            # No headers, as most records have, are null and not an empty list.
            headers=[("trace", b"%d" % number), ("none", None)] if number % 10 != 9 else None,
        )
    assert producer.flush(30) == 0


def _verify(
    made: OffloadedTable, letters: DeadLetterIndex | None = None
) -> tuple[VerifyReport, Told]:
    index = DeadLetterIndex(made.bad) if letters is None else letters
    report = verify_table(made.cluster, made.table, made.values, lambda: index, window_bytes=2_000)
    told = {
        kind: [(each.offset, each.detail) for each in report.findings.shown(kind)]
        for kind in report.findings.counts()
    }
    return report, told


@pytest.fixture
def hundred(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> OffloadedTable:
    """A Parquet table of 100 records in two files."""
    _send(kafka_broker, topic, [b"value-%d" % number for number in range(100)])
    made = OffloadedTable(tmp_path / "table", cluster, topic)
    made.offload({0: 60})
    made.offload()
    return made


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("time_partition", ["hour", "none"])
def test_a_table_of_all_records_is_proven(
    kafka_broker: EmbeddedBroker,
    cluster: KafkaCluster,
    tmp_path: Path,
    kind: str,
    time_partition: str,
) -> None:
    name = f"verify-{uuid4().hex[:12]}"
    kafka_broker.create_topic(name, partitions=2, configs=KEEPS)
    _send(kafka_broker, name, [b"a" * 50, None, b""] * 40)
    _send(kafka_broker, name, [b"b"] * 7, partition=1)
    made = OffloadedTable(
        tmp_path / "table", cluster, name, kind=kind, time_partition=time_partition
    )
    made.offload({0: 50, 1: 0})
    made.offload()

    report, told = _verify(made)

    assert told == {}
    assert report.is_proven
    assert [
        (e.partition, e.start, e.end, e.records, e.rows, e.gaps) for e in report.partitions
    ] == [
        (0, 0, 120, 120, 120, {}),
        (1, 0, 7, 7, 7, {}),
    ]


def _without(offset: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter(pc.field("kafka_offset") != offset)


def _with_copy(offset: int) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, rows.filter(pc.field("kafka_offset") == offset)])

    return change


def _with_value(column: str, offset: int, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[rows.column("kafka_offset").to_pylist().index(offset)] = value
        index = rows.column_names.index(column)
        kind = rows.schema.field(column).type
        return rows.set_column(index, column, pa.array(values, kind))

    return change


def test_a_dropped_row_is_reported(hundred: OffloadedTable) -> None:
    hundred.change_file(_without(17))
    assert _verify(hundred)[1] == {FindingKind.MISSING: [(17, "")]}


def test_a_doubled_row_is_reported(hundred: OffloadedTable) -> None:
    hundred.change_file(_with_copy(99), index=1)
    assert _verify(hundred)[1] == {FindingKind.DOUBLED: [(99, "2 times")]}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kafka_value", b"value-7!"),
        ("kafka_value", None),
        ("kafka_key", b"other"),
        ("kafka_headers", [{"key": "trace", "value": b"7"}]),
        ("kafka_headers", [{"key": "trace", "value": b"7"}, {"key": "none", "value": b""}]),
        ("kafka_timestamp", TIME_MS * 1000 + 7_001),
        ("kafka_timestamp_type", 1),
    ],
)
def test_an_altered_row_is_reported_with_its_column(
    hundred: OffloadedTable, column: str, value: object
) -> None:
    hundred.change_file(_with_value(column, 7, value))
    assert _verify(hundred)[1] == {FindingKind.ALTERED: [(7, column)]}


def test_all_mutations_together_are_reported_each(hundred: OffloadedTable) -> None:
    hundred.change_file(_without(0))
    hundred.change_file(_with_copy(31))
    hundred.change_file(_with_value("kafka_key", 98, None), index=1)

    assert _verify(hundred)[1] == {
        FindingKind.MISSING: [(0, "")],
        FindingKind.DOUBLED: [(31, "2 times")],
        FindingKind.ALTERED: [(98, "kafka_key")],
    }


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_deleted_file_is_reported_and_the_others_are_compared(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    _send(kafka_broker, topic, [b"value"] * 100)
    made = OffloadedTable(tmp_path / "table", cluster, topic, kind=kind)
    made.offload({0: 60})
    made.offload()
    made.files()[0].unlink()

    report, told = _verify(made)

    assert set(told) == {FindingKind.UNREADABLE}
    offsets = [offset for offset, _ in told[FindingKind.UNREADABLE]]
    assert offsets[0] == 0
    assert offsets[-1] < 60
    assert all(made.files()[0].name in text for _, text in told[FindingKind.UNREADABLE])
    assert (report.partitions[0].records, report.partitions[0].rows) == (100, 40)


def test_rows_that_the_job_did_not_commit_are_reported(hundred: OffloadedTable) -> None:
    hundred.change_file(_with_value("kafka_offset", 59, 1_000))
    hundred.change_file(_with_value("kafka_topic", 58, "other"))

    assert _verify(hundred)[1] == {
        FindingKind.MISSING: [(58, ""), (59, "")],
        FindingKind.UNEXPECTED: [
            (1_000, "the job has not committed this offset"),
            (58, "the job has not committed this offset"),
        ],
    }


def test_rows_without_coordinates_are_reported(hundred: OffloadedTable) -> None:
    hundred.change_file(_with_value("kafka_offset", 5, None))

    assert _verify(hundred)[1] == {
        FindingKind.MISSING: [(5, "")],
        FindingKind.UNEXPECTED: [(-1, "the job has not committed this offset")],
    }


def test_more_records_than_the_table_has_committed_are_no_finding(
    kafka_broker: EmbeddedBroker, hundred: OffloadedTable
) -> None:
    _send(kafka_broker, hundred.topic, [b"later"])
    assert _verify(hundred)[0].is_proven


def test_aborted_transactions_are_explained_and_an_open_one_ends_the_range(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    producer = Producer({**settings, "transactional.id": f"{topic}-one"})
    producer.init_transactions(30)
    for number in range(10):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(topic, b"%d" % each, key=b"%d" % number, partition=0)
        if number % 3 == 0:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    left_open = Producer({**settings, "transactional.id": f"{topic}-open"})
    left_open.init_transactions(30)
    left_open.begin_transaction()
    left_open.produce(topic, b"open", partition=0)
    assert left_open.flush(30) == 0
    made = OffloadedTable(tmp_path / "table", cluster, topic)
    made.offload()

    report, told = _verify(made)

    assert told == {}
    (partition,) = report.partitions
    assert (partition.end, partition.records, partition.rows) == (40, 18, 18)
    assert partition.gaps == {"aborted": 12, "control": 10}
    left_open.abort_transaction(30)


def test_a_row_of_an_aborted_transaction_is_reported(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": topic}
    )
    producer.init_transactions(30)
    for is_committed in (False, True):
        producer.begin_transaction()
        producer.produce(topic, b"value", partition=0)
        producer.flush(30)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    made = OffloadedTable(tmp_path / "table", cluster, topic)
    made.offload()
    made.change_file(_with_value("kafka_offset", 2, 0))

    assert _verify(made)[1] == {
        FindingKind.MISSING: [(2, "")],
        FindingKind.UNEXPECTED: [(0, "its record is of an aborted transaction")],
    }


def test_expired_records_are_explained_and_their_rows_may_stay(
    kafka_broker: EmbeddedBroker, hundred: OffloadedTable
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition(hundred.topic, 0, 40)]).values()
    deleted.result(30)
    hundred.change_file(_with_copy(12))
    hundred.change_file(_without(50))

    report, told = _verify(hundred)

    assert told == {FindingKind.DOUBLED: [(12, "2 times")], FindingKind.MISSING: [(50, "")]}
    (partition,) = report.partitions
    assert (partition.records, partition.rows, partition.rows_of_gone) == (60, 100, 41)
    assert partition.gaps == {"expired": 40}


def test_a_compacted_topic_is_proven_by_what_is_left(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    name = f"{topic}-compacted"
    kafka_broker.create_topic(
        name,
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "1",
        },
    )
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

    def send(value: bytes) -> None:
        for key in range(5):
            producer.produce(name, value, key=b"%d" % key, partition=0)
        assert producer.flush(30) == 0

    send(b"first")
    send(b"second")
    made = OffloadedTable(tmp_path / "table", cluster, name)
    made.offload()

    def compacted() -> int:
        send(b"more")
        return _verify(made)[0].partitions[0].gaps.get("compacted", 0)

    wait_until(compacted, timeout_s=60)
    report, told = _verify(made)

    assert told == {}
    assert report.partitions[0].rows == 10
    assert report.partitions[0].rows_of_gone == report.partitions[0].gaps["compacted"]


SCHEMA = "id BIGINT, name STRING"


@pytest.fixture
def with_bad_records(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> OffloadedTable:
    """JSON, of which offsets 3, 13, 23, ... do not fit the schema."""
    good = [b'{"id": %d, "name": "n%d"}' % (number, number) for number in range(50)]
    _send(kafka_broker, topic, [b"{" if n % 10 == 3 else value for n, value in enumerate(good)])
    values = value_format("json", schema=SCHEMA)
    made = OffloadedTable(tmp_path / "table", cluster, topic, values=values, value_format="json")
    made.offload()
    return made


def test_dead_letters_stand_for_the_bad_records(with_bad_records: OffloadedTable) -> None:
    report, told = _verify(with_bad_records)

    assert told == {}
    assert (report.partitions[0].records, report.partitions[0].bad) == (45, 5)


def test_missing_doubled_altered_and_foreign_dead_letters_are_reported(
    with_bad_records: OffloadedTable,
) -> None:
    from dataclasses import replace

    at = {each.offset: each for each in with_bad_records.bad}
    letters = [
        at[13],
        at[13],
        replace(at[23], key=b"other"),
        at[33],
        at[43],
        replace(at[43], offset=44),
        replace(at[43], offset=50),
    ]

    assert _verify(with_bad_records, DeadLetterIndex(letters))[1] == {
        FindingKind.DEAD_LETTER_MISSING: [(3, "")],
        FindingKind.DEAD_LETTER_DOUBLED: [(13, "2 times")],
        FindingKind.DEAD_LETTER_ALTERED: [(23, "")],
        FindingKind.DEAD_LETTER_UNEXPECTED: [
            (44, ""),
            (50, "the job has not committed this offset"),
        ],
    }


def test_dead_letters_that_may_be_deleted_are_not_checked(
    with_bad_records: OffloadedTable,
) -> None:
    index = DeadLetterIndex(with_bad_records.bad[2:], is_complete=False)

    report, told = _verify(with_bad_records, index)

    assert told == {}
    assert report.partitions[0].letters_unchecked == 2


def test_decoded_columns_are_compared(with_bad_records: OffloadedTable) -> None:
    with_bad_records.change_file(_with_value("name", 8, "n9"))
    assert _verify(with_bad_records)[1] == {FindingKind.ALTERED: [(8, "name")]}


def test_a_column_that_was_added_later_is_null_before(
    kafka_broker: EmbeddedBroker, with_bad_records: OffloadedTable
) -> None:
    made = with_bad_records
    _send(kafka_broker, made.topic, [b'{"id": 1, "name": "x"}'] * 10)
    made.values = value_format("json", schema="id BIGINT, name STRING, missing STRING")

    report, told = _verify(made)
    assert (told, report.columns_to_come) == ({}, ("missing",))

    # The first 50 records have a name, too; the table was told of it only later.
    _send(kafka_broker, made.topic, [b'{"id": 1, "name": "x"}'] * 10)
    other = OffloadedTable(
        made.folder.parent / "other",
        made.cluster,
        made.topic,
        values=value_format("json", schema="id BIGINT"),
        value_format="json",
    )
    other.offload({0: 55})
    other.values = value_format("json", schema=SCHEMA)
    other.offload()
    assert _verify(other)[1] == {}

    other.change_file(_with_value("name", 60, None), index=1)
    assert _verify(other)[1] == {FindingKind.ALTERED: [(60, "name")]}


def test_a_schema_that_lacks_a_column_is_told(with_bad_records: OffloadedTable) -> None:
    with_bad_records.values = value_format("json", schema="id BIGINT")
    with pytest.raises(PipelineError, match=r"columns that the schema lacks \(name\)"):
        _verify(with_bad_records)


def test_a_topic_that_was_created_again_or_is_gone_is_told(
    kafka_broker: EmbeddedBroker, hundred: OffloadedTable
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    (deleted,) = admin.delete_topics([hundred.topic]).values()
    deleted.result(30)
    wait_until(lambda: not hundred.cluster.topics([hundred.topic]))
    with pytest.raises(PipelineError, match="does not exist any more"):
        _verify(hundred)

    kafka_broker.create_topic(hundred.topic, configs=KEEPS)
    _send(kafka_broker, hundred.topic, [b"new"] * 200)
    with pytest.raises(TopicRecreated):
        _verify(hundred)


@pytest.mark.slow
def test_a_million_rows_are_verified_within_a_minute(
    kafka_broker: EmbeddedBroker, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    count = 1_000_000
    values = [b"%0100d" % number for number in range(1_000)] * (count // 1_000)
    TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers}).send(
        topic, values, properties={"queue.buffering.max.messages": 2 * count}
    )
    made = OffloadedTable(tmp_path / "table", cluster, topic)
    made.offload({0: count // 2})
    made.offload()
    made.change_file(_without(17))
    made.change_file(_with_copy(count - 1), index=1)

    began = time.monotonic()
    report = verify_table(cluster, made.table, made.values, DeadLetterIndex)
    took_s = time.monotonic() - began

    assert report.findings.counts() == {FindingKind.MISSING: 1, FindingKind.DOUBLED: 1}
    assert report.partitions[0].rows == count
    # Promised is a minute; a busy machine gets three.
    assert took_s < 180


def test_a_table_without_a_commit_is_told(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    made = OffloadedTable(tmp_path / "table", cluster, topic)
    with pytest.raises(PipelineError, match="run offload first"):
        _verify(made)
