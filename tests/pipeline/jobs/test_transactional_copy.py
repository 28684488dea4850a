"""Copies in transactions: what arrives, what is aborted, who is fenced."""

import time

import pyarrow as pa
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_progress import CopyPosition, read_positions
from odradek.pipeline.jobs.transactional_copy import CopyInterrupted, OffsetRun, TransactionalCopy
from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionName
from tests.support.committed_records import CommittedRecord
from tests.support.ports import free_port
from tests.support.settled_topics import settled_records

Row = tuple[int, bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
"""(offset, key, value, time in ms, headers)"""


KEEPS = {"retention.ms": "-1"}
"""Records of these tests are of 1970."""


def rows(*listed: Row) -> pa.RecordBatch:
    """Records as a partition's reader gives them."""
    columns = {
        "key": [each[1] for each in listed],
        "value": [each[2] for each in listed],
        "topic": ["source"] * len(listed),
        "partition": [0] * len(listed),
        "offset": [each[0] for each in listed],
        "timestamp": [each[3] * 1000 for each in listed],
        "timestampType": [0] * len(listed),
        "headers": [
            [{"key": name, "value": value} for name, value in each[4]] or None for each in listed
        ],
    }
    return pa.RecordBatch.from_pydict(columns, schema=KAFKA_SCHEMA)


def plain(*offsets: int) -> pa.RecordBatch:
    return rows(*((offset, None, b"%d" % offset, 1_000 + offset, []) for offset in offsets))


def position(offset: int, end: int) -> CopyPosition:
    return CopyPosition(source="test", topic_id="", next_offset=offset, target_end=end)


def open_copy(kafka_broker: EmbeddedBroker, name: str) -> TransactionalCopy:
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}
    return TransactionalCopy(properties, name, timeout_s=30)


def test_records_keep_all_that_they_have(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("copy-all", partitions=2, configs=KEEPS)
    listed: list[Row] = [
        (10, None, None, 5_000, []),
        (11, b"", b"", 4_000, [("h", b"1"), ("h", None), ("", b"")]),
        (12, b"k", b"v", 1_700_000_000_123, [("ä", b"\0\xff")]),
        (14, b"k", None, 0, []),
    ]
    here = PartitionName("copy-all", 1)
    with open_copy(kafka_broker, "all") as copy:
        copy.begin()
        copy.send(here, rows(*listed))
        assert copy.flush() == {here: [OffsetRun(10, 0, 3), OffsetRun(14, 3, 1)]}
        copy.commit({here: position(15, 4)})
        assert copy.zero_timestamps == 1
        copy.begin()
        copy.send(here, plain(20))
        # The marker of the first transaction has the offset 4.
        assert copy.flush() == {here: [OffsetRun(20, 5, 1)]}
        copy.commit({here: position(21, 6)})
    found = settled_records(kafka_broker.bootstrap_servers, "copy-all")
    expected = [
        CommittedRecord(1, offset, key, value, max(time, 1), [*headers])
        for offset, (_, key, value, time, headers) in enumerate(listed)
    ]
    assert found[:4] == expected
    assert found[4].value == b"20"


def test_what_is_not_committed_is_aborted_with_its_position(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("copy-aborted", partitions=1, configs=KEEPS)
    here = PartitionName("copy-aborted", 0)
    with open_copy(kafka_broker, "aborted") as copy:
        copy.begin()
        copy.commit({here: position(5, 0)})
        copy.begin()
        copy.send(here, plain(5, 6))
        copy.flush()
    assert settled_records(kafka_broker.bootstrap_servers, "copy-aborted") == []
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    found = read_positions(properties, "pipe.aborted", [here], source="test", timeout_s=30)
    assert found == {here: position(5, 0)}


def test_notes_are_in_the_transaction(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("copy-notes", partitions=1, configs=KEEPS)
    here = PartitionName("copy-notes", 0)
    with open_copy(kafka_broker, "notes") as copy:
        copy.begin()
        copy.send_note("copy-notes", b"lost", b"x")
        copy.flush()
    with open_copy(kafka_broker, "notes") as copy:
        copy.begin()
        copy.send_note("copy-notes", b"kept", b"y")
        assert copy.flush() == {}
        copy.commit({here: position(1, 0)})
    found = settled_records(kafka_broker.bootstrap_servers, "copy-notes")
    assert [record.key for record in found] == [b"kept"]


def test_a_second_one_of_the_same_name_fences_the_first(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("copy-fenced", partitions=1, configs=KEEPS)
    here = PartitionName("copy-fenced", 0)
    with open_copy(kafka_broker, "fenced") as first:
        first.begin()
        first.send(here, plain(1))
        first.flush()
        with (
            open_copy(kafka_broker, "fenced"),
            pytest.raises(PipelineError, match="another process"),
        ):
            first.commit({here: position(2, 1)})
    with open_copy(kafka_broker, "fenced") as first:

        def send_again(count: int) -> None:
            for _ in range(count):
                first.send(here, plain(1))

        first.begin()
        with (
            open_copy(kafka_broker, "fenced"),
            pytest.raises(PipelineError, match="another process"),
        ):
            # It hears of it before it has sent all.
            send_again(200_000)
    assert settled_records(kafka_broker.bootstrap_servers, "copy-fenced") == []


@pytest.mark.parametrize(
    ("config", "value", "row", "told"),
    [
        ("max.message.bytes", "1000", (8, b"k", bytes(5000), 1_000, []), "raise .* max.message"),
        ("message.timestamp.before.max.ms", "1000", (8, b"k", b"", 1_000, []), "before.max.ms"),
        ("cleanup.policy", "compact", (8, None, b"", 1_000, []), "a compacted one needs keys"),
    ],
)
def test_a_record_that_the_target_does_not_take_is_told(
    kafka_broker: EmbeddedBroker, config: str, value: str, row: Row, told: str
) -> None:
    topic = f"copy-{config}"
    kafka_broker.create_topic(topic, configs={config: value})
    now_ms = int(time.time() * 1000)
    good: list[Row] = [(offset, b"k", b"v", now_ms, []) for offset in (5, 6, 7)]
    with open_copy(kafka_broker, config) as copy:
        copy.begin()
        copy.send(PartitionName(topic, 0), rows(*good, row))
        with pytest.raises(PipelineError, match=f"cannot write offset [5-8] to {topic}-0 .*{told}"):
            copy.flush()


def test_nobody_there_is_told() -> None:
    address = f"127.0.0.1:{free_port()}"
    properties = {"bootstrap.servers": address, "log_level": "0"}
    with (
        pytest.raises(CopyInterrupted, match=f"no answer from {address}"),
        TransactionalCopy(properties, "nobody", timeout_s=1),
    ):
        pass
