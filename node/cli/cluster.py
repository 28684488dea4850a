"""`odradek cluster`: local clusters, and the health of any cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import click

from odradek.node.cli import configs
from odradek.node.cli.catch_up import catch_up_progress
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.cluster_secret import new_secret
from odradek.node.cli.cluster_up import start_node, stop_node, up
from odradek.node.cli.eligible_leaders import with_eligible_leaders
from odradek.node.cli.findings import Finding, PartitionView
from odradek.node.cli.group_explain import finding_rows, print_findings
from odradek.node.cli.listener_problems import listener_findings, listener_problems
from odradek.node.cli.output import Output, Row, first_names
from odradek.node.cli.quorum import quorum_state
from odradek.node.cli.rebalance import rebalance
from odradek.node.cli.replica_findings import below_minimum_findings, replica_findings
from odradek.node.cli.scale_down import scale_down
from odradek.node.cli.scale_up import scale_up
from odradek.node.cli.storage_problems import storage_findings, storage_problems
from odradek.protocol.messages.cluster import DescribeQuorumResponsePartitionData
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataResponse,
)

MIN_IN_SYNC: Final = "min.insync.replicas"
_QUORUM_ADVICE: Final = (
    "Start the voters that are down, or repair the network between them; their logs say whom they"
    " do not reach. An election takes less than a second."
)


@dataclass
class ClusterHealth:
    """A cluster as a broker reports it; `quorum` is None if the broker does not report it."""

    cluster: DescribeClusterResponse
    metadata: MetadataResponse
    quorum: DescribeQuorumResponsePartitionData | None = None
    storage_problems: Mapping[int, str] = field(default_factory=dict)
    """The brokers that cannot write, and why."""

    def __post_init__(self) -> None:
        self.serving = {b.broker_id for b in self.cluster.brokers if not b.is_fenced}
        self.fenced = {broker.broker_id for broker in self.cluster.brokers if broker.is_fenced}
        self.views: list[PartitionView] = []
        self.leads: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        self.behind: Counter[int] = Counter()
        self.partition_count = 0
        self.under_replicated: list[str] = []
        self.offline: list[str] = []
        for topic in self.metadata.topics:
            for partition in topic.partitions:
                name = f"{topic.name}-{partition.partition_index}"
                self.partition_count += 1
                self.replicas.update(partition.replica_nodes)
                missing = set(partition.replica_nodes) - set(partition.isr_nodes)
                self.behind.update(missing)
                if partition.leader_id < 0:
                    self.offline.append(name)
                else:
                    self.leads[partition.leader_id] += 1
                if missing:
                    self.under_replicated.append(name)
                self.views.append(
                    PartitionView(
                        partition_id=(topic.name or "", partition.partition_index),
                        leader=partition.leader_id,
                        replicas=tuple(partition.replica_nodes),
                        in_sync=tuple(partition.isr_nodes),
                        fenced=tuple(r for r in partition.replica_nodes if r in self.fenced),
                        offline=tuple(r for r in partition.offline_replicas if r in self.serving),
                    )
                )


@click.group(short_help="Run a local cluster; show the health of any cluster.")
def cluster() -> None:
    """Run a local cluster; show the health of any cluster; move replicas."""


for command in (up, stop_node, start_node, rebalance, scale_up, scale_down, new_secret):
    cluster.add_command(command)


@cluster.command(short_help="Show nodes, the quorum, and partitions at risk.")
@with_client
def status(client: ClusterClient, output: Output) -> None:
    """Show nodes, the metadata quorum, and partitions that lack replicas or a leader: which nodes
    are fenced, and which replicas are not in sync. For replicas that catch up: how many bytes they
    are behind, and about how long they will take.

    Works with any Kafka. Exits with 1 if a partition has no leader, the quorum has none, or a node
    cannot write its data.
    """
    health = _cluster_health(client)
    progress = catch_up_progress(health.metadata, client)
    nodes = nodes_of(health)
    catching_up: list[Row] = [
        {
            "node": each.node,
            "replicas_behind": each.replica_count,
            "bytes_behind": each.bytes_behind,
            "rest_s": None if each.rest_s is None else round(each.rest_s, 1),
        }
        for each in progress
    ]
    quorum, controller = health.quorum, controller_of(health)
    findings = [
        *quorum_findings(health, client),
        *storage_findings(health.storage_problems),
        *listener_findings(listener_problems(client, sorted(health.serving))),
        *replica_findings(health.views, health.fenced),
        *_below_minimum(client, health),
    ]
    facts: dict[str, str | int | None] = {
        "cluster_id": health.cluster.cluster_id,
        "active_controller": None if controller < 0 else f"node {controller}",
        "quorum_epoch": None if quorum is None or quorum.error_code else quorum.leader_epoch,
        "votes": None if quorum is None or quorum.error_code else len(quorum.current_voters),
        "topics": len(health.metadata.topics),
        "partitions": health.partition_count,
        "under_replicated": len(health.under_replicated),
        "offline": len(health.offline),
    }
    if output.is_json:
        output.document(
            {
                **facts,
                "findings": finding_rows(findings),
                "nodes": nodes,
                "catching_up": catching_up,
                "under_replicated_partitions": sorted(health.under_replicated),
                "offline_partitions": sorted(health.offline),
            }
        )
    else:
        output.facts(facts)
        click.echo()
        output.rows(
            nodes,
            ["node", "address", "rack", "state", "quorum", "metadata_lag", "leads", "replicas"],
        )
        if findings:
            click.echo()
            print_findings(findings)
        if catching_up:
            output.hint("\nCatching up:")
            output.rows(catching_up)
        for title, names in (
            ("Without a leader", health.offline),
            ("Under-replicated", health.under_replicated),
        ):
            if names:
                output.hint(f"\n{title}: {first_names(sorted(names), 10)}")
    if is_unhealthy(health):
        click.get_current_context().exit(1)


def quorum_findings(health: ClusterHealth, client: ClusterClient) -> list[Finding]:
    """A finding if the quorum has no leader."""
    if controller_of(health) >= 0:
        return []
    # Metadata has no addresses of fenced brokers.
    client.learn(
        {broker.broker_id: (broker.host, broker.port) for broker in health.cluster.brokers}
    )
    silent = [
        str(broker)
        for broker in sorted(health.serving | health.fenced)
        if client.ask_node(broker, ApiVersionsRequest()) is None
    ]
    who = f" No answer from broker {', '.join(silent)}." if silent else ""
    what = (
        "The metadata quorum has no leader: less than a majority of its voters run and reach each"
        " other. Nothing can be created or changed, and partitions whose leader fails get no other"
        f" one.{who}"
    )
    return [Finding(about="quorum", what=what, advice=_QUORUM_ADVICE)]


def _below_minimum(client: ClusterClient, health: ClusterHealth) -> list[Finding]:
    """Findings about min.insync.replicas, which only topics with replicas out of sync are asked
    for."""
    shrunk = [view for view in health.views if view.out_of_sync]
    topics = {view.partition_id[0] for view in shrunk}
    needed = {
        result.resource_name: int(entry.value)
        for result in configs.describe(client, configs.TOPIC, topics, [MIN_IN_SYNC])
        for entry in result.configs or ()
        if entry.value is not None
    }
    return below_minimum_findings(
        replace(view, min_in_sync=min(needed.get(view.partition_id[0], 1), len(view.replicas)))
        for view in shrunk
    )


def is_unhealthy(health: ClusterHealth) -> bool:
    """Whether a partition has no leader, the cluster no active controller, or a broker cannot
    write."""
    return bool(health.offline or health.storage_problems) or controller_of(health) < 0


def controller_of(health: ClusterHealth) -> int:
    """The active controller, -1 if there is none. Metadata may name any broker that forwards
    requests to it, so the quorum's leader is used where it is known."""
    quorum = health.quorum
    if quorum is None:
        return health.cluster.controller_id
    return -1 if quorum.error_code else quorum.leader_id


