"""`odradek cluster scale-down`: fewer nodes, those with the lowest ids.

For whatever runs nodes by number and stops the last ones, as a StatefulSet of Kubernetes does. What
`node drain` and `node remove` do for one node is done for all that are to go, in this order: they
get no new replicas, their replicas are moved to nodes that stay, their votes are taken, and those
that have been stopped are unregistered. Each step looks at what is done already: the command is run
before the nodes are stopped and once more after it, and changes nothing when there is nothing left
to do.
"""

from __future__ import annotations

import click

from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.node_membership import members, take_votes, unregister_stopped
from odradek.node.cli.output import Output
from odradek.node.cli.rebalance import (
    RebalanceOptions,
    cordon_node,
    drain_nodes,
    print_drained,
    raise_if_left,
    with_options,
)
from odradek.node.cli.replica_placement import view_cluster


@click.command("scale-down", short_help="Make all nodes but the first ones ready to be stopped.")
@click.argument("node_count", metavar="NODES", type=click.IntRange(min=1))
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until the nodes are stopped, and unregister them."
)
@with_options
@with_client
def scale_down(
    node_count: int,
    waits: bool,
    options: RebalanceOptions,
    client: ClusterClient,
    output: Output,
) -> None:
    """Make every node whose id is NODES or more ready to be stopped for good.

    Their replicas move to the nodes that stay, and they lose their votes. Run the command again
    when they are stopped, or with --wait: that unregisters them. It changes nothing if there are no
    such nodes.
    """
    if options.cancel:
        raise click.UsageError("odradek node drain NODE_ID --cancel cancels the moves of a node.")
    client.time_each_answer()
    brokers, voters = members(client)
    leaving = sorted(each for each in brokers | voters if each >= node_count)
    if not leaving:
        output.done(
            f"No node has an id of {node_count} or more.",
            {"nodes": [], "lost_votes": [], "unregistered": [], "to_stop": []},
        )
        return
    if voters and min(voters) >= node_count:
        raise click.ClickException(
            f"no node below {node_count} is a voter: give one of them a vote with odradek node add"
        )
    registered = [each for each in leaving if each in brokers]
    view = view_cluster(client)
    if any(view.on(each) for each in registered):
        drained = drain_nodes(client, view, registered, options, output)
        if drained is not None:
            if not output.is_json:
                print_drained(view, drained, output)
            raise_if_left(drained.view, registered)
    elif not options.dry_run:
        for node_id in sorted(set(registered) - view.cordoned - view.fenced):
            cordon_node(client, node_id, output)
    if options.dry_run:
        return
    lost_votes = take_votes(leaving, client)
    unregistered = unregister_stopped(registered, client, output, waits=waits)
    to_stop = [each for each in registered if each not in unregistered]
    names = ", ".join(map(str, leaving))
    text = f"Node {names} has no replicas and no vote."
    if to_stop:
        text += f" Stop node {', '.join(map(str, to_stop))}, then run this command again."
    else:
        text = f"Node {names} was removed from the cluster."
    output.done(
        text,
        {
            "nodes": leaving,
            "lost_votes": lost_votes,
            "unregistered": unregistered,
            "to_stop": to_stop,
        },
    )
