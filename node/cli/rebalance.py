"""`odradek cluster rebalance` and `odradek node drain`: move replicas to balance nodes.

Both make a plan (cluster/balance), show it, ask for confirmation, and carry it out under a
throttle. One invariant: when a command ends, also by Ctrl-C, none of its reassignments is in
progress and no throttle is left. If it is killed, the cluster finishes the submitted moves, and the
next run, or `--cancel`, removes the throttles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Final, NamedTuple, ParamSpec, TypeVar

import click
import msgspec

from odradek.cluster.balance.model import Partition, PartitionMove, ReassignmentPlan
from odradek.cluster.balance.planner import broker_loads, plan_moves
from odradek.node.cli.cluster_client import ClusterClient, raise_refusals, with_client
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, first_names, size_text
from odradek.node.cli.parameters import rate
from odradek.node.cli.plan_text import (
    counted,
    leader_moves,
    move_row,
    node_rows,
    plan_document,
    summary,
)
from odradek.node.cli.reassignment import (
    ReassignmentOutcome,
    ReassignmentRunner,
    cancel_reassignments,
    elect_preferred_leaders,
    interruptible,
    ongoing_move,
)
from odradek.node.cli.replica_placement import (
    ClusterView,
    check_nodes,
    describe_partitions,
    list_reassignments,
    view_cluster,
)
from odradek.node.cli.replication_throttles import (
    ThrottledResources,
    cordon,
    leftover_throttles,
    throttle,
    unthrottle,
)

P = ParamSpec("P")
R = TypeVar("R")

BATCH: Final = 100
MOVES_SHOWN: Final = 20
DRAIN_ROUNDS: Final = 3
"""A topic may be created on a node after the plan for its drain and before it is cordoned."""


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """The options for carrying out a plan."""

    throttle: int | None
    batch: int
    yes: bool
    dry_run: bool
    cancel: bool


def with_options(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the options of both commands, and pass them as `options`."""

    @click.option(
        "--throttle",
        type=rate,
        metavar="BYTES/S",
        help="Most bytes per second that a node copies, e.g. 50M.  [default: no limit]",
    )
    @click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=BATCH,
        show_default=True,
        metavar="N",
        help="Partitions that move at a time.",
    )
    @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    @click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
    @click.option("--cancel", is_flag=True, help="Cancel the reassignments in progress.")
    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        names = ("throttle", "batch", "yes", "dry_run", "cancel")
        given = {name: kwargs.pop(name) for name in names}
        kwargs["options"] = msgspec.convert(given, RebalanceOptions)
        return command(*args, **kwargs)

    return wrapper


@click.command()
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Only this topic. Can be repeated."
)
@click.option(
    "--exclude",
    multiple=True,
    type=int,
    metavar="NODE",
    help="Drain this node, as `node drain` does. Can be repeated.",
)
@click.option(
    "--include",
    multiple=True,
    type=int,
    metavar="NODE",
    help="Give a drained node replicas again. Can be repeated.",
)
@with_options
@with_client
def rebalance(
    topics: tuple[str, ...],
    exclude: tuple[int, ...],
    include: tuple[int, ...],
    options: RebalanceOptions,
    client: ClusterClient,
    output: Output,
) -> None:
    """Balance replicas and leaders over the nodes.

    Afterwards no two nodes differ by more than one replica and one leader, or in bytes by more than
    the largest partition or a tenth. Replicas stay spread over racks, and no more bytes are copied
    than needed. Drained nodes get no replicas until they are included. Clients are not interrupted.

    Works with any Kafka. Ctrl-C cancels the moves in progress; another run does the rest.
    """
    client.time_each_answer()
    if both := set(exclude) & set(include):
        raise click.UsageError(f"Node {min(both)} cannot be both excluded and included.")
    view = view_cluster(client, topics=topics)
    check_nodes(view, (*exclude, *include))
    if options.cancel:
        _cancel(client, view, output, set(topics))
        return
    balance(client, view, options, output, topics=topics, exclude=exclude, include=include)


