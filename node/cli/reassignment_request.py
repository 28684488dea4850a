"""What `odradek reassign start` has to do: from the wanted replicas and the cluster as it is.

Everything that is wanted exists, or there is an error that says what does; this is known before
anything is changed. What is there already is not asked for again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from odradek.cluster.balance.model import PartitionMove
from odradek.cluster.balance.planner import move_of
from odradek.cluster.balance.replica_distribution import target_replicas
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.logdir import describe_directories, no_such_directory
from odradek.node.cli.not_found import no_such_partition
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json
from odradek.node.cli.parameters import TopicSelection
from odradek.node.cli.plan_text import estimated_s, move_document
from odradek.node.cli.reassignment import ongoing_move
from odradek.node.cli.reassignment_file import WantedReplicas, assignment_document
from odradek.node.cli.replica_placement import ClusterView, check_nodes

Directories = Mapping[tuple[int, str], frozenset[PartitionId]]
"""Replicas by the node and the log directory that they shall be in."""


@dataclass(frozen=True, slots=True)
class RequestedReassignment:
    """What `start` has to do: moves to begin, moves in progress to what is wanted, and replicas
    that are not in their log directory."""

    view: ClusterView
    moves: Sequence[PartitionMove]
    ongoing: Sequence[PartitionMove]
    directories: Directories

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in (*self.moves, *self.ongoing))

    @property
    def directory_moves(self) -> int:
        return sum(len(names) for names in self.directories.values())

    @property
    def rollback(self) -> Json:
        """The plan that leads back to the replicas from before the moves."""
        return assignment_document({(move.topic, move.number): move.before for move in self.moves})

    def document(self, bytes_per_s: int | None) -> dict[str, Json]:
        """It as JSON, with the least time that the copies take at this rate."""
        moves = (*self.moves, *self.ongoing)
        return {
            "moves": [move_document(move) for move in self.moves],
            "in_progress": [move_document(move) for move in self.ongoing],
            "directory_moves": [
                {"node": node, "directory": path, "topic": topic, "partition": number}
                for (node, path), names in self.directories.items()
                for topic, number in sorted(names)
            ],
            "copied_bytes": self.copied_bytes,
            "estimated_s": None if bytes_per_s is None else estimated_s(moves, bytes_per_s),
            "rollback": self.rollback,
        }

    def __bool__(self) -> bool:
        return bool(self.moves or self.ongoing or self.directories)


def requested_reassignment(
    client: ClusterClient, view: ClusterView, wanted: Sequence[WantedReplicas]
) -> RequestedReassignment:
    """What there is to do. ClickException if a partition, node or log directory does not exist."""
    known = {(partition.topic, partition.number): partition for partition in view.partitions}
    check_partitions(known, ((each.topic, each.number) for each in wanted))
    check_nodes(view, (node for each in wanted for node in each.replicas))
    moves, ongoing = [], []
    for each in wanted:
        partition = known[each.topic, each.number]
        if target_replicas(partition) != each.replicas:
            moves.append(move_of(partition, each.replicas))
        elif partition.adding or partition.removing:
            ongoing.append(ongoing_move(partition))
    return RequestedReassignment(view, moves, ongoing, _directories(client, wanted))


def selected_replicas(
    view: ClusterView, selections: Iterable[TopicSelection], replicas: tuple[int, ...]
) -> Sequence[WantedReplicas]:
    """These replicas for all selected partitions."""
    return [
        WantedReplicas(topic=topic, number=number, replicas=replicas)
        for topic, number in dict.fromkeys(
            (partition.topic, number)
            for selection in selections
            for partition in view.partitions
            if partition.topic == selection.topic
            for number in sorted(selection.partitions) or [partition.number]
        )
    ]


def check_partitions(known: Iterable[PartitionId], names: Iterable[PartitionId]) -> None:
    """ClickException if a partition of a topic that exists does not."""
    existing = set(known)
    if missing := [name for name in names if name not in existing]:
        topic = missing[0][0]
        count = sum(name[0] == topic for name in existing)
        raise no_such_partition(topic, (n for name, n in missing if name == topic), count)


def _directories(client: ClusterClient, wanted: Sequence[WantedReplicas]) -> Directories:
    """The log directories that are wanted, without the replicas that are there."""
    asked: dict[tuple[int, str], set[PartitionId]] = {}
    for each in wanted:
        for node, path in each.log_dirs.items():
            asked.setdefault((node, path), set()).add((each.topic, each.number))
    directories: dict[tuple[int, str], frozenset[PartitionId]] = {}
    for (node, path), names in asked.items():
        found = {each.log_dir: each for each in describe_directories(client, node)}
        if path not in found:
            raise no_such_directory(node, path, found.values())
        here = {
            (topic.name, partition.partition_index)
            for topic in found[path].topics
            for partition in topic.partitions
            if not partition.is_future_key
        }
        if missing := names - here:
            directories[node, path] = frozenset(missing)
    return directories
