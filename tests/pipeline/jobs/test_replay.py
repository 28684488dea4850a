"""A table goes back into a topic: everything kept, and never twice."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_options import ReplayOptions
from odradek.pipeline.jobs.replay import replay, windows_of
from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import DataFile, JobPlan, PlanResult
from odradek.pipeline.tables.rows import rows_of, table_schema
from odradek.pipeline.tables.staging import PieceWriter
from odradek.pipeline.tables.target import FORMATS, TableTarget, open_table
from odradek.pipeline.values.json_values import JsonValues
from odradek.pipeline.values.raw_values import RawValues
from tests.pipeline.tables.table_samples import DAY_US, fill, job, plan
from tests.support.settled_topics import settled_records
from tests.support.written_records import write_values

KEEPS = {"retention.ms": "-1"}
"""Records of the samples are of 1970."""


def table_of(folder: Path, *plans: JobPlan, kind: str = "parquet") -> TableTarget:
    table = open_table(kind, str(folder / "table"))
    table.claim(job(kind))
    for each in plans:
        fill(table, each)
    table.close()
    return table


def options(broker: EmbeddedBroker, folder: Path, to: str, **more: object) -> ReplayOptions:
    given = {
        "table": str(folder / "table"),
        "to": to,
        "name": f"replay.{to}",
        "rows_per_transaction": 7,
        **more,
    }
    return ReplayOptions(bootstrap_servers=broker.bootstrap_servers, **given)  # type: ignore[arg-type]  # of the test


def values_in(broker: EmbeddedBroker, topic: str, partition: int) -> list[bytes | None]:
    found = settled_records(broker.bootstrap_servers, topic)
    return [record.value for record in found if record.partition == partition]


def expected(*offsets: int) -> list[bytes]:
    return [b"value-%d" % offset for offset in offsets]


def write_rows(table: TableTarget, of: JobPlan, batch: pa.RecordBatch) -> None:
    table.prepare(of)
    writer = PieceWriter(table.staging(of), of.ranges[0])
    writer.add(rows_of(batch, RawValues(), "date").rows)
    files = tuple(writer.close()[0])
    schema = table_schema(RawValues(), "date")
    table.commit(of, PlanResult(files, bad=0, committed_ms=1, schema=schema))


@pytest.mark.parametrize("kind", FORMATS)
def test_partitions_and_order_are_kept(
    kafka_broker: EmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    table_of(tmp_path, plan(1, (0, 100, 130), (2, 5, 9)), plan(2, (0, 130, 140)), kind=kind)
    seen: list[tuple[PartitionName, int]] = []
    topic = f"replay-order-{kind}"
    result = replay(options(kafka_broker, tmp_path, topic), lambda *each: seen.append(each))
    assert (result.rows, result.resumed) == (44, 0)
    assert values_in(kafka_broker, topic, 0) == expected(*range(100, 140))
    assert values_in(kafka_broker, topic, 1) == []
    assert values_in(kafka_broker, topic, 2) == expected(*range(5, 9))
    assert seen[-1] == (PartitionName("orders", 2), 9)
    assert len(seen) > 6


@pytest.mark.parametrize("kind", FORMATS)
def test_a_record_keeps_key_value_headers_and_time(
    kafka_broker: EmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    listed = [
        (0, None, None, 1, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]),
        (1, b"", b"", DAY_US // 1000, []),
        (4, b"k", b"\0\xff", 5, None),
    ]
    columns = {
        "offset": [each[0] for each in listed],
        "key": [each[1] for each in listed],
        "value": [each[2] for each in listed],
        "timestamp": [each[3] * 1000 for each in listed],
        "headers": [each[4] for each in listed],
        "topic": ["orders"] * 3,
        "partition": [0] * 3,
        "timestampType": [0, 1, 0],
    }
    table = table_of(tmp_path, kind=kind)
    table.claim(job(kind))
    batch = pa.RecordBatch.from_pydict(columns, schema=KAFKA_SCHEMA)
    write_rows(table, plan(1, (0, 0, 5)), batch)
    topic = f"replay-all-{kind}"
    replay(options(kafka_broker, tmp_path, topic))
    found = settled_records(kafka_broker.bootstrap_servers, topic)
    assert [(each.key, each.value, each.timestamp_ms, each.headers) for each in found] == [
        (None, None, 1, [("h", b"1"), ("h", None)]),
        (b"", b"", DAY_US // 1000, []),
        (b"k", b"\0\xff", 5, []),
    ]


def test_a_second_run_goes_on_where_the_first_ended(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table = table_of(tmp_path, plan(1, (0, 0, 10)))
    assert replay(options(kafka_broker, tmp_path, "replay-more")).rows == 10
    assert replay(options(kafka_broker, tmp_path, "replay-more")).rows == 0
    table.claim(job())
    fill(table, plan(2, (0, 10, 12), (1, 0, 3)))
    with pytest.raises(PipelineError, match="has 1 partitions and the source 2"):
        replay(options(kafka_broker, tmp_path, "replay-more"))
    kafka_broker.create_topic("replay-more-2", partitions=2, configs=KEEPS)
    result = replay(options(kafka_broker, tmp_path, "replay-more-2"))
    assert (result.rows, result.resumed) == (15, 0)
    assert replay(options(kafka_broker, tmp_path, "replay-more-2")).resumed == 2


class StopHere(Exception):
    """Ends a replay in the middle."""


def test_an_interrupted_replay_is_resumed_without_loss_or_repetition(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table_of(tmp_path, plan(1, (0, 0, 50), (1, 0, 50)))

    def stop(*_: object) -> None:
        raise StopHere

    interrupted = options(kafka_broker, tmp_path, "replay-stop")
    for _ in range(3):
        with pytest.raises(StopHere):
            replay(interrupted, stop)
    replay(interrupted)
    for partition in range(2):
        assert values_in(kafka_broker, "replay-stop", partition) == expected(*range(50))


def test_a_topic_with_records_is_only_appended_to(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table_of(tmp_path, plan(1, (0, 0, 3)))
    kafka_broker.create_topic("replay-full", configs=KEEPS)
    write_values(kafka_broker.bootstrap_servers, "replay-full", [b"before"])
    with pytest.raises(PipelineError, match=r"replay-full-0 has offsets 0 to 0; .*--append"):
        replay(options(kafka_broker, tmp_path, "replay-full"))
    replay(options(kafka_broker, tmp_path, "replay-full", append=True))
    replay(options(kafka_broker, tmp_path, "replay-full", append=True))
    assert values_in(kafka_broker, "replay-full", 0) == [b"before", *expected(0, 1, 2)]


def test_a_topic_that_replaces_times_is_refused(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table_of(tmp_path, plan(1, (0, 0, 3)))
    kafka_broker.create_topic("replay-time", configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(PipelineError, match="set it to CreateTime"):
        replay(options(kafka_broker, tmp_path, "replay-time"))


def test_what_cannot_be_replayed_is_told(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no table of a job"):
        replay(options(kafka_broker, tmp_path, "replay-none"))
    table = table_of(tmp_path)
    with pytest.raises(PipelineError, match="has no commit yet: run its offload first"):
        replay(options(kafka_broker, tmp_path, "replay-none"))
    table.claim(job())
    fill(table, plan(1, (0, 0, 3)))
    fill(table, plan(2, (0, 0, 3), topic="other"))
    with pytest.raises(PipelineError, match="has the topics orders, other: choose one by --topic"):
        replay(options(kafka_broker, tmp_path, "replay-none"))
    with pytest.raises(PipelineError, match="has no topic lost; it has orders, other"):
        replay(options(kafka_broker, tmp_path, "replay-none", topic="lost"))


def test_decoded_values_are_no_bytes(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    values = JsonValues("id BIGINT")
    table = open_table("parquet", str(tmp_path / "table"))
    table.claim(job())
    table.prepare(plan(1, (0, 0, 1)))
    schema = table_schema(values, "date")
    table.commit(plan(1, (0, 0, 1)), PlanResult((), bad=1, committed_ms=1, schema=schema))
    with pytest.raises(PipelineError, match="no column kafka_value: its values are decoded"):
        replay(options(kafka_broker, tmp_path, "replay-decoded"))


def test_an_offset_that_is_there_twice_ends_it(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table_of(tmp_path, plan(1, (0, 0, 3)), plan(2, (0, 2, 4)))
    with pytest.raises(
        PipelineError, match=r"has an offset of orders-0 twice .*odradek pipe verify"
    ):
        replay(options(kafka_broker, tmp_path, "replay-twice"))


def test_records_that_the_topic_may_delete_at_once_are_counted(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    table_of(tmp_path, plan(1, (0, 0, 3)))
    # A topic that replay makes keeps records of any age.
    assert replay(options(kafka_broker, tmp_path, "replay-made")).expired == 0
    kafka_broker.create_topic("replay-week")
    assert replay(options(kafka_broker, tmp_path, "replay-week")).expired == 3


def file_of(first: int, last: int, rows: int, partition: int = 0) -> DataFile:
    return DataFile("path", "", "orders", partition, first, last, rows, rows * 10)


@pytest.mark.parametrize(
    ("files", "bounds"),
    [
        ([], [(5, 100)]),
        ([file_of(5, 99, 4)], [(5, 100)]),
        ([file_of(5, 54, 10), file_of(55, 99, 10)], [(5, 55), (55, 100)]),
        ([file_of(0, 99, 40)], [(5, 25), (25, 50), (50, 75), (75, 100)]),
        ([file_of(5, 99, 10), file_of(10, 90, 5)], [(5, 10), (10, 100)]),
        ([file_of(5, 9, 3), file_of(10, 19, 3), file_of(20, 29, 6)], [(5, 20), (20, 100)]),
        ([file_of(5, 99, 1000, partition=1)], [(5, 100)]),
        ([file_of(200, 400, 1000)], [(5, 100)]),
    ],
)
def test_windows_cover_everything_once(
    files: Sequence[DataFile], bounds: list[tuple[int, int]]
) -> None:
    wanted = PartitionRange("orders", "id", 0, 5, 100)
    found = [(each.start, each.end) for each in windows_of(files, wanted, 10)]
    assert found == bounds
    assert all(before[1] == after[0] for before, after in pairwise(found))


def test_large_files_are_divided_by_bytes() -> None:
    wanted = PartitionRange("orders", "id", 0, 0, 100)
    large = DataFile("path", "", "orders", 0, 0, 99, 100, 64 * 1024 * 1024)
    assert len(list(windows_of([large], wanted, 1_000))) == 2
