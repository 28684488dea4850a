"""`odradek broker`: the brokers of a cluster."""

import click

from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.output import Output, Row


@click.group()
def broker() -> None:
    """List the brokers of a cluster."""


@broker.command("list")
@with_client
def list_brokers(client: ClusterClient, output: Output) -> None:
    """List brokers, with the partitions each leads."""
    cluster = client.metadata(None)
    leaders = [partition.leader_id for topic in cluster.topics for partition in topic.partitions]
    rows: list[Row] = [
        {
            "id": broker.node_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "controller": broker.node_id == cluster.controller_id,
            "leads": leaders.count(broker.node_id),
            "cluster_id": cluster.cluster_id,
        }
        for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
    ]
    output.rows(rows)
