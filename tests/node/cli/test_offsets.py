"""Offsets of many partitions in one question, against a cluster."""

from collections.abc import Iterator

import click
import pytest

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
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
    assert list(offsets.earliest_offsets(client, partition_ids).values()) == [0, 0, 0]
    assert list(offsets.latest_offsets(client, partition_ids).values()) == [0, 0, 2]
    assert list(offsets.offsets_at(client, partition_ids, 4000).values()) == [-1, -1, 0]
    assert list(offsets.offsets_at(client, partition_ids, 6000).values()) == [-1, -1, -1]


def test_no_partitions_ask_nothing(client: ClusterClient) -> None:
    assert offsets.latest_offsets(client, []) == {}


def test_an_unknown_topic_is_named(client: ClusterClient) -> None:
    with pytest.raises(click.ClickException, match="topic 'no-such-topic'"):
        offsets.partitions_of(client, ["no-such-topic"])


def test_partitions_without_a_leader_do_not_keep_others_from_being_told(
    kafka: Run, topic: str, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MOVING_S", 0.1)
    gone = (topic, 99)
    assert offsets.known_ends(client, [(topic, 0), gone]) == {(topic, 0): 0, gone: None}
    assert offsets.known_starts(client, [gone]) == {gone: None}
    monkeypatch.setattr(offsets, "LEADERLESS_S", 0.1)
    assert offsets.by_leader(client, [gone]) == {-1: {topic: [99]}}
