"""Requests about the quorum to a real broker, and its responses."""

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.quorum import Quorum, add_voter, describe, quorum_state, remove_voter
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import DescribeQuorumReplicaState


def replica(
    node_id: int, *, end: int = 0, fetched_ms: int = -1, folder: int = 0
) -> DescribeQuorumReplicaState:
    return DescribeQuorumReplicaState(
        replica_id=node_id,
        log_end_offset=end,
        last_fetch_timestamp=fetched_ms,
        replica_directory_id=folder.to_bytes(16),
    )


def at(bootstrap: str) -> ClusterClient:
    return ClusterClient(ClusterConnection(bootstrap=bootstrap, timeout_s=10.0, properties={}))


def test_voters_and_observers_are_found_by_their_nodes() -> None:
    quorum = Quorum(
        2,
        (replica(2, end=9), replica(0, end=8)),
        (replica(2, folder=1, fetched_ms=5), replica(2, folder=2, fetched_ms=7), replica(4)),
    )
    assert quorum.voter_ids == [0, 2]
    assert quorum.end == 9
    assert quorum.voter(2) == replica(2, end=9)
    assert quorum.voter(4) is quorum.observer(0) is None
    assert quorum.observer(2) == replica(2, folder=2, fetched_ms=7), "the one that is alive"


@pytest.mark.e2e
def test_a_broker_describes_its_quorum(bootstrap: str) -> None:
    with at(bootstrap) as client:
        quorum = describe(client)
        described = quorum_state(client)
    assert quorum is not None
    assert quorum.voter_ids == [quorum.leader_id]
    assert quorum.observers == ()
    assert quorum.end > 0
    assert described is not None
    assert described.leader_id == quorum.leader_id


@pytest.mark.e2e
def test_an_absent_node_is_not_added_and_the_last_voter_is_not_removed(bootstrap: str) -> None:
    with at(bootstrap) as client:
        answer = add_voter(client, replica(77, folder=5))
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert answer.error_message is not None
        assert "does not follow the metadata" in answer.error_message
        quorum = describe(client)
        assert quorum is not None
        with pytest.raises(click.ClickException, match="is the only voter"):
            remove_voter(client, quorum.voters[0])
        remove_voter(client, replica(quorum.leader_id, folder=5))  # it is gone already
        after = describe(client)
        assert after is not None
        assert after.voter_ids == quorum.voter_ids
