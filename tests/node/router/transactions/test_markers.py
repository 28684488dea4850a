"""Markers find their partitions, however long that takes."""

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
def test_every_partition_gets_one_marker(harness: TransactionHarness, version: int) -> None:
    client = open_transaction(harness, version)
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")
    assert [harness.end_offset(partition) for partition in (0, 1)] == [2, 2]
    assert [harness.last_stable_offset(partition) for partition in (0, 1)] == [2, 2]
    assert harness.services.markers.pending_count == 0


def test_a_router_that_dies_behind_the_decision_is_followed_by_one_that_carries_it_out(
    harness: TransactionHarness,
) -> None:
    client = open_transaction(harness)
    assert client.end(is_commit=False) == ErrorCode.NONE
    harness.restart_router()
    harness.wait_for("CompleteAbort")
    assert harness.last_stable_offset() == harness.end_offset()


def test_partitions_that_are_no_more_count_as_done(harness: TransactionHarness) -> None:
    client = open_transaction(harness)
    harness.drop_topic(TOPIC)
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")


def test_offsets_are_ended_by_their_group(harness: TransactionHarness) -> None:
    client = open_transaction(harness)
    assert client.commit_offset(7) == ErrorCode.NONE
    assert client.fetch_offset() == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    client.end()
    harness.wait_for("CompleteCommit")
    assert client.fetch_offset() == 7
    harness.restart_router()
    assert client.fetch_offset() == 7
