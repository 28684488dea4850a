"""`odradek logdir`: log directories of the brokers, and moves of replicas between them (KIP-113).

A move goes on when the command ends; `move` only watches it. A broker lists a replica that is moved
twice: where it is, and as a future replica where it is copied to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import click

from odradek.node.cli.cluster_client import (
    ClusterClient,
    error_text,
    raise_on_error,
    raise_refusals,
    with_client,
)
from odradek.node.cli.not_found import no_such_node
from odradek.node.cli.offsets import PartitionId, by_id
from odradek.node.cli.output import Output, Row, known, size_text
from odradek.node.cli.parameters import TopicSelection, topic_selection
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from odradek.protocol.messages.partitions import PartitionResult, TopicPartitions

POLL_S: Final = 0.25
STOPPED_AFTER_S: Final = 5.0
"""After so long without a future replica a move counts as stopped. While one replica replaces the
other there may be none for a moment."""
Held = dict[PartitionId, tuple[int, int]]
"""Sizes and offset lags of replicas in a log directory."""


@click.group()
def logdir() -> None:
    """Show log directories; move replicas between them."""


@logdir.command("list")
@click.argument("nodes", nargs=-1, type=int, metavar="[NODE]...")
@click.option("--replicas", is_flag=True, help="A line for each replica.")
@click.option("--topic", "topics", multiple=True, type=topic_selection, metavar="TOPIC[:0,1]")
@with_client
def list_directories(
    client: ClusterClient,
    output: Output,
    nodes: tuple[int, ...],
    replicas: bool,
    topics: tuple[TopicSelection, ...],
) -> None:
    """List the log directories of all brokers, or of these.

    Sizes are in bytes. A replica that is being moved counts in both directories.
    """
    directories: list[Row] = []
    held: list[Row] = []
    client.metadata()
    for node in nodes or client.broker_ids:
        for result in describe_directories(client, node):
            current = _held(result, topics, future=False)
            future = _held(result, topics, future=True)
            directories.append(
                {
                    "node": node,
                    "directory": result.log_dir,
                    "replicas": len(current),
                    "moving_here": len(future),
                    "size": sum(size for size, _ in (*current.values(), *future.values())),
                    "free": known(result.usable_bytes),
                    "total": known(result.total_bytes),
                    "state": _state(result),
                }
            )
            held.extend(
                {
                    "node": node,
                    "directory": result.log_dir,
                    "topic": name,
                    "partition": index,
                    "size": size,
                    "offset_lag": lag,
                    "is_future": is_future,
                }
                for is_future, found in ((False, current), (True, future))
                for (name, index), (size, lag) in sorted(found.items())
            )
    if replicas:
        columns = ("node", "directory", "topic", "partition", "size", "offset_lag", "is_future")
        output.rows(held, columns, empty="No replicas.")
    else:
        output.rows(directories, empty="No broker answers.")


@logdir.command()
@click.argument(
    "selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:0,1]..."
)
@click.option("--node", type=int, required=True, help="The broker that has the replicas.")
@click.option("--to", "path", required=True, metavar="PATH", help="Its log directory.")
@click.option("--no-wait", is_flag=True, help="Return when the moves have begun.")
@with_client
def move(
    client: ClusterClient,
    output: Output,
    selections: tuple[TopicSelection, ...],
    node: int,
    path: str,
    no_wait: bool,
) -> None:
    """Move replicas of a broker to another of its log directories.

    They are written and read meanwhile. Interrupting the command stops no move; to stop one, move
    the replica to where it is.
    """
    client.metadata()
    wanted = _replicas_on(client, node, selections)
    results = begin_moves(client, node, path, wanted)
    raise_refusals(
        {
            f"{name}-{index}": error_text(result)
            for (name, index), result in results.items()
            if result.error_code
        }
    )
    if not no_wait:
        with output.labelled_progress("Moving", 1) as show:
            watch_moves(client, node, path, wanted, show)
    verb = "are being moved to" if no_wait else "are in"
    output.done(
        f"{len(wanted)} replicas {verb} {path} of node {node}",
        {"node": node, "directory": path, "replicas": len(wanted), "done": not no_wait},
    )


def begin_moves(
    client: ClusterClient, node: int, path: str, names: Iterable[PartitionId]
) -> dict[PartitionId, PartitionResult]:
    """Ask a broker to move its replicas of these partitions to a log directory; the result of each.

    A broker that does not have a replica (REPLICA_NOT_AVAILABLE) remembers the directory and
    places the replica there when it gets it. Raises ClickException if the path is no log directory
    of the broker, or takes no replicas.
    """
    topics: dict[str, TopicPartitions] = {}
    for name, index in sorted(names):
        topics.setdefault(name, TopicPartitions(name=name)).partitions.append(index)
    directory = AlterReplicaLogDir(path=path, topics=list(topics.values()))
    answer = client.ask_broker(node, AlterReplicaLogDirsRequest(dirs=[directory]))
    results = by_id(answer.results)
    codes = {result.error_code for result in results.values()}
    if ErrorCode.LOG_DIR_NOT_FOUND in codes:
        raise no_such_directory(node, path, describe_directories(client, node))
    if ErrorCode.INVALID_REPLICA_ASSIGNMENT in codes:
        raise click.ClickException(
            f"{path} of node {node} takes no replicas: cordoned.log.dirs names it."
        )
    return results


def no_such_directory(
    node: int, path: str, directories: Iterable[DescribeLogDirsResult]
) -> click.ClickException:
    """The error for a path that is no log directory of a broker."""
    paths = ", ".join(each.log_dir for each in directories)
    return click.ClickException(f"{path} is no log directory of node {node}. It has {paths}.")


def watch_moves(
    client: ClusterClient,
    node: int,
    path: str,
    wanted: Iterable[PartitionId],
    show: Callable[[int, int, str], None],
) -> None:
    """Return when all of these replicas are in the directory. Raises ClickException if a move has
    ended without that."""
    left = set(wanted)
    idle_since: dict[PartitionId, float] = {}
    while left:
        everywhere = describe_directories(client, node)
        current: Held = {}
        arrived: set[PartitionId] = set()
        future: Held = {}
        for result in everywhere:
            held = _held(result, (), future=False)
            current |= held
            if result.log_dir == path:
                arrived = held.keys() & left
                future = _held(result, (), future=True)
                if result.error_code:
                    raise click.ClickException(f"{path} of node {node} is offline.")
        left -= arrived
        gone = left - current.keys()
        left -= gone  # their topics were deleted, or they have moved to other nodes
        stopped = left - future.keys()
        idle_since = {each: idle_since.get(each, time.monotonic()) for each in stopped}
        for (name, index), since in idle_since.items():
            if time.monotonic() - since > STOPPED_AFTER_S:
                raise click.ClickException(f"The move of {name}-{index} was stopped.")
        done = sum(future[each][0] for each in left if each in future)
        total = sum(current[each][0] for each in left)
        lag = sum(future[each][1] for each in left if each in future)
        show(
            done,
            total,
            f"{len(left)} replicas left, {size_text(done)} of {size_text(total)}, {lag} records"
            " behind",
        )
        if left:
            time.sleep(POLL_S)


def describe_directories(client: ClusterClient, node: int) -> list[DescribeLogDirsResult]:
    """The log directories of a broker. ClickException if there is no such broker, or no answer."""
    if node not in client.broker_ids:
        raise no_such_node(node, client.broker_ids)
    answer = client.ask_broker(node, DescribeLogDirsRequest(topics=None))
    raise_on_error(answer, f"the log directories of node {node} cannot be described")
    return answer.results


def _held(
    result: DescribeLogDirsResult, topics: tuple[TopicSelection, ...], *, future: bool
) -> Held:
    return {
        (topic.name, partition.partition_index): (partition.partition_size, partition.offset_lag)
        for topic in result.topics
        for partition in topic.partitions
        if partition.is_future_key == future
        and (not topics or any(each.has(topic.name, partition.partition_index) for each in topics))
    }


def _replicas_on(
    client: ClusterClient, node: int, selections: tuple[TopicSelection, ...]
) -> set[PartitionId]:
    """The replicas of a broker that are selected. ClickException if a selection has none."""
    here = {
        name
        for result in describe_directories(client, node)
        for name in _held(result, (), future=False)
    }
    wanted: set[PartitionId] = set()
    for selection in selections:
        found = {name for name in here if selection.has(*name)}
        missing = selection.partitions - {index for _, index in found}
        if not found or missing:
            named = ", ".join(f"{selection.topic}-{index}" for index in sorted(missing))
            raise click.ClickException(f"Node {node} has no replica of {named or selection.topic}.")
        wanted |= found
    return wanted


def _state(result: DescribeLogDirsResult) -> str:
    if result.error_code:
        return "offline"
    return "cordoned" if result.is_cordoned else "online"
