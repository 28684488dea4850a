"""`odradek group rewind`, `undo` and `snapshot`: move groups to other offsets while they consume.

Only Odradek's brokers support this (protocol/messages/rewinds.py). The request is repeated until
the group's coordinator has finished; its id makes it idempotent.
"""

import re
import uuid
from collections.abc import Iterable
from typing import Final, TypeVar

import click

from odradek.node.cli.cluster_client import (
    COORDINATOR_ERRORS,
    ClusterClient,
    raise_on_error,
    with_client,
)
from odradek.node.cli.completion import complete_group
from odradek.node.cli.not_found import GROUP, not_found
from odradek.node.cli.offsets import by_id
from odradek.node.cli.output import Output, Row, known
from odradek.node.cli.parameters import (
    TopicSelection,
    moment,
    moment_text,
    parse_duration,
    topic_selection,
)
from odradek.node.cli.topic import selected_partitions
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.rewinds import (
    AlterSnapshotRequest,
    AlterSnapshotResponse,
    DescribeRewindsRequest,
    DescribeRewindsResponse,
    RewindGroupRequest,
    RewindGroupRequestPartition,
    RewindGroupRequestTopic,
    RewindGroupResponse,
)
from odradek.protocol.types import Request

R = TypeVar("R", RewindGroupResponse, DescribeRewindsResponse, AlterSnapshotResponse)

TO_POSITIONS, TO_SNAPSHOT, TO_BEFORE, TO_WITHDRAW = range(4)
AT_OFFSET, AT_TIME, BY_RECORDS, BY_DURATION = range(4)
NUMBER_MAX: Final = 2**63 - 1
"""The largest offset, timestamp or count in the protocol."""
EARLIEST: Final = -2
LATEST: Final = -1
ATTEMPT_TIMEOUT_MS: Final = 2_000
"""How long the coordinator holds one request; shorter than any client's timeout."""
_RETRIED: Final = COORDINATOR_ERRORS | frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that pass."""
_ISO_DURATION: Final = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?\Z"
)

Position = tuple[int, int]
"""Kind of position, and the number."""


def position(value: str) -> Position:
    """`earliest`, `latest` or an offset."""
    if value in ("earliest", "latest"):
        return AT_TIME, EARLIEST if value == "earliest" else LATEST
    if not value.isdecimal() or int(value) > NUMBER_MAX:
        raise click.BadParameter(f"{value!r} is neither earliest nor latest nor an offset")
    return AT_OFFSET, int(value)


def iso_or_short_duration(value: str) -> int:
    """`30m`, `1d12h`, `PT30M`, `P1DT12H` -> milliseconds."""
    match = _ISO_DURATION.match(value)
    found = {unit: number for unit, number in match.groupdict().items() if number} if match else {}
    text = "".join(number + unit for unit, number in found.items()) if found else value
    duration_ms = parse_duration(text)
    if duration_ms is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 30m, 1d12h or PT2H")
    return duration_ms


@click.command()
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option(
    "--topic",
    "-t",
    "selections",
    type=topic_selection,
    multiple=True,
    metavar="TOPIC[:P,...]",
    help="What to rewind; required without --to-snapshot.",
)
@click.option("--to", type=position, metavar="OFFSET", help="earliest, latest or an offset.")
@click.option(
    "--by",
    type=click.IntRange(-NUMBER_MAX, NUMBER_MAX),
    metavar="N",
    help="N records forward, or back with -N.",
)
@click.option(
    "--to-datetime",
    type=moment,
    metavar="TIME",
    help="Offset of the first record at or after this time.",
)
@click.option(
    "--by-duration",
    type=iso_or_short_duration,
    metavar="DURATION",
    help="That long ago: 30m, 2h, PT2H.",
)
@click.option("--to-snapshot", metavar="NAME", help="The offsets of a snapshot.")
@click.option(
    "--read-committed", is_flag=True, help="The end of a partition is its last stable offset."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
@with_client
def rewind(
    name: str,
    selections: tuple[TopicSelection, ...],
    to: Position | None,
    by: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    to_snapshot: str | None,
    read_committed: bool,
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Move a group to other offsets while its consumers run.

    They revoke the rewound partitions and resume at the new offsets; later commits from before are
    ignored. Offsets outside of a partition become its nearest end.
    """
    choices = [
        to,
        None if by is None else (BY_RECORDS, by),
        # Negative times are the ends of a partition, not times before 1970.
        None if to_datetime is None else (AT_TIME, max(to_datetime, 0)),
        None if by_duration is None else (BY_DURATION, by_duration),
    ]
    named = [choice for choice in choices if choice is not None]
    if len(named) + (to_snapshot is not None) != 1:
        raise click.UsageError(
            "Give exactly one of --to, --by, --to-datetime, --by-duration and --to-snapshot."
        )
    if named and not selections:
        raise click.UsageError("Name what to rewind with --topic.")
    selected_partitions(client, selections)
    request = RewindGroupRequest(
        group_id=name,
        target=TO_SNAPSHOT if to_snapshot is not None else TO_POSITIONS,
        snapshot=to_snapshot,
        topics=_topics(selections, named[0] if named else (AT_OFFSET, 0)) if selections else None,
        isolation_level=int(read_committed),
        is_dry_run=dry_run,
    )
    _rewind(request, client, output)


