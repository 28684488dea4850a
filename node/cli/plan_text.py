"""A plan as text and as JSON: nodes before and after, moves, bytes to copy and the time."""

from collections import Counter
from collections.abc import Iterable, Sequence

from odradek.cluster.balance.model import (
    BrokerLoad,
    PartitionMove,
    ReassignmentPlan,
    RegisteredBroker,
)
from odradek.cluster.balance.replica_distribution import target_replicas
from odradek.node.cli.offsets import PartitionId
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


def leader_moves(
    view: ClusterView, plan: ReassignmentPlan, *, is_full_rebalance: bool = True
) -> list[PartitionId]:
    """The partitions that get another leader: the preferred one of the plan, if it can lead and
    does not. Without a full rebalance only partitions that the plan moves."""
    planned = {(move.topic, move.number): move.after for move in plan.moves}
    found = []
    for partition in view.partitions:
        name = (partition.topic, partition.number)
        preferred = planned.get(name, target_replicas(partition))[0]
        is_in_sync = preferred in partition.in_sync
        can_lead = name in planned or (is_full_rebalance and is_in_sync)
        if partition.leader not in (preferred, -1) and preferred not in view.fenced and can_lead:
            found.append(name)
    return found


def summary(
    plan: ReassignmentPlan,
    ongoing: Sequence[PartitionMove],
    bytes_per_s: int | None,
    *,
    leader_move_count: int,
) -> str:
    """A plan in one line."""
    copied = plan.copied_bytes + sum(move.copied_bytes for move in ongoing)
    moving = sum(1 for move in plan.moves if move.adding)
    parts = [
        f"{counted(moving, 'partition')} to move",
        f"{counted(leader_move_count, 'leader')} to move",
        f"{size_text(copied)} to copy",
    ]
    if ongoing:
        parts.append(f"{len(ongoing)} under way already")
    if bytes_per_s is not None:
        needed_s = estimated_s((*plan.moves, *ongoing), bytes_per_s)
        parts.append(f"at least {seconds_text(needed_s)} at {size_text(bytes_per_s)}/s")
    return ", ".join(parts)


def counted(count: int, noun: str) -> str:
    """`1 leader`, `2 leaders`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def node_rows(
    nodes: Sequence[RegisteredBroker], plan: ReassignmentPlan, *, is_plain: bool
) -> list[Row]:
    """A row for each node: its load before and after. `is_plain`: in columns of plain numbers."""
    known = {node.node_id: node for node in nodes}
    rows: list[Row] = []
    for before, after in zip(plan.before, plan.after, strict=True):
        node = known[before.node_id]
        row: dict[str, Json] = {
            "node": before.node_id,
            "rack": node.rack,
            "state": "fenced" if node.is_fenced else "serving",
        }
        if is_plain:
            rows.append({**row, **_loads(before, after)})
            continue
        rows.append(
            {
                **row,
                "replicas": f"{before.replicas} -> {after.replicas}",
                "leaders": f"{before.leaders} -> {after.leaders}",
                "size": f"{size_text(before.byte_count)} -> {size_text(after.byte_count)}",
            }
        )
    return rows


def _loads(before: BrokerLoad, after: BrokerLoad) -> dict[str, Json]:
    return {
        "replicas": before.replicas,
        "leaders": before.leaders,
        "bytes": before.byte_count,
        "replicas_after": after.replicas,
        "leaders_after": after.leaders,
        "bytes_after": after.byte_count,
    }


def move_row(move: PartitionMove, *, is_plain: bool) -> Row:
    """The row of a move. `is_plain`: its bytes as a plain number."""
    copied: Row = {"copies": size_text(move.copied_bytes)}
    return {
        "partition": f"{move.topic}-{move.number}",
        "replicas": list(move.before),
        "becomes": list(move.after),
        **({"copied_bytes": move.copied_bytes} if is_plain else copied),
    }


def plan_document(
    view: ClusterView,
    plan: ReassignmentPlan,
    ongoing: Sequence[PartitionMove],
    bytes_per_s: int | None,
    *,
    leader_move_count: int,
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
                **_loads(before, after),
            }
            for before, after, node in zip(
                plan.before,
                plan.after,
                sorted(view.nodes, key=lambda node: node.node_id),
                strict=True,
            )
        ],
        "moves": [move_document(move) for move in plan.moves],
        "leader_moves": leader_move_count,
        "in_progress": [move_document(move) for move in ongoing],
        "obstacles": [
            {"topic": each.topic, "partition": each.number, "reason": each.reason}
            for each in plan.unmovable
        ],
        "copied_bytes": sum(move.copied_bytes for move in moves),
        "needed_bytes": plan.needed_bytes,
        "estimated_s": None if bytes_per_s is None else estimated_s(moves, bytes_per_s),
    }


def move_document(move: PartitionMove) -> Json:
    """A move as JSON."""
    return {
        "topic": move.topic,
        "partition": move.number,
        "replicas": list(move.before),
        "becomes": list(move.after),
        "bytes": move.byte_count,
        "copied_bytes": move.copied_bytes,
    }
