"""Transaction markers are written to all partitions, with retries."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from tests.support.transaction_harness import TOPIC, TransactionalClient, TransactionHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TransactionHarness]:
    with TransactionHarness(tmp_path) as harness:
        yield harness


def open_transaction(harness: TransactionHarness, version: int = 2) -> TransactionalClient:
    client = TransactionalClient(harness, version=version)
    client.init()
    client.add(0, 1)
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    return client


@pytest.mark.parametrize("version", [1, 2])
def test_each_partition_gets_one_marker(harness: TransactionHarness, version: int) -> None:
    client = open_transaction(harness, version)
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")
    assert [harness.end_offset(partition) for partition in (0, 1)] == [2, 2]
    assert [harness.last_stable_offset(partition) for partition in (0, 1)] == [2, 2]
    assert harness.services.markers.pending_count == 0


def test_a_restarted_router_completes_a_decided_transaction(
    harness: TransactionHarness,
) -> None:
    client = open_transaction(harness)
    assert client.end(is_commit=False) == ErrorCode.NONE
    harness.restart_router()
    harness.wait_for("CompleteAbort")
    assert harness.last_stable_offset() == harness.end_offset()


def test_deleted_partitions_need_no_marker(harness: TransactionHarness) -> None:
    client = open_transaction(harness)
    harness.drop_topic(TOPIC)
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")


def test_markers_of_offsets_go_through_the_group_shard(harness: TransactionHarness) -> None:
    client = open_transaction(harness)
    assert client.commit_offset(7) == ErrorCode.NONE
    assert client.fetch_offset() == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    client.end()
    harness.wait_for("CompleteCommit")
    assert client.fetch_offset() == 7
    harness.restart_router()
    assert client.fetch_offset() == 7
