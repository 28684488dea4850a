"""`odradek cluster scale-up`: more nodes, which get their part of the replicas.

For whatever runs nodes by number and has just started more of them, as a StatefulSet of Kubernetes
does. It waits for the nodes, which need not have joined yet, and then does what `cluster rebalance`
does. The inverse of `cluster scale-down`, and like it, it changes nothing when there is nothing
left to do.
"""

from __future__ import annotations

import time
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.output import Output
from odradek.node.cli.rebalance import RebalanceOptions, balance, with_options
from odradek.node.cli.replica_placement import view_cluster
from odradek.protocol.messages.metadata import DescribeClusterRequest

POLL_S: Final = 0.5


@click.command("scale-up", short_help="Wait for new nodes, and balance all over them.")
@click.argument("node_count", metavar="NODES", type=click.IntRange(min=1))
@with_options
@with_client
def scale_up(
    node_count: int, options: RebalanceOptions, client: ClusterClient, output: Output
) -> None:
    """Wait until every node whose id is below NODES serves, then balance replicas and leaders.

    It waits until --timeout, which is also the longest time for each answer. The nodes have joined
    by themselves; drained ones get no replicas (odradek cluster rebalance --include NODE).
    """
    if options.cancel:
        raise click.UsageError("odradek cluster rebalance --cancel cancels the moves in progress.")
    client.time_each_answer()
    _wait_for_nodes(node_count, client, output)
    balance(client, view_cluster(client), options, output)


def _wait_for_nodes(node_count: int, client: ClusterClient, output: Output) -> None:
    """ClickException if one of the nodes does not serve until the timeout."""
    deadline = time.monotonic() + client.timeout_s
    said: list[int] = []
    while missing := _missing(node_count, client):
        names = ", ".join(map(str, missing))
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"node {names} does not serve: start it, or see in its log why it does not join."
                " Nothing was moved; run the command again"
            )
        if missing != said:
            output.hint(f"Waiting until node {names} serves.")
            said = missing
        time.sleep(POLL_S)


def _missing(node_count: int, client: ClusterClient) -> list[int]:
    answer = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    raise_on_error(answer, "the cluster is not described")
    serving = {broker.broker_id for broker in answer.brokers if not broker.is_fenced}
    return sorted(set(range(node_count)) - serving)
