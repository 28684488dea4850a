"""A plan as text and as JSON: nodes before and after, moves, bytes to copy and the time."""

from collections import Counter
from collections.abc import Iterable, Sequence

from odradek.cluster.balance.model import PartitionMove, ReassignmentPlan, RegisteredBroker
from odradek.node.cli.output import Json, Row, size_text
from odradek.node.cli.reassignment import seconds_text
from odradek.node.cli.replica_placement import ClusterView


def estimated_s(moves: Iterable[PartitionMove], bytes_per_s: int) -> float:
    """The least time that the copies take: that of the node which receives or sends the most.

    A partition is copied from its first replica.
    """
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for move in moves:
        for node in move.adding:
            received[node] += move.byte_count
            sent[move.before[0]] += move.byte_count
    return max((*received.values(), *sent.values()), default=0) / bytes_per_s


def summary(
    plan: ReassignmentPlan, ongoing: Sequence[PartitionMove], bytes_per_s: int | None
) -> str:
    """A plan in one line."""
    copied = plan.copied_bytes + sum(move.copied_bytes for move in ongoing)
    moving = sum(1 for move in plan.moves if move.adding)
    parts = [f"{moving} partitions to move", f"{size_text(copied)} to copy"]
    if len(plan.moves) > moving:
        parts.insert(1, f"{len(plan.moves) - moving} to get another preferred leader")
    if ongoing:
        parts.append(f"{len(ongoing)} under way already")
    if bytes_per_s is not None:
        needed_s = estimated_s((*plan.moves, *ongoing), bytes_per_s)
        parts.append(f"at least {seconds_text(needed_s)} at {size_text(bytes_per_s)}/s")
    return ", ".join(parts)


def node_rows(nodes: Sequence[RegisteredBroker], plan: ReassignmentPlan) -> list[Row]:
    """A row for each node: its load before and after."""
    known = {node.node_id: node for node in nodes}
    rows: list[Row] = []
    for before, after in zip(plan.before, plan.after, strict=True):
        node = known[before.node_id]
        rows.append(
            {
                "node": before.node_id,
                "rack": node.rack,
                "state": "fenced" if node.is_fenced else "serving",
                "replicas": f"{before.replicas} -> {after.replicas}",
                "leaders": f"{before.leaders} -> {after.leaders}",
                "size": f"{size_text(before.byte_count)} -> {size_text(after.byte_count)}",
            }
        )
    return rows


def move_row(move: PartitionMove) -> Row:
    """The row of a move."""
    return {
        "partition": f"{move.topic}-{move.number}",
        "replicas": list(move.before),
        "becomes": list(move.after),
        "copies": size_text(move.copied_bytes),
    }


def plan_document(
    view: ClusterView,
    plan: ReassignmentPlan,
    ongoing: Sequence[PartitionMove],
    bytes_per_s: int | None,
) -> dict[str, Json]:
    """A plan as JSON."""
    moves = (*plan.moves, *ongoing)
    return {
        "nodes": [
            {
                "node": before.node_id,
                "rack": node.rack,
                "fenced": node.is_fenced,
                "cordoned": node.node_id in view.cordoned,
                "replicas": before.replicas,
                "leaders": before.leaders,
                "bytes": before.byte_count,
                "replicas_after": after.replicas,
                "leaders_after": after.leaders,
                "bytes_after": after.byte_count,
            }
            for before, after, node in zip(
                plan.before,
                plan.after,
                sorted(view.nodes, key=lambda node: node.node_id),
                strict=True,
            )
        ],
        "moves": [_move_document(move) for move in plan.moves],
        "under_way": [_move_document(move) for move in ongoing],
        "obstacles": [
            {"topic": each.topic, "partition": each.number, "reason": each.reason}
            for each in plan.unmovable
        ],
        "copied_bytes": sum(move.copied_bytes for move in moves),
        "needed_bytes": plan.needed_bytes,
        "estimated_s": None if bytes_per_s is None else estimated_s(moves, bytes_per_s),
    }


def _move_document(move: PartitionMove) -> Json:
    return {
        "topic": move.topic,
        "partition": move.number,
        "replicas": list(move.before),
        "becomes": list(move.after),
        "bytes": move.byte_count,
        "copied_bytes": move.copied_bytes,
    }
