"""Queries about groups to a real node."""

import os
from collections.abc import Iterator

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.group_queries import GroupQueries
from odradek.protocol.errors import ErrorCode
from tests.node.cli.conftest import Run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


@pytest.fixture
def facts(bootstrap: str) -> Iterator[GroupQueries]:
    with ClusterClient(make_connection(bootstrap, 10.0, None, ())) as client:
        yield GroupQueries(client)


def test_a_groups_commits_and_topics_come_from_its_coordinator(
    kafka: Run, topic: str, group_name: str, facts: GroupQueries
) -> None:
    kafka("group", "reset-offsets", group_name, "-t", f"{topic}:1", "--to", "latest")
    [group] = facts.existing_groups([group_name])
    assert (group.name, group.commits(), group.topics()) == (group_name, {(topic, 1): 0}, [topic])
    assert group.coordinator in facts.brokers
    assert group_name in {found.name for found in facts.all_groups()}


def test_a_group_that_does_not_exist_has_an_error_code(
    facts: GroupQueries, group_name: str
) -> None:
    [group] = facts.groups([group_name])
    assert group.explained.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(click.ClickException, match=f"{group_name}: no such group"):
        facts.existing_groups([group_name])


def test_partitions_that_do_not_exist_have_an_error_code(facts: GroupQueries, topic: str) -> None:
    gone, there = ("no-such-topic", 0), (topic, 2)
    found = facts.lag([(gone, 0), (there, 0), (there, 7)])
    assert found[gone, 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (found[there, 0].records, found[there, 0].high_watermark) == (0, 0)
    assert found[there, 7].records == 0
