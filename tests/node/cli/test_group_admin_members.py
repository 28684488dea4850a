"""Removing the members of groups of each type."""

import os
from collections.abc import Iterator

import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.group_admin import remove_members
from odradek.node.cli.group_queries import GroupQueries
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(make_connection(bootstrap, 10.0, None, ())) as client:
        yield client


def coordinated(client: ClusterClient, group: str) -> GroupQueries:
    """Create the coordinators' topic by a request about a group."""
    facts = GroupQueries(client)
    facts.groups([group])
    return facts


def test_all_members_of_a_consumer_group_are_removed(
    client: ClusterClient, bootstrap: str, topic: str, group_name: str
) -> None:
    facts = coordinated(client, group_name)
    with WireClient(bootstrap) as wire:
        for member in ("first", "second"):
            request = ConsumerGroupHeartbeatRequest(
                group_id=group_name,
                member_id=member,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            wait_until(
                lambda request=request: (  # type: ignore[misc]  # bound to this round's
                    wire.ask(request, 1, ConsumerGroupHeartbeatResponse).error_code == 0
                )
            )
    [group] = facts.existing_groups([group_name])
    assert {member.member_id for member in group.explained.members} == {"first", "second"}
    remove_members(client, group.coordinator, group.explained)
    [left] = facts.existing_groups([group_name])
    assert (left.explained.group_state, left.explained.members) == ("Empty", [])


def test_the_members_of_a_share_group_are_removed(
    client: ClusterClient, bootstrap: str, topic: str, group_name: str
) -> None:
    facts = coordinated(client, group_name)
    with WireClient(bootstrap) as wire:
        request = ShareGroupHeartbeatRequest(
            group_id=group_name, member_id="m", subscribed_topic_names=[topic]
        )
        wait_until(lambda: wire.ask(request, 1, ShareGroupHeartbeatResponse).error_code == 0)
    [group] = facts.existing_groups([group_name])
    assert (group.explained.group_type, group.topics()) == ("share", [topic])
    assert [member.member_id for member in group.explained.members] == ["m"]
    remove_members(client, group.coordinator, group.explained)
    [left] = facts.existing_groups([group_name])
    assert (left.explained.group_state, left.explained.members) == ("Empty", [])
