"""Committed offsets, read and set at the group's coordinator."""

from collections.abc import Iterator

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.group_offsets import commit_offsets, committed_offsets, share_positions

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(ClusterConnection(bootstrap=bootstrap, timeout_s=10.0)) as client:
        client.metadata()
        yield client


def test_committed_offsets_are_read_again(
    client: ClusterClient, topic: str, group_name: str
) -> None:
    assert committed_offsets(client, group_name) == {}
    commit_offsets(client, group_name, {(topic, 0): 7, (topic, 2): 0})
    assert committed_offsets(client, group_name) == {(topic, 0): 7, (topic, 2): 0}


def test_a_partition_that_does_not_exist_is_named(
    client: ClusterClient, topic: str, group_name: str
) -> None:
    with pytest.raises(click.ClickException, match=rf"1 of 2 offsets were refused, {topic}-99"):
        commit_offsets(client, group_name, {(topic, 0): 7, (topic, 99): 0})


def test_a_coordinator_that_does_not_answer_has_no_positions(
    client: ClusterClient, group_name: str
) -> None:
    assert share_positions(client, -1, group_name) == {}
