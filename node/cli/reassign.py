"""`odradek reassign`: give partitions the replicas that the user names (KIP-455), and watch that.

A reassignment belongs to the cluster and goes on when a command ends, also by Ctrl-C: `start` only
begins it and watches. One invariant: a throttle stays as long as a reassignment is in progress, and
the command that sees the end of the last one, or cancels it, removes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Final

import click

from odradek.cluster.balance.model import Partition, PartitionMove
from odradek.cluster.balance.replica_distribution import target_replicas
from odradek.node.cli.cluster_client import (
    ClusterClient,
    error_text,
    raise_refusals,
    with_client,
)
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.logdir import begin_moves, watch_moves
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, Row, size_text
from odradek.node.cli.parameters import TopicSelection, rate, topic_selection
from odradek.node.cli.plan_text import counted, estimated_s, move_row
from odradek.node.cli.reassignment import (
    ReassignmentRunner,
    cancel_reassignments,
    interruptible,
    ongoing_move,
    reassign,
    seconds_text,
)
from odradek.node.cli.reassignment_file import (
    InvalidAssignmentError,
    WantedReplicas,
    duplicates,
    parse_assignment,
)
from odradek.node.cli.reassignment_request import (
    Directories,
    RequestedReassignment,
    check_partitions,
    requested_reassignment,
    selected_replicas,
)
from odradek.node.cli.replica_placement import (
    ClusterView,
    list_reassignments,
    log_dir_usage,
    view_cluster,
)
from odradek.node.cli.replication_throttles import (
    ThrottledResources,
    leftover_throttles,
    throttle,
    unthrottle,
)
from odradek.protocol.errors import ErrorCode

MOVES_SHOWN: Final = 20
POLL_S: Final = 0.1
topic_arguments = click.argument(
    "selections",
    nargs=-1,
    type=topic_selection,
    metavar="[TOPIC[:0,1]]...",
    shell_complete=complete_topic,
)


@dataclass(slots=True)
class ReassignmentResult:
    """What has become of it; the keys of its JSON are the names of its fields."""

    started: int = 0
    moved: int = 0
    deleted: int = 0
    copied_bytes: int = 0
    directory_moves: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Json]:
        return {
            "started": self.started,
            "moved": self.moved,
            "deleted": self.deleted,
            "copied_bytes": self.copied_bytes,
            "directory_moves": self.directory_moves,
            "failed": self.failed,
        }


def replica_list(value: str) -> tuple[int, ...]:
    """`1,2,3`: the nodes of a partition's replicas."""
    numbers = value.split(",")
    if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise click.BadParameter(f"{value!r} is not NODE,NODE,... such as 1,2,3")
    replicas = tuple(map(int, numbers))
    if repeated := duplicates(replicas):
        raise click.BadParameter(f"node {repeated[0]} is there more than once")
    return replicas


@click.group("reassign")
def reassign_partitions() -> None:
    """Move partitions to other nodes.

    `odradek cluster rebalance` decides by itself what moves where.
    """


