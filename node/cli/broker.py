"""`odradek broker`: who is in the cluster."""

import click

from odradek.node.cli.connection import ClusterConnection, with_connection
from odradek.node.cli.output import Output, Row, with_output


@click.group()
def broker() -> None:
    """See which brokers there are."""


@broker.command("list")
@with_connection
@with_output
def list_brokers(connection: ClusterConnection, output: Output) -> None:
    """List brokers, with the partitions each leads."""
    admin = connection.admin()
    cluster = admin.describe_cluster(request_timeout=connection.timeout_s).result()
    metadata = admin.list_topics(timeout=connection.timeout_s)
    leaders = [p.leader for topic in metadata.topics.values() for p in topic.partitions.values()]
    controller = cluster.controller.id if cluster.controller else None
    rows: list[Row] = [
        {
            "id": node.id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.id == controller,
            "leads": leaders.count(node.id),
            "cluster_id": cluster.cluster_id,
        }
        for node in sorted(cluster.nodes, key=lambda node: node.id)
    ]
    output.rows(rows, ["id", "host", "port", "rack", "controller", "leads", "cluster_id"])