def balance(
    client: ClusterClient,
    view: ClusterView,
    options: RebalanceOptions,
    output: Output,
    *,
    topics: Sequence[str] = (),
    exclude: Sequence[int] = (),
    include: Sequence[int] = (),
) -> None:
    """Balance the replicas and leaders of all topics, or of those in `view`, which are `topics`.
    Nodes to exclude are drained, those to include get replicas although they were drained."""
    emptied = (view.cordoned | set(exclude)) - set(include)
    nodes = [
        msgspec.structs.replace(node, is_draining=node.node_id in emptied) for node in view.nodes
    ]
    plan = plan_moves(nodes, view.partitions)
    if exclude and plan.unmovable:
        raise click.ClickException(_obstacles_message(exclude, plan))
    work = _PlanExecution(client, view, plan, options, output, is_full_rebalance=True)
    if not work.confirm():
        return
    for node_id in sorted(set(exclude) - view.cordoned):
        cordon_node(client, node_id, output)
    for node_id in sorted(set(include) & view.cordoned):
        _uncordon(client, node_id)
    outcome = work.execute()
    _print_result(view, view_cluster(client, topics=topics), plan, outcome, output)


@click.command()
@click.argument("node_id", type=int)
@with_options
@with_client
def drain(node_id: int, options: RebalanceOptions, client: ClusterClient, output: Output) -> None:
    """Move every replica off a node, so that it can be removed.

    The node keeps its other tasks, but gets no new replicas (cordoned.log.dirs) until `odradek
    cluster rebalance --include NODE_ID`. If the node is down, its partitions are copied from
    replicas that are in sync. Ctrl-C cancels the moves in progress; another run does the rest.
    """
    client.time_each_answer()
    view = view_cluster(client)
    check_nodes(view, (node_id,))
    if options.cancel:
        _cancel(client, view, output, {p.topic for p in view.on(node_id)})
        _uncordon(client, node_id)
        return
    drained = drain_nodes(client, view, (node_id,), options, output)
    if drained is not None:
        print_drained(view, drained, output)
        raise_if_left(drained.view, (node_id,))


class Drained(NamedTuple):
    """What a drain has done, and the cluster after it."""

    view: ClusterView
    plan: ReassignmentPlan
    outcome: ReassignmentOutcome


def drain_nodes(
    client: ClusterClient,
    view: ClusterView,
    node_ids: Sequence[int],
    options: RebalanceOptions,
    output: Output,
) -> Drained | None:
    """Move every replica off these nodes, to others than these, and cordon them; None if there was
    nothing to move, or with --dry-run. ClickException if that is impossible: nothing is changed."""
    plan = _plan_drain(view, node_ids)
    if plan.unmovable:
        raise click.ClickException(_obstacles_message(node_ids, plan))
    work = _PlanExecution(client, view, plan, options, output, is_full_rebalance=False)
    if not work.confirm():
        if not options.dry_run:
            for node_id in sorted(set(node_ids) - view.cordoned):
                cordon_node(client, node_id, output)
        return None
    for node_id in node_ids:
        cordon_node(client, node_id, output)
    total = ReassignmentOutcome()
    for _ in range(DRAIN_ROUNDS):
        outcome = work.execute()
        total.done += outcome.done
        total.deleted += outcome.deleted
        total.failed = outcome.failed
        view = view_cluster(client)
        if not _left_on(view, node_ids) or outcome.failed:
            break
        plan_of_rest = _plan_drain(view, node_ids)
        work = _PlanExecution(client, view, plan_of_rest, options, output, is_full_rebalance=False)
    return Drained(view, plan, total)


def print_drained(began: ClusterView, drained: Drained, output: Output) -> None:
    """What a drain has moved."""
    _print_result(began, drained.view, drained.plan, drained.outcome, output)


def raise_if_left(view: ClusterView, node_ids: Sequence[int]) -> None:
    """ClickException if there are replicas on these nodes."""
    if left := _left_on(view, node_ids):
        raise click.ClickException(
            f"node {', '.join(map(str, node_ids))} still has {len(left)} replicas, of"
            f" {first_names(f'{p.topic}-{p.number}' for p in left)}; run the command again"
        )


def _left_on(view: ClusterView, node_ids: Sequence[int]) -> list[Partition]:
    return [partition for node_id in node_ids for partition in view.on(node_id)]


def _plan_drain(view: ClusterView, node_ids: Sequence[int]) -> ReassignmentPlan:
    nodes = [
        msgspec.structs.replace(
            node,
            is_draining=node.node_id in node_ids,
            is_cordoned=node.node_id in view.cordoned,
        )
        for node in view.nodes
    ]
    return plan_moves(nodes, view.partitions, is_full_rebalance=False)


