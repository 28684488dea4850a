"""`odradek node add` and `odradek node remove`: voters of the quorum, and removal from the cluster.

    node add       the node is an observer (started with join)  ->  it has caught up  ->  it is a
                   voter
    node remove    it hosts no replicas  ->  it is not a voter  ->  it is stopped  ->  its broker is
                   unregistered

Each step checks what is done already, so that an interrupted command can be run again. A node with
a new data folder is an observer beside its old replica: then `remove` removes the old voter only,
and the node stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import click

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.not_found import no_such_node
from odradek.node.cli.output import Output, first_names
from odradek.node.cli.quorum import Quorum, add_voter, describe, remove_voter
from odradek.node.cli.replication_throttles import cordon
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import DescribeQuorumReplicaState, UnregisterBrokerRequest
from odradek.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    MetadataRequest,
)
from odradek.protocol.types import uuid_to_text

POLL_S: Final = 0.2
VOTERS_MAX: Final = 5
"""Of a local cluster: more voters make every commit slower and the quorum hardly safer."""
METADATA_LAG_S: Final = 2.0
"""A broker may know of the end of a drain so much later than the one that was asked before."""
T = TypeVar("T")


@click.command()
@click.argument("node_id", type=click.IntRange(min=0))
@with_client
def add(node_id: int, client: ClusterClient, output: Output) -> None:
    """Give a node that has joined the cluster a vote in its quorum.

    Start the node first, with join and peer.listen in its configuration. It serves clients without
    a vote as well. With three or five voters the cluster tolerates the failure of one or two of
    them.
    """
    client.time_each_answer()
    quorum = _quorum_with_leader(client)
    is_new = quorum.voter(node_id) is None or quorum.observer(node_id) is not None
    if is_new:
        quorum = promote_to_voter(node_id, client, output)
    output.done(
        f"Node {node_id} {'is a voter' if is_new else 'is a voter already'}; {_voters(quorum)}.",
        {"node": node_id, "is_new": is_new, "voters": quorum.voter_ids},
    )
    if len(quorum.voters) % 2 == 0:
        output.hint(
            f"{len(quorum.voters)} voters tolerate no more failures than"
            f" {len(quorum.voters) - 1}: add a voter, or remove one."
        )


@click.command(short_help="Take a node out of the cluster for good.")
@click.argument("node_id", type=click.IntRange(min=0))
@click.option("--force", is_flag=True, help="Even if it hosts replicas, which are lost.")
@with_client
def remove(node_id: int, force: bool, client: ClusterClient, output: Output) -> None:
    """Take a node out of the cluster for good: its vote, then its registration.

    Move its replicas away first (odradek node drain). Stop the node when it has lost its vote: the
    command waits for that until --timeout, and can be run again.
    """
    quorum = _quorum_with_leader(client)
    voter, observer = quorum.voter(node_id), quorum.observer(node_id)
    broker = _broker(node_id, client)
    if voter is None and observer is None and broker is None:
        client.metadata()
        raise no_such_node(node_id, {*client.broker_ids, *quorum.voter_ids})
    is_replaced = voter is not None and observer is not None
    if not is_replaced and not force:
        refuse_if_hosting(node_id, client)
    if voter is not None:
        remove_voter(client, voter)
        quorum = _quorum_with_leader(client)
    is_unregistered = broker is not None and not is_replaced
    if is_unregistered:
        _unregister(node_id, client, output)
    text = f"Node {node_id} was removed from the cluster; {_voters(quorum)}."
    if is_replaced:
        text = (
            f"The replica of node {node_id} in its old data folder is no longer a voter;"
            f" {_voters(quorum)}.\nThe node is an observer with a new folder: odradek node add"
            f" {node_id} makes it a voter."
        )
    output.done(
        text,
        {
            "node": node_id,
            "has_lost_vote": voter is not None,
            "is_unregistered": is_unregistered,
            "voters": quorum.voter_ids,
        },
    )


def promote_to_voter(node_id: int, client: ClusterClient, output: Output) -> Quorum:
    """Wait until a node is an observer and has caught up, then make it a voter; the new quorum.

    ClickException if it is no observer, does not catch up, or is refused.
    """
    observer = _poll_until(
        lambda: _observer(node_id, client),
        client,
        f"node {node_id} does not follow the metadata: start it with join=HOST:PORT of a node of"
        " the cluster, peer.listen, and the cluster's cluster.id and cluster.secret. If it runs,"
        " its log says why it cannot join",
    )
    output.hint(f"Node {node_id} is an observer; it becomes a voter when it has caught up.")
    _catch_up(observer, client, output)
    quorum = _quorum_with_leader(client)
    old = quorum.voter(node_id)
    if old is not None and old.replica_directory_id != observer.replica_directory_id:
        raise click.ClickException(
            f"node {node_id} has a new data folder, and its old replica"
            f" ({uuid_to_text(old.replica_directory_id)}) is still a voter: run odradek node remove"
            f" {node_id}, then this command again"
        )

    def is_added() -> bool:
        # The leader may still list the old replica of a node as an observer.
        answer = add_voter(client, _observer(node_id, client) or observer)
        if answer.error_code == ErrorCode.DUPLICATE_VOTER:
            return True  # an answer was lost: it is a voter
        if answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
            raise_on_error(answer, f"node {node_id} cannot become a voter")
        reasons.append(answer.error_message or "no majority of the voters answered in time")
        return not answer.error_code

    reasons: list[str] = []
    _poll_until(is_added, client, lambda: f"node {node_id} is not a voter yet: {reasons[-1]}")
    return _poll_until(
        lambda: _with_voter(node_id, client), client, f"node {node_id} is not a voter yet"
    )


def target_voter_count(node_count: int) -> int:
    """The number of voters among so many nodes, at most VOTERS_MAX. It is odd: an even number makes
    the majority larger and tolerates no more failures."""
    return min(VOTERS_MAX, node_count - 1 + node_count % 2)


def promote_to_voters(node_ids: Sequence[int], client: ClusterClient, output: Output) -> list[int]:
    """Make the first of these nodes voters, up to `target_voter_count`; the new voters."""
    quorum = _quorum_with_leader(client)
    missing = target_voter_count(len(node_ids)) - len(quorum.voters)
    without = [node_id for node_id in node_ids if quorum.voter(node_id) is None]
    chosen = without[: max(0, missing)]
    for node_id in chosen:
        promote_to_voter(node_id, client, output)
    return chosen


def take_votes(node_ids: Sequence[int], client: ClusterClient) -> list[int]:
    """Take the votes of those of these nodes that have one; who had one."""
    taken = []
    for node_id in node_ids:
        voter = _quorum_with_leader(client).voter(node_id)
        if voter is not None:
            remove_voter(client, voter)
            taken.append(node_id)
    return taken


def unregister_stopped(
    node_ids: Sequence[int], client: ClusterClient, output: Output, *, waits: bool
) -> list[int]:
    """Unregister those of these brokers that are stopped, or all once they are; their ids."""
    unregistered = []
    for node_id in node_ids:
        broker = _broker(node_id, client)
        if broker is not None and (waits or broker.is_fenced):
            _unregister(node_id, client, output)
            unregistered.append(node_id)
    return unregistered


def members(client: ClusterClient) -> tuple[set[int], set[int]]:
    """The ids of all registered brokers, and of all members of the quorum."""
    answer = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    raise_on_error(answer, "the cluster is not described")
    quorum = _quorum_with_leader(client)
    return {broker.broker_id for broker in answer.brokers}, set(quorum.voter_ids)


# -- steps -----------------------------------------------------------------------------------------


def _quorum_with_leader(client: ClusterClient) -> Quorum:
    return _poll_until(
        lambda: describe(client),
        client,
        "the quorum has no leader: start a majority of its voters; odradek cluster status"
        " shows them",
    )


def _observer(node_id: int, client: ClusterClient) -> DescribeQuorumReplicaState | None:
    quorum = describe(client)
    return None if quorum is None else quorum.observer(node_id)


def _with_voter(node_id: int, client: ClusterClient) -> Quorum | None:
    quorum = describe(client)
    return None if quorum is None or quorum.voter(node_id) is None else quorum


def _catch_up(observer: DescribeQuorumReplicaState, client: ClusterClient, output: Output) -> None:
    """Show progress until a node has the entries that exist when this begins."""
    node_id, end = observer.replica_id, _quorum_with_leader(client).end
    begin = done = max(0, observer.log_end_offset)
    if done >= end:
        return
    with output.progress(f"Node {node_id} catches up", end - begin) as advance:
        deadline = time.monotonic() + client.timeout_s
        while done < end:
            found = _observer(node_id, client)
            if found is not None and found.log_end_offset > done:
                advance(found.log_end_offset - done)
                done = found.log_end_offset
                deadline = time.monotonic() + client.timeout_s
            if time.monotonic() > deadline:
                raise click.ClickException(
                    f"node {node_id} does not catch up: it has {done} of {end} entries. Is it"
                    " running, and is its disk full?"
                )
            time.sleep(POLL_S)


def refuse_if_hosting(node_id: int, client: ClusterClient) -> None:
    """ClickException if the node hosts replicas for longer than METADATA_LAG_S."""
    deadline = time.monotonic() + METADATA_LAG_S
    while hosted := _hosted(node_id, client):
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"node {node_id} hosts replicas of {first_names(hosted)}: move them away with"
                f" odradek node drain {node_id}, or pass --force if they are lost"
            )
        time.sleep(POLL_S)


def _hosted(node_id: int, client: ClusterClient) -> list[str]:
    metadata = client.ask(MetadataRequest(topics=None))
    return sorted(
        f"{topic.name}-{partition.partition_index}"
        for topic in metadata.topics
        for partition in topic.partitions
        if node_id in partition.replica_nodes
    )


def _broker(node_id: int, client: ClusterClient) -> DescribeClusterBroker | None:
    answer = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    raise_on_error(answer, "the cluster is not described")
    return next((broker for broker in answer.brokers if broker.broker_id == node_id), None)


def _unregister(node_id: int, client: ClusterClient, output: Output) -> None:
    def is_stopped() -> bool:
        broker = _broker(node_id, client)
        return broker is None or broker.is_fenced

    if not is_stopped():
        output.hint(f"Stop node {node_id} now: it is unregistered as soon as it has stopped.")
        _poll_until(
            is_stopped,
            client,
            f"node {node_id} is no longer a voter, but it still runs and would register itself"
            " again: stop it, then run this command again",
        )
    # Its settings outlive the broker: a node that gets its id later would get no replicas.
    refusal = cordon(client, node_id, is_cordoned=False)
    if refusal is not None:
        output.hint(f"If there is a node {node_id} again, it may get no replicas: {refusal}")
    answer = client.ask(UnregisterBrokerRequest(broker_id=node_id))
    if answer.error_code != ErrorCode.BROKER_ID_NOT_REGISTERED:
        raise_on_error(answer, f"node {node_id} cannot be unregistered")


def _poll_until(
    poll: Callable[[], T | None], client: ClusterClient, error: str | Callable[[], str]
) -> T:
    """The first result of `poll` that is true; ClickException after the timeout."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        if result := poll():
            return result
        if time.monotonic() > deadline:
            raise click.ClickException(error if isinstance(error, str) else error())
        time.sleep(POLL_S)


def _voters(quorum: Quorum) -> str:
    return "voters: " + ", ".join(map(str, quorum.voter_ids))