@click.command(short_help="Undo the last rewind of a group, or cancel it.")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
@with_client
def undo(name: str, dry_run: bool, client: ClusterClient, output: Output) -> None:
    """Undo the last rewind of a group, or cancel the one in progress.

    The last eight can be undone, one after the other.
    """
    is_under_way = _ask(client, name, DescribeRewindsRequest(group_id=name)).is_under_way
    if is_under_way and dry_run:
        output.rows([], empty="A rewind is in progress: it would be cancelled.")
        return
    target = TO_WITHDRAW if is_under_way else TO_BEFORE
    _rewind(RewindGroupRequest(group_id=name, target=target, is_dry_run=dry_run), client, output)
    if is_under_way:
        output.hint("Cancelled the rewind in progress: no offset was changed.")


@click.group(short_help="Save committed offsets of a group, for rewind.")
def snapshot() -> None:
    """Save committed offsets of a group for `group rewind --to-snapshot`."""


@snapshot.command("create")
@click.argument("group_name", shell_complete=complete_group, metavar="GROUP")
@click.argument("name")
@with_client
def create_snapshot(group_name: str, name: str, client: ClusterClient, output: Output) -> None:
    """Save the committed offsets of a group under a name."""
    answer = _ask(client, group_name, AlterSnapshotRequest(group_id=group_name, name=name))
    count = sum(len(topic.partitions) for topic in answer.topics)
    output.done(
        f"Snapshot {name} of {group_name}: {count} offsets",
        {"group": group_name, "snapshot": name, "offsets": count},
    )


@snapshot.command("list")
@click.argument("group_name", shell_complete=complete_group, metavar="GROUP")
@click.option("--offsets", "show_offsets", is_flag=True, help="Show every offset.")
@with_client
def list_snapshots(
    group_name: str, show_offsets: bool, client: ClusterClient, output: Output
) -> None:
    """Show the snapshots of a group, and the rewinds that can be undone."""
    answer = _ask(client, group_name, DescribeRewindsRequest(group_id=group_name))
    rows: list[Row] = []
    for kind, saved in (("snapshot", answer.snapshots), ("undo", answer.undo_points)):
        for each in saved:
            offsets = by_id(each.topics)
            about: Row = {"kind": kind, "name": each.name, "at": moment_text(each.timestamp)}
            if show_offsets:
                rows += (
                    {**about, "topic": topic, "partition": index, "offset": known(at.offset)}
                    for (topic, index), at in offsets.items()
                )
            else:
                rows.append({**about, "partitions": len(offsets)})
    output.rows(rows, empty="No snapshots, nothing to undo.")
    if answer.is_under_way:
        output.hint("A rewind is in progress; `odradek group undo` cancels it.")


@snapshot.command("delete")
@click.argument("group_name", shell_complete=complete_group, metavar="GROUP")
@click.argument("name")
@with_client
def delete_snapshot(group_name: str, name: str, client: ClusterClient, output: Output) -> None:
    """Delete a snapshot."""
    request = AlterSnapshotRequest(group_id=group_name, name=name, is_deletion=True)
    _ask(client, group_name, request)
    output.done(f"Deleted snapshot {name}", {"group": group_name, "snapshot": name})


def _topics(
    selections: Iterable[TopicSelection], position: Position
) -> list[RewindGroupRequestTopic]:
    kind, number = position
    return [
        RewindGroupRequestTopic(
            name=selection.topic,
            partitions=[
                RewindGroupRequestPartition(
                    partition_index=index, position_kind=kind, position=number
                )
                for index in sorted(selection.partitions) or [-1]
            ],
        )
        for selection in selections
    ]


def _rewind(request: RewindGroupRequest, client: ClusterClient, output: Output) -> None:
    request.rewind_id = uuid.uuid4().bytes
    request.timeout_ms = ATTEMPT_TIMEOUT_MS
    answer = _ask(client, request.group_id, request)
    rows: list[Row] = [
        {
            "topic": topic,
            "partition": index,
            "previous_offset": known(partition.previous_offset),
            "actual_offset": known(partition.actual_offset),
        }
        for (topic, index), partition in sorted(by_id(answer.topics).items())
    ]
    output.rows(rows, empty="Nothing to undo: the topics of that rewind were deleted.")
    if request.is_dry_run:
        output.hint("Nothing was changed (--dry-run).")


def _ask(client: ClusterClient, group: str, request: Request[R]) -> R:
    """The answer of the group's coordinator. ClickException if it is an error."""
    answer = client.ask_coordinator(group, request, lambda answer: answer, retried=_RETRIED)
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise not_found(client, GROUP, group)
    raise_on_error(answer, f"group {group!r}")
    return answer
