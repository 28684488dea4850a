"""The nodes, partitions and replica sizes of a cluster: the input of a plan.

Sizes come from every broker that answers. A partition's size is its leader's, or the largest that
is known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek.cluster.balance.model import Partition, RegisteredBroker
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error
from odradek.node.cli.not_found import TOPIC, no_such_node, raise_refusal
from odradek.node.cli.offsets import PartitionId, by_id, by_topic
from odradek.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    ListPartitionReassignmentsRequest,
    OngoingPartitionReassignment,
)
from odradek.protocol.messages.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment. `cordoned` are the nodes that take no new replicas."""

    nodes: Sequence[RegisteredBroker]
    partitions: Sequence[Partition]
    cordoned: frozenset[int]

    @property
    def moving(self) -> Sequence[Partition]:
        """Partitions with a reassignment in progress."""
        return [p for p in self.partitions if p.adding or p.removing]

    @property
    def fenced(self) -> frozenset[int]:
        """The nodes that do not serve."""
        return frozenset(node.node_id for node in self.nodes if node.is_fenced)

    def on(self, node_id: int) -> Sequence[Partition]:
        """The partitions that a node has a replica of."""
        return [p for p in self.partitions if node_id in p.replicas]


def view_cluster(client: ClusterClient, *, topics: Iterable[str] = ()) -> ClusterView:
    """The cluster now; of the topics named, or of all. ClickException if one does not exist."""
    brokers = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    raise_on_error(brokers, "the cluster cannot be described")
    client.learn({b.broker_id: (b.host, b.port) for b in brokers.brokers if b.host and b.port})
    described, ongoing = _describe_consistently(client, topics)
    sizes: dict[PartitionId, dict[int, int]] = {}
    cordoned = set()
    for broker in brokers.brokers:
        if broker.is_fenced:
            continue
        held = log_dir_usage(client, broker.broker_id)
        if held is None:
            continue
        if held.is_cordoned:
            cordoned.add(broker.broker_id)
        for name, byte_count in held.sizes.items():
            sizes.setdefault(name, {})[broker.broker_id] = byte_count
    return ClusterView(
        nodes=[
            RegisteredBroker(node_id=b.broker_id, rack=b.rack, is_fenced=b.is_fenced)
            for b in brokers.brokers
        ],
        partitions=[
            _partition(name, state, ongoing.get(name), sizes.get(name, {}))
            for name, state in described.items()
        ],
        cordoned=frozenset(cordoned),
    )


def check_nodes(view: ClusterView, node_ids: Iterable[int]) -> None:
    """ClickException that names the first node that the cluster does not have."""
    known = sorted(node.node_id for node in view.nodes)
    for node_id in node_ids:
        if node_id not in known:
            raise no_such_node(node_id, known)


def _describe_consistently(
    client: ClusterClient, topics: Iterable[str]
) -> tuple[
    dict[PartitionId, MetadataResponsePartition], dict[PartitionId, OngoingPartitionReassignment]
]:
    """Partitions and reassignments that fit each other: metadata alone does not say which replicas
    are being removed. What changes between two requests is requested again."""
    found: dict[PartitionId, MetadataResponsePartition] = {}
    moving: dict[PartitionId, OngoingPartitionReassignment] = {}
    after = list_reassignments(client)
    while True:
        described = describe_partitions(client, topics)
        before, after = after, list_reassignments(client)
        is_settled = True
        for name, state in described.items():
            if name in found:
                continue
            if before.get(name) != after.get(name):
                is_settled = False
                continue
            found[name] = state
            if name in after:
                moving[name] = after[name]
        if is_settled:
            return {name: found[name] for name in described}, moving


def describe_partitions(
    client: ClusterClient, topics: Iterable[str] = ()
) -> dict[PartitionId, MetadataResponsePartition]:
    """The partitions of the topics named, or of all. ClickException if one does not exist."""
    named = [MetadataRequestTopic(name=name) for name in dict.fromkeys(topics)]
    request = MetadataRequest(topics=named or None, allow_auto_topic_creation=False)
    answer = client.ask(request)
    for topic in answer.topics if named else ():
        raise_refusal(client, TOPIC, topic.name or "", topic)
    return by_id(answer.topics)


def list_reassignments(client: ClusterClient) -> dict[PartitionId, OngoingPartitionReassignment]:
    """What is being reassigned, of all topics."""
    answer = client.ask(ListPartitionReassignmentsRequest(topics=None))
    raise_on_error(answer, "reassignments cannot be listed")
    return by_id(answer.topics)


class LogDirUsage(NamedTuple):
    """Log dirs of a node: the bytes of each replica, and whether all are cordoned."""

    sizes: Mapping[PartitionId, int]
    is_cordoned: bool


def log_dir_usage(
    client: ClusterClient, node_id: int, names: Iterable[PartitionId] | None = None
) -> LogDirUsage | None:
    """Log dir usage of a node, of these partitions or all; None if it does not answer."""
    topics = None if names is None else by_topic(names)
    answer = client.ask_node(node_id, DescribeLogDirsRequest(topics=topics))
    if answer is None or answer.error_code:
        return None
    sizes: Counter[PartitionId] = Counter()
    for folder in answer.results:
        for held in folder.topics:
            for partition in held.partitions:
                # A replica that is being moved between folders is in two of them.
                if not partition.is_future_key:
                    sizes[held.name, partition.partition_index] += partition.partition_size
    folders = [folder for folder in answer.results if not folder.error_code]
    return LogDirUsage(sizes, bool(folders) and all(folder.is_cordoned for folder in folders))


def _partition(
    name: PartitionId,
    state: MetadataResponsePartition,
    ongoing: OngoingPartitionReassignment | None,
    sizes: Mapping[int, int],
) -> Partition:
    replicas = ongoing.replicas if ongoing is not None else state.replica_nodes
    return Partition(
        topic=name[0],
        number=name[1],
        replicas=tuple(replicas),
        in_sync=tuple(state.isr_nodes),
        leader=state.leader_id,
        byte_count=sizes.get(state.leader_id, max(sizes.values(), default=0)),
        adding=tuple(ongoing.adding_replicas) if ongoing is not None else (),
        removing=tuple(ongoing.removing_replicas) if ongoing is not None else (),
    )
