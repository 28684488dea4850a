"""Markers find their partitions, however long that takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from tests.support.transaction_room import TOPIC, Client, TransactionRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[TransactionRoom]:
    with TransactionRoom(tmp_path) as room:
        yield room


def open_transaction(room: TransactionRoom, version: int = 2) -> Client:
    client = Client(room, version=version)
    client.init()
    client.add(0, 1)
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    return client


@pytest.mark.parametrize("version", [1, 2])
def test_every_partition_gets_one_marker(room: TransactionRoom, version: int) -> None:
    client = open_transaction(room, version)
    assert client.end() == ErrorCode.NONE
    room.wait_for("CompleteCommit")
    assert [room.end_offset(partition) for partition in (0, 1)] == [2, 2]
    assert [room.last_stable_offset(partition) for partition in (0, 1)] == [2, 2]
    assert room.services.markers.pending_count == 0


def test_a_router_that_dies_behind_the_decision_is_followed_by_one_that_carries_it_out(
    room: TransactionRoom,
) -> None:
    client = open_transaction(room)
    assert client.end(is_commit=False) == ErrorCode.NONE
    room.restart_router()
    room.wait_for("CompleteAbort")
    assert room.last_stable_offset() == room.end_offset()


def test_partitions_that_are_no_more_count_as_done(room: TransactionRoom) -> None:
    client = open_transaction(room)
    room.drop_topic(TOPIC)
    assert client.end() == ErrorCode.NONE
    room.wait_for("CompleteCommit")


def test_offsets_are_ended_by_their_group(room: TransactionRoom) -> None:
    client = open_transaction(room)
    assert client.commit_offset(7) == ErrorCode.NONE
    assert client.fetch_offset() == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    client.end()
    room.wait_for("CompleteCommit")
    assert client.fetch_offset() == 7
    room.restart_router()
    assert client.fetch_offset() == 7