def _obstacles_message(node_ids: Sequence[int], plan: ReassignmentPlan) -> str:
    reasons: dict[str, list[str]] = {}
    for obstacle in plan.unmovable:
        reasons.setdefault(obstacle.reason, []).append(f"{obstacle.topic}-{obstacle.number}")
    lines = [f"{first_names(names)}: {reason}" for reason, names in reasons.items()]
    return (
        f"node {', '.join(map(str, node_ids))} cannot be drained, nothing was changed:\n  "
        + "\n  ".join(lines)
        + "\nAdd a node, lower the replication factor of these topics, or start the nodes that"
        " are down."
    )


class _PlanExecution:
    """Shows a plan, asks for confirmation and carries it out."""

    def __init__(
        self,
        client: ClusterClient,
        view: ClusterView,
        plan: ReassignmentPlan,
        options: RebalanceOptions,
        output: Output,
        *,
        is_full_rebalance: bool,
    ) -> None:
        self._is_full_rebalance = is_full_rebalance
        self._client = client
        self._view = view
        self._plan = plan
        self._options = options
        self._output = output
        planned = {(move.topic, move.number) for move in plan.moves}
        self._ongoing = [ongoing_move(p) for p in view.moving if (p.topic, p.number) not in planned]
        """Moves in progress to the replicas that the plan wants."""

    def confirm(self) -> bool:
        """Show the plan; whether it is to be carried out."""
        output, plan = self._output, self._plan
        if self._options.dry_run and output.is_json:
            output.document(self._document(self._ongoing, self._options.throttle))
            return False
        self._show()
        if not (plan.moves or self._ongoing or self._leader_moves()):
            self._remove_leftover_throttles()
            output.done("Nothing to move.", self._document([], None))
            return False
        if self._options.dry_run:
            return False
        if not self._options.yes:
            self._client.confirm("Carry it out?")
        return True

    def _show(self) -> None:
        output, plan = self._output, self._plan
        if output.is_json:
            return
        is_plain = not output.is_terminal
        output.rows(node_rows(self._view.nodes, plan, is_plain=is_plain))
        if plan.moves:
            click.echo()
            moves = plan.moves[:MOVES_SHOWN]
            output.rows([move_row(move, is_plain=is_plain) for move in moves])
        if len(plan.moves) > MOVES_SHOWN:
            click.echo(f"... and {len(plan.moves) - MOVES_SHOWN} more")
        count = len(self._leader_moves())
        throttle = self._options.throttle
        click.echo("\n" + summary(plan, self._ongoing, throttle, leader_move_count=count))
        for obstacle in plan.unmovable:
            output.hint(f"{obstacle.topic}-{obstacle.number} stays: {obstacle.reason}")

    def execute(self) -> ReassignmentOutcome:
        """Carry the plan out. If interrupted, cancels all moves in progress and raises Abort."""
        moves, ongoing = self._plan.moves, self._ongoing
        total = sum(move.copied_bytes for move in (*moves, *ongoing))
        with interruptible(), self._throttled((*moves, *ongoing)):
            runner = ReassignmentRunner(
                self._client, moves, in_progress=ongoing, batch=self._options.batch
            )
            try:
                with self._output.labelled_progress("Moving", total) as show:
                    outcome = runner.run(show)
            except KeyboardInterrupt:
                self._cancel_ongoing(runner)
                raise click.Abort from None
        self._elect(outcome)
        return outcome

    def _cancel_ongoing(self, runner: ReassignmentRunner) -> None:
        self._output.hint(
            "\nInterrupted: cancelling the moves in progress. Interrupt again to leave them."
        )
        self._client.close()
        stopped, kept = cancel_reassignments(self._client, runner.in_progress)
        self._output.hint(
            f"{len(runner.outcome.done)} partitions have moved, {len(stopped)} were cancelled."
            " Run the command again for the rest."
        )
        for (topic, number), reason in kept.items():
            self._output.hint(f"{topic}-{number} keeps moving: {reason}")

    @contextmanager
    def _throttled(self, moves: Sequence[PartitionMove]) -> Iterator[None]:
        """Throttle the moves if a throttle is set, and remove all throttles at the end."""
        client, limit = self._client, self._options.throttle
        self._remove_leftover_throttles()
        if limit is None:
            yield
            return
        serving = frozenset(node.node_id for node in self._view.nodes if not node.is_fenced)
        try:
            throttle(client, moves, serving, limit)
            yield
        finally:
            client.close()
            unthrottle(client, ThrottledResources(frozenset(m.topic for m in moves), serving))

    def _remove_leftover_throttles(self) -> None:
        if self._options.dry_run:
            return
        if left := leftover_throttles(self._client, self._view):
            unthrottle(self._client, left)
            self._output.hint("Removed throttles that an earlier run had left.")

    def _leader_moves(self) -> list[PartitionId]:
        return leader_moves(self._view, self._plan, is_full_rebalance=self._is_full_rebalance)

    def _document(self, ongoing: Sequence[PartitionMove], throttle: int | None) -> dict[str, Json]:
        count = len(self._leader_moves())
        return plan_document(self._view, self._plan, ongoing, throttle, leader_move_count=count)

    def _elect(self, outcome: ReassignmentOutcome) -> None:
        """Elect the preferred leaders of moved partitions, and where another replica leads."""
        exist = describe_partitions(self._client)
        moved = [(move.topic, move.number) for move in outcome.done]
        names = [n for n in dict.fromkeys((*moved, *self._leader_moves())) if n in exist]
        unpreferred = [n for n in names if exist[n].leader_id != exist[n].replica_nodes[0]]
        for (topic, number), reason in elect_preferred_leaders(self._client, unpreferred).items():
            self._output.hint(f"{topic}-{number} keeps its leader: {reason}")