def _cluster_health(client: ClusterClient) -> ClusterHealth:
    cluster = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    raise_on_error(cluster, "the cluster cannot be described")
    metadata = client.metadata(None)
    problems = storage_problems(client, (broker.broker_id for broker in cluster.brokers))
    health = ClusterHealth(cluster, metadata, quorum_state(client), problems)
    health.views = with_eligible_leaders(client, health.views)
    return health


def nodes_of(health: ClusterHealth) -> Sequence[Row]:
    """A row for each broker and each voter."""
    roles, ends = _quorum_roles(health.quorum)
    newest = max(ends.values(), default=0)
    brokers = {broker.broker_id: broker for broker in health.cluster.brokers}
    rows: list[Row] = []
    for node_id in sorted(brokers.keys() | roles.keys()):
        broker = brokers.get(node_id)
        state = "no broker" if broker is None else "fenced" if broker.is_fenced else "serving"
        rows.append(
            {
                "node": node_id,
                "address": None if broker is None else f"{broker.host}:{broker.port}",
                "rack": None if broker is None else broker.rack,
                "state": state,
                "quorum": roles.get(node_id),
                "metadata_lag": newest - ends[node_id] if ends.get(node_id, -1) >= 0 else None,
                "leads": health.leads[node_id],
                "replicas": health.replicas[node_id],
                "replicas_behind": health.behind[node_id],
                "storage_problem": health.storage_problems.get(node_id),
            }
        )
    return rows


def _quorum_roles(
    quorum: DescribeQuorumResponsePartitionData | None,
) -> tuple[Mapping[int, str], Mapping[int, int]]:
    """The role of each node in the quorum, and its log end offset."""
    if quorum is None or quorum.error_code:
        return {}, {}
    roles = {each.replica_id: "voter" for each in quorum.current_voters}
    for each in quorum.observers:
        # The voter is the replica in the data folder that the node has lost.
        is_replaced = each.replica_id in roles
        roles[each.replica_id] = "old vote" if is_replaced else "observer"
    if quorum.leader_id >= 0:
        roles[quorum.leader_id] = "leader"
    ends = {
        each.replica_id: each.log_end_offset for each in (*quorum.current_voters, *quorum.observers)
    }
    return roles, ends
