"""Offsets of many partitions, against a cluster."""

from collections.abc import Iterator

import click
import pytest

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.protocol.messages.partitions import TopicPartitions
from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(ClusterConnection(bootstrap=bootstrap, timeout_s=10.0)) as client:
        yield client


@pytest.mark.usefixtures("keeps_old_records")
def test_ends_are_exclusive_and_a_time_without_records_is_minus_one(
    kafka: Run, topic: str, client: ClusterClient
) -> None:
    kafka("produce", topic, "a", "b", "-p", "2", "--timestamp", "5000")
    partition_ids = offsets.partitions_of(client, [topic])
    assert partition_ids == [(topic, 0), (topic, 1), (topic, 2)]
    assert list(offsets.list_offsets(client, partition_ids, offsets.EARLIEST).values()) == [0, 0, 0]
    assert list(offsets.list_offsets(client, partition_ids, offsets.LATEST).values()) == [0, 0, 2]
    assert list(offsets.list_offsets(client, partition_ids, 4000).values()) == [-1, -1, 0]
    assert list(offsets.list_offsets(client, partition_ids, 6000).values()) == [-1, -1, -1]


def test_no_partitions_need_no_request(client: ClusterClient) -> None:
    assert offsets.list_offsets(client, [], offsets.LATEST) == {}


def test_an_unknown_topic_is_named(client: ClusterClient) -> None:
    with pytest.raises(click.ClickException, match="no-such-topic: no such topic"):
        offsets.partitions_of(client, ["no-such-topic"])


def test_offsets_of_partitions_without_a_leader_are_none(
    kafka: Run, topic: str, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MOVING_S", 0.1)
    gone = (topic, 99)
    assert offsets.known_offsets(client, [(topic, 0), gone], offsets.LATEST) == {
        (topic, 0): 0,
        gone: None,
    }
    assert offsets.known_offsets(client, [gone], offsets.EARLIEST) == {gone: None}
    assert offsets.by_leader(client, [gone]) == {-1: [TopicPartitions(name=topic, partitions=[99])]}
