"""Writes to the metadata log: one at a time, in a thread; exceptions are returned."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import Configuration, configuration_of
from odradek.cluster.raft.messages import Entry, SnapshotMetadata
from odradek.cluster.raft.ready import HardState, Ready, ReceivedChunk
from odradek.node.controller.metadata_log_writer import MetadataLogWriter
from odradek.protocol.checksum import crc32c
from odradek.storage.metadata_log import MetadataLog
from tests.support.waiting import is_readable, wait_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MetadataLog]:
    log = MetadataLog.open(tmp_path)
    yield log
    log.close()


@pytest.fixture
def writer(log: MetadataLog) -> Iterator[MetadataLogWriter]:
    writer = MetadataLogWriter(log)
    yield writer
    writer.close()


def entries(*indexes: int) -> Ready:
    return Ready(
        hard_state=HardState(1, 0, 0), entries=tuple(Entry(index, 1, b"x") for index in indexes)
    )


def test_a_write_wakes_the_poller_and_is_durable(writer: MetadataLogWriter) -> None:
    assert writer.take_result() is None
    writer.persist(entries(1, 2), may_use_reserve=False)
    wait_until(lambda: is_readable(writer), what="the poller is woken")
    result = wait_until(writer.take_result)
    assert result is not None
    assert result.error is None
    assert not is_readable(writer)
    restored = writer.restored(Configuration())
    assert [entry.index for entry in restored.entries] == [1, 2]
    assert restored.hard_state == HardState(1, 0, 0)


def test_an_exception_of_a_write_is_returned(writer: MetadataLogWriter) -> None:
    writer.persist(entries(7), may_use_reserve=False)
    assert writer.wait_result().error is not None, "entries 1 to 6 are missing"
    writer.persist(entries(1), may_use_reserve=False)
    assert writer.wait_result().error is None


def chunk(offset: int, data: bytes, *, checksum: int) -> Ready:
    snapshot = SnapshotMetadata(9, 2, 4, checksum, configuration_of([1]))
    return Ready(chunk=ReceivedChunk(snapshot, offset, data))


def test_a_received_snapshot_needs_the_right_checksum(writer: MetadataLogWriter) -> None:
    checksum = crc32c(b"abcd")
    for wanted in (checksum + 1, checksum):
        writer.persist(chunk(0, b"ab", checksum=wanted), may_use_reserve=False)
        assert not writer.wait_result().is_snapshot_corrupt
        writer.persist(chunk(2, b"cd", checksum=wanted), may_use_reserve=False)
        assert writer.wait_result().is_snapshot_corrupt == (wanted != checksum)
    assert writer.snapshot is not None
    assert writer.snapshot.index == 9


def test_closing_finishes_the_write_under_way(log: MetadataLog) -> None:
    writer = MetadataLogWriter(log)
    for index in range(1, 21):
        writer.persist(entries(index), may_use_reserve=False)
    writer.close()
    assert log.last_index == 20