@reassign_partitions.command()
@topic_arguments
@click.option(
    "--to",
    "replicas",
    type=replica_list,
    metavar="NODE,NODE...",
    help="The nodes of the replicas, the preferred leader first.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.File("rb"),
    metavar="FILE",
    help="A plan in the JSON of kafka-reassign-partitions; - is stdin.",
)
@click.option(
    "--throttle",
    "bytes_per_s",
    type=rate,
    metavar="BYTES/S",
    help="Most bytes per second that a node copies, e.g. 50M.  [default: no limit]",
)
@click.option("--no-wait", is_flag=True, help="Return when the reassignments have begun.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@with_client
def start(
    selections: tuple[TopicSelection, ...],
    replicas: tuple[int, ...] | None,
    plan_file: IO[bytes] | None,
    bytes_per_s: int | None,
    no_wait: bool,
    yes: bool,
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Begin to move partitions, and watch until they have moved.

    TOPIC is all partitions of a topic. Each of them gets the nodes of --to, in that order; with
    more or fewer nodes than before its replication factor changes. A plan names the replicas of
    each partition, and may name log directories. A leader that keeps its replica stays the leader
    until the preferred one is elected (`odradek elect`).

    Ctrl-C stops only the watching, unlike that of `cluster rebalance`: `reassign wait` continues
    it, `reassign cancel` gives back the replicas from before. The throttle is removed when nothing
    is in progress any more, by this command, `wait` or `cancel`. With -o json the result has the
    replicas from before as `rollback`, which is a plan. Works with any Kafka.

    \b
    odradek reassign start orders:0,3 --to 2,3,1
    odradek reassign start --plan plan.json --throttle 50M
    """
    given = (bool(selections), replicas is not None, plan_file is not None)
    if given not in ((True, True, False), (False, False, True)):
        raise click.UsageError("Name topics and --to, or a --plan.")
    client.time_each_answer()
    planned = None if plan_file is None else _read(plan_file)
    topics = [each.topic for each in planned or selections]
    view = view_cluster(client, topics=topics)
    wanted = selected_replicas(view, selections, replicas or ()) if planned is None else planned
    request = requested_reassignment(client, view, wanted)
    if not output.is_json:
        _show(request, bytes_per_s, output)
    if dry_run:
        if output.is_json:
            output.document(request.document(bytes_per_s))
        return
    if not request:
        nothing = {**ReassignmentResult().document(), "rollback": request.rollback}
        output.done("Nothing to move.", nothing)
        return
    if not yes:
        client.confirm("Carry it out?")
    with _going_on(output):
        result = _carry_out(client, request, bytes_per_s, output, is_watched=not no_wait)
    _print(result, output, rollback=request.rollback)


@reassign_partitions.command("list")
@topic_arguments
@with_client
def list_ongoing(
    client: ClusterClient, output: Output, selections: tuple[TopicSelection, ...]
) -> None:
    """List the reassignments in progress, of all topics or of these.

    The replicas include those that are added and removed. Bytes are those that the added replicas
    have, and those of all that they will have; - if a node does not answer. `odradek logdir list`
    shows the moves between log directories.
    """
    moving = _moving(client, view_cluster(client, topics=_topics(selections)), selections)
    copied = _measure(client, moving)
    rows: list[Row] = []
    for partition in moving:
        count = copied[partition.topic, partition.number]
        total = partition.byte_count * len(partition.adding)
        shown: Row = {"copied_bytes": count, "total_bytes": total}
        if output.is_terminal:
            text = "-" if count is None else size_text(count)
            shown = {"copied": f"{text} of {size_text(total)}"}
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.number,
                "replicas": list(partition.replicas),
                "adding": list(partition.adding),
                "removing": list(partition.removing),
                **shown,
            }
        )
    output.rows(rows, empty="No reassignments in progress.")


@reassign_partitions.command(short_help="Cancel reassignments in progress.")
@topic_arguments
@click.option("--all", "is_all", is_flag=True, help="Everything that is in progress.")
@with_client
def cancel(
    client: ClusterClient,
    output: Output,
    selections: tuple[TopicSelection, ...],
    is_all: bool,
) -> None:
    """Cancel reassignments in progress: the partitions keep the replicas from before.

    Removes the throttles if no other reassignment is in progress. A move between log directories
    is stopped by `odradek logdir move` to where the replica is.
    """
    if bool(selections) == is_all:
        raise click.UsageError("Name topics, or pass --all.")
    view = view_cluster(client, topics=_topics(selections))
    names = [(p.topic, p.number) for p in _moving(client, view, selections)]
    cancelled, kept = cancel_reassignments(client, names)
    removed = _remove_throttles(client, view, output, ended=cancelled)
    output.done(
        f"{counted(len(cancelled), 'reassignment')} cancelled."
        if names
        else "No reassignments in progress.",
        {
            "cancelled": [{"topic": topic, "partition": number} for topic, number in cancelled],
            "unthrottled_topics": sorted(removed.topics),
            "unthrottled_nodes": sorted(removed.brokers),
        },
    )
    raise_refusals({f"{topic}-{number}": reason for (topic, number), reason in kept.items()})


@reassign_partitions.command(short_help="Watch what is in progress until it has ended.")
@topic_arguments
@with_client
def wait(client: ClusterClient, output: Output, selections: tuple[TopicSelection, ...]) -> None:
    """Watch the reassignments in progress, of all topics or of these, until they have ended.

    Exits with 1 if one was cancelled. Removes the throttles if nothing is in progress then. Ctrl-C
    stops only the watching.
    """
    client.time_each_answer()
    view = view_cluster(client, topics=_topics(selections))
    moves = [ongoing_move(partition) for partition in _moving(client, view, selections)]
    result = ReassignmentResult()
    with _going_on(output):
        if moves:
            _watch(client, moves, result, output)
        _remove_throttles(client, view, output)
    _print(result, output)


# -- what to do ------------------------------------------------------------------------------------


def _read(plan_file: IO[bytes]) -> Sequence[WantedReplicas]:
    try:
        return parse_assignment(plan_file.read())
    except InvalidAssignmentError as error:
        raise click.ClickException(f"the plan is not valid: {error}") from error


def _topics(selections: Iterable[TopicSelection]) -> Sequence[str]:
    return [selection.topic for selection in selections]


def _moving(
    client: ClusterClient, view: ClusterView, selections: Sequence[TopicSelection]
) -> Sequence[Partition]:
    """The selected partitions with a reassignment in progress; none selected means all."""
    known = [(partition.topic, partition.number) for partition in view.partitions]
    check_partitions(known, ((s.topic, n) for s in selections for n in s.partitions))
    return [
        partition
        for partition in sorted(view.moving, key=lambda each: (each.topic, each.number))
        if not selections
        or any(selection.has(partition.topic, partition.number) for selection in selections)
    ]


# -- do it -----------------------------------------------------------------------------------------


@contextmanager
def _going_on(output: Output) -> Iterator[None]:
    """Say at an interruption that what has begun goes on; raises Abort."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        output.hint(
            "\nInterrupted: what has begun goes on. `odradek reassign wait` watches it, `odradek"
            " reassign cancel --all` cancels it; both remove the throttles."
        )
        raise click.Abort from None


def _carry_out(
    client: ClusterClient,
    request: RequestedReassignment,
    bytes_per_s: int | None,
    output: Output,
    *,
    is_watched: bool,
) -> ReassignmentResult:
    view, result = request.view, ReassignmentResult()
    _remove_throttles(client, view, output)
    # A broker places a replica that it gets later where it was told before.
    for (node, path), names in request.directories.items():
        begin_moves(client, node, path, names)
    try:
        if bytes_per_s is not None:
            serving = [node.node_id for node in view.nodes if not node.is_fenced]
            # Also those in progress: a topic has one list of throttled replicas.
            others = [ongoing_move(partition) for partition in view.moving]
            throttle(client, (*request.moves, *others), serving, bytes_per_s)
        begun = _begin(client, request.moves, result)
        directories = _place(client, request.directories, result)
        if is_watched:
            _watch(client, [*begun, *request.ongoing], result, output)
            _watch_directories(client, directories, result, output)
    except click.ClickException:
        _remove_throttles(client, view, output, is_expected=True)
        raise
    removed = _remove_throttles(client, view, output, is_expected=True)
    if bytes_per_s is not None and not removed:
        output.hint("The throttle stays: `odradek reassign wait` removes it at the end.")
    return result


def _begin(
    client: ClusterClient, moves: Sequence[PartitionMove], result: ReassignmentResult
) -> Sequence[PartitionMove]:
    """Begin all moves; those that were accepted."""
    if not moves:
        return []
    answers = reassign(client, {(move.topic, move.number): list(move.after) for move in moves})
    begun = []
    for move in moves:
        answer = answers[move.topic, move.number]
        if answer.error_code:
            result.failed[f"{move.topic}-{move.number}"] = error_text(answer)
        else:
            begun.append(move)
    result.started = len(begun)
    return begun


def _place(
    client: ClusterClient, directories: Directories, result: ReassignmentResult
) -> Directories:
    """Begin the moves to log directories; those that were accepted.

    A broker that does not know yet that it gets the replica is asked again, until the timeout.
    """
    accepted: dict[tuple[int, str], frozenset[PartitionId]] = {}
    deadline = time.monotonic() + client.connection.timeout_s
    for (node, path), names in directories.items():
        waiting = {name for name in names if "{}-{}".format(*name) not in result.failed}
        done: set[PartitionId] = set()
        while waiting:
            is_late = time.monotonic() > deadline
            for name, answer in begin_moves(client, node, path, waiting).items():
                if not answer.error_code:
                    done.add(name)
                elif is_late or answer.error_code != ErrorCode.REPLICA_NOT_AVAILABLE:
                    result.failed["{}-{} on node {}".format(*name, node)] = error_text(answer)
                else:
                    continue
                waiting.discard(name)
            if waiting:
                time.sleep(POLL_S)
        if done:
            accepted[node, path] = frozenset(done)
            result.directory_moves += len(done)
    return accepted


def _watch(
    client: ClusterClient,
    moves: Sequence[PartitionMove],
    result: ReassignmentResult,
    output: Output,
) -> None:
    """Watch moves in progress until all have ended."""
    runner = ReassignmentRunner(client, [], in_progress=moves, batch=max(len(moves), 1))
    total = sum(move.copied_bytes for move in moves)
    with output.labelled_progress("Moving", total) as show:
        outcome = runner.run(show)
    result.moved += len(outcome.done)
    result.deleted += len(outcome.deleted)
    result.copied_bytes += sum(move.copied_bytes for move in outcome.done)
    for (topic, number), reason in outcome.failed.items():
        result.failed[f"{topic}-{number}"] = reason


def _watch_directories(
    client: ClusterClient, directories: Directories, result: ReassignmentResult, output: Output
) -> None:
    """Watch moves between log directories until all have ended."""
    for (node, path), names in directories.items():
        try:
            with output.labelled_progress(f"Moving to {path}", 1) as show:
                watch_moves(client, node, path, names, show)
        except click.ClickException as error:
            result.failed[f"node {node}"] = error.message


def _remove_throttles(
    client: ClusterClient,
    view: ClusterView,
    output: Output,
    *,
    ended: Iterable[PartitionId] = (),
    is_expected: bool = False,
) -> ThrottledResources:
    """Remove all throttles if nothing is in progress but what has `ended`: the broker that is asked
    may not know of that yet. The throttles that were removed."""
    if list_reassignments(client).keys() - set(ended):
        return ThrottledResources(frozenset(), frozenset())
    left = leftover_throttles(client, view)
    if left:
        unthrottle(client, left)
        if not is_expected:
            output.hint("Removed the throttles of replicas: nothing is in progress.")
    return left


def _measure(client: ClusterClient, moving: Sequence[Partition]) -> dict[PartitionId, int | None]:
    """The bytes that the added replicas of each partition have; None if a node does not answer."""
    wanted: dict[int, list[PartitionId]] = {}
    for partition in moving:
        for node in partition.adding:
            wanted.setdefault(node, []).append((partition.topic, partition.number))
    usage = {node: log_dir_usage(client, node, names) for node, names in wanted.items()}
    copied: dict[PartitionId, int | None] = {}
    for partition in moving:
        name = (partition.topic, partition.number)
        count: int | None = 0
        for node in partition.adding:
            held = usage[node]
            if held is None or count is None:
                count = None
            else:
                count += min(held.sizes.get(name, 0), partition.byte_count)
        copied[name] = count
    return copied


# -- show it ---------------------------------------------------------------------------------------


def _show(request: RequestedReassignment, bytes_per_s: int | None, output: Output) -> None:
    is_plain = not output.is_terminal
    if request.moves:
        moves = request.moves[:MOVES_SHOWN]
        output.rows([move_row(move, is_plain=is_plain) for move in moves])
        if len(request.moves) > MOVES_SHOWN:
            click.echo(f"... and {len(request.moves) - MOVES_SHOWN} more")
        click.echo()
    for (node, path), names in request.directories.items():
        click.echo(f"{counted(len(names), 'replica')} to {path} of node {node}")
    parts = [
        f"{counted(len(request.moves), 'partition')} to move",
        f"{size_text(request.copied_bytes)} to copy",
    ]
    if request.ongoing:
        parts.append(f"{len(request.ongoing)} under way already")
    if bytes_per_s is not None:
        needed_s = estimated_s((*request.moves, *request.ongoing), bytes_per_s)
        parts.append(f"at least {seconds_text(needed_s)} at {size_text(bytes_per_s)}/s")
    if request:
        click.echo(", ".join(parts))
    receivers = {node for move in request.moves for node in move.adding}
    for node in sorted(receivers & request.view.fenced):
        output.hint(f"Node {node} is down: it copies its replicas when it is back.")
    moving = {(p.topic, p.number): p for p in request.view.moving}
    for move in request.moves:
        if partition := moving.get((move.topic, move.number)):
            replicas = ",".join(map(str, target_replicas(partition)))
            output.hint(f"{move.topic}-{move.number} is on the way to {replicas}: redirected.")


def _print(result: ReassignmentResult, output: Output, **more: Json) -> None:
    """Print the result; exit code 1 if something failed."""
    parts = []
    if result.started and not result.moved:
        parts.append(f"{counted(result.started, 'reassignment')} begun")
    if result.moved:
        moved = counted(result.moved, "partition")
        parts.append(f"{moved} moved, {size_text(result.copied_bytes)} copied")
    if result.deleted:
        parts.append(f"{result.deleted} deleted meanwhile")
    if result.directory_moves:
        parts.append(counted(result.directory_moves, "log directory move"))
    text = "; ".join(parts) or ("Nothing has moved" if result.failed else "Nothing in progress")
    output.done(f"{text}.", {**result.document(), **more})
    raise_refusals(result.failed)
