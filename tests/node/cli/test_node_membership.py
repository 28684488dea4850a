"""`odradek node add` and `remove`: refusals and their reasons.

How a cluster grows and shrinks by them is shown in tests/e2e/test_growth.py.
"""

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.node_membership import VOTERS_MAX, refuse_if_hosting, target_voter_count
from odradek.protocol.messages.metadata import MetadataRequest
from tests.node.cli.conftest import Run
from tests.support.ports import free_port
from tests.support.stand_in_cluster import stand_in_cluster


@pytest.mark.parametrize(("nodes", "votes"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5)])
def test_the_target_number_of_voters_is_odd_and_limited(nodes: int, votes: int) -> None:
    assert target_voter_count(nodes) == votes
    assert target_voter_count(99) == VOTERS_MAX


@pytest.mark.e2e
def test_a_voter_is_not_added_again(kafka: Run) -> None:
    ran = kafka("node", "add", "0", "-o", "json")
    assert ran.json() == {"node": 0, "is_new": False, "voters": [0]}
    assert "is a voter already; voters: 0" in kafka("node", "add", "0").stdout


@pytest.mark.e2e
def test_a_node_that_has_not_joined_is_an_error_with_advice(kafka: Run) -> None:
    ran = kafka("node", "add", "77", "--timeout", "2")
    assert ran.exit_code == 1
    assert "node 77 does not follow the metadata: start it with join=" in ran.stderr


@pytest.mark.e2e
def test_a_node_that_does_not_exist_cannot_be_removed(kafka: Run) -> None:
    ran = kafka("node", "remove", "77")
    assert ran.exit_code == 1
    assert "77: no such node" in ran.stderr


@pytest.mark.e2e
def test_a_node_with_replicas_and_the_only_voter_are_not_removed(kafka: Run, topic: str) -> None:
    ran = kafka("node", "remove", "0")
    assert ran.exit_code == 1
    assert "node 0 hosts replicas of" in ran.stderr
    assert "odradek node drain 0" in ran.stderr
    forced = kafka("node", "remove", "0", "--force")
    assert forced.exit_code == 1
    assert "is the only voter" in forced.stderr
    assert kafka("topic", "describe", topic).exit_code == 0


def test_a_broker_that_does_not_know_of_the_end_of_a_drain_yet_is_asked_again() -> None:
    with stand_in_cluster(2) as brokers:
        brokers.has("t", (1,))
        asked = 0

        def forget(request: object) -> None:
            nonlocal asked
            asked += isinstance(request, MetadataRequest)
            if asked == 3:
                brokers.delete("t")

        with ClusterClient(make_connection(brokers.bootstrap, 10.0, None, ())) as client:
            with pytest.raises(click.ClickException, match="node 1 hosts replicas of t-0"):
                refuse_if_hosting(1, client)
            asked = 0
            brokers.before = forget
            refuse_if_hosting(1, client)


def test_membership_without_a_cluster_is_an_error(odradek: Run) -> None:
    ran = odradek("node", "add", "1", "-b", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "cannot reach the cluster" in ran.stderr


def test_the_commands_are_found_beside_those_that_run_a_node(odradek: Run) -> None:
    shown = odradek("node", "--help").stdout
    assert all(f"  {name} " in shown for name in ("add", "remove", "start"))
    assert odradek("node", "add", "x").exit_code == 2