def _print_result(
    before: ClusterView,
    view: ClusterView,
    plan: ReassignmentPlan,
    outcome: ReassignmentOutcome,
    output: Output,
) -> None:
    """Print the result; exit code 1 if a move failed."""
    leaders = {(p.topic, p.number): p.leader for p in before.partitions}
    leaders_moved = sum(
        leaders.get((p.topic, p.number), p.leader) != p.leader for p in view.partitions
    )
    loads = broker_loads(
        [node.node_id for node in view.nodes],
        view.partitions,
        [partition.replicas for partition in view.partitions],
        [partition.leader for partition in view.partitions],
    )
    copied = sum(move.copied_bytes for move in outcome.done)
    output.done(
        f"{counted(len(outcome.done), 'partition')} and {counted(leaders_moved, 'leader')} moved,"
        f" {size_text(copied)} copied."
        + (f" {len(outcome.deleted)} were deleted meanwhile." if outcome.deleted else ""),
        {
            "moved": len(outcome.done),
            "leaders_moved": leaders_moved,
            "deleted": len(outcome.deleted),
            "copied_bytes": copied,
            "needed_bytes": plan.needed_bytes,
            "obstacles": len(plan.unmovable),
            "failed": [
                {"topic": topic, "partition": number, "reason": reason}
                for (topic, number), reason in outcome.failed.items()
            ],
            "nodes": [
                {
                    "node": load.node_id,
                    "replicas": load.replicas,
                    "leaders": load.leaders,
                    "bytes": load.byte_count,
                }
                for load in loads
            ],
        },
    )
    raise_refusals({f"{t}-{n}": reason for (t, n), reason in sorted(outcome.failed.items())})


def _cancel(client: ClusterClient, view: ClusterView, output: Output, topics: set[str]) -> None:
    """Cancel every reassignment, of these topics or of all, and remove the throttles."""
    names = [name for name in list_reassignments(client) if not topics or name[0] in topics]
    stopped, kept = cancel_reassignments(client, names)
    left = leftover_throttles(client, view)
    unthrottle(client, left)
    output.done(
        f"{len(stopped)} reassignments cancelled; throttles of {len(left.topics)} topics and"
        f" {len(left.brokers)} nodes removed.",
        {
            "cancelled": [{"topic": topic, "partition": number} for topic, number in stopped],
            "unthrottled_topics": sorted(left.topics),
            "unthrottled_nodes": sorted(left.brokers),
        },
    )
    raise_refusals({f"{topic}-{number}": reason for (topic, number), reason in kept.items()})


def cordon_node(client: ClusterClient, node_id: int, output: Output) -> None:
    """Place no new replicas on a node; a hint if that is refused."""
    refusal = cordon(client, node_id, is_cordoned=True)
    if refusal is not None:
        output.hint(f"New topics may still be placed on node {node_id}: {refusal}")


def _uncordon(client: ClusterClient, node_id: int) -> None:
    refusal = cordon(client, node_id, is_cordoned=False)
    if refusal is not None:
        raise click.ClickException(f"node {node_id} cannot be included: {refusal}")
