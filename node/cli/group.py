"""`odradek group`: groups, their lag and their offsets."""

from __future__ import annotations

from collections.abc import Mapping

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient, raise_refusals, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.dead_letters import dead_letters
from odradek.node.cli.group_admin import create, delete, list_groups
from odradek.node.cli.group_descriptions import describe_group, find_group, group_positions
from odradek.node.cli.group_explain import explain
from odradek.node.cli.group_lag import add_lag_columns, counted_from_column, remark, wait
from odradek.node.cli.group_lag import lag as lag_command
from odradek.node.cli.group_offsets import alter_start_offsets, commit_offsets
from odradek.node.cli.group_queries import (
    configured_groups,
    configured_only_message,
    is_odradek_cluster,
)
from odradek.node.cli.not_found import GROUP, not_found, not_found_text
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, Row
from odradek.node.cli.parameters import TopicSelection, moment, topic_selection
from odradek.node.cli.rewind import rewind, snapshot, undo
from odradek.node.cli.topic import selected_partitions
from odradek.protocol.messages.share import ShareGroupDescribedGroup


@click.group()
def group() -> None:
    """List, describe, rewind and delete consumer groups."""


COMMANDS = (
    create,
    dead_letters,
    delete,
    explain,
    lag_command,
    list_groups,
    rewind,
    snapshot,
    undo,
    wait,
)
for command in COMMANDS:
    group.add_command(command)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_group, metavar="GROUP...")
@click.option("--members", "show_members", is_flag=True, help="Show the members instead.")
@with_client
def describe(
    names: tuple[str, ...], show_members: bool, client: ClusterClient, output: Output
) -> None:
    """Show state, members, committed offsets and lag."""
    documents: list[dict[str, Json]] = []
    refusals: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            document = describe_group(client, name)
        except click.ClickException as error:
            refusals[name] = error.message
            continue
        if document is not None:
            documents.append(document)
        elif is_odradek_cluster(client) and name in configured_groups(client):
            refusals[name] = configured_only_message(name)
        else:
            refusals[name] = not_found_text(client, GROUP, name)
    has_more = add_lag_columns(client, documents)
    if output.is_json:
        output.document(documents)
    remarks: set[str] = set()
    for document in documents if not output.is_json else []:
        members, lag = document["members"], document["offsets"]
        assert isinstance(members, list)
        assert isinstance(lag, list)
        heading = {name: value for name, value in document.items() if not isinstance(value, list)}
        if document is not documents[0]:
            click.echo()
        output.facts({**heading, "members": len(members)})
        click.echo()
        if show_members:
            columns = ["member", "instance", "client", "host", "assigned"]
            has_targets = any(isinstance(row, dict) and row["target"] for row in members)
            output.rows(
                members, [*columns, "target"] if has_targets else columns, empty="No members."
            )
        else:
            rows = [row for row in lag if isinstance(row, dict)]
            columns = ["topic", "partition", "committed", "end_offset", "lag"]
            columns += [*(("bytes", "seconds") if has_more else ()), *counted_from_column(rows)]
            columns += ["client", "host"]
            output.rows(rows, columns, empty="Nothing committed and nothing assigned.")
            remarks.add(remark(rows))
    for text in filter(None, remarks):
        output.hint(text)
    raise_refusals(refusals)


@group.command("reset-offsets")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option(
    "--topic",
    "-t",
    "selections",
    type=topic_selection,
    multiple=True,
    metavar="TOPIC[:P,...]",
    help="What to move.  [default: every partition with a committed offset]",
)
@click.option("--to", "end", type=click.Choice(["earliest", "latest"]), help="Either end.")
@click.option("--to-offset", type=click.IntRange(min=0), help="This offset.")
@click.option(
    "--to-time",
    type=moment,
    metavar="TIME",
    help="Offset of the first record at or after this time.",
)
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back with -N.")
@click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
@with_client
def reset_offsets(
    name: str,
    selections: tuple[TopicSelection, ...],
    end: str | None,
    to_offset: int | None,
    to_time: int | None,
    shift_by: int | None,
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Change the committed offsets of a group. Its consumers must be stopped.

    Offsets outside of a partition become its nearest end.
    """
    if sum(choice is not None for choice in (end, to_offset, to_time, shift_by)) != 1:
        raise click.UsageError("Give exactly one of --to, --to-offset, --to-time and --shift-by.")
    partition_ids = list(dict.fromkeys(selected_partitions(client, selections)))
    coordinator, described = find_group(client, name)
    committed, _ = group_positions(client, coordinator, described)
    partition_ids = partition_ids or sorted(committed)
    if not partition_ids and getattr(described, "group_state", "") == "Dead":
        raise not_found(client, GROUP, name)
    if not partition_ids:
        raise click.ClickException(
            f"group {name!r} has no committed offsets; name topics with --topic"
        )
    starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    if end is not None:
        targets = starts if end == "earliest" else ends
    elif to_time is not None:
        found = offsets.list_offsets(client, partition_ids, to_time)
        # All records are older: the group moves to the end.
        targets = {each: found[each] if found[each] >= 0 else ends[each] for each in found}
    else:
        wanted = _wanted_offsets(partition_ids, committed, to_offset, shift_by)
        targets = {p: min(max(wanted[p], starts[p]), ends[p]) for p in partition_ids}
    if not dry_run and isinstance(described, ShareGroupDescribedGroup):
        alter_start_offsets(client, coordinator, name, targets)
    elif not dry_run:
        commit_offsets(client, name, targets)
    rows: list[Row] = [
        {
            "topic": partition_id[0],
            "partition": partition_id[1],
            "committed": committed.get(partition_id),
            "new_offset": targets[partition_id],
            "end_offset": ends[partition_id],
            "lag": ends[partition_id] - targets[partition_id],
        }
        for partition_id in partition_ids
    ]
    output.rows(rows)
    if dry_run:
        output.hint("Nothing was changed (--dry-run).")


def _wanted_offsets(
    partition_ids: list[PartitionId],
    committed: Mapping[PartitionId, int],
    to_offset: int | None,
    shift_by: int | None,
) -> dict[PartitionId, int]:
    if to_offset is not None:
        return dict.fromkeys(partition_ids, to_offset)
    assert shift_by is not None
    missing = [partition_id for partition_id in partition_ids if partition_id not in committed]
    if missing:
        raise click.ClickException(
            f"nothing is committed for {missing[0][0]}-{missing[0][1]}: "
            "--shift-by needs an offset to start from"
        )
    return {partition_id: committed[partition_id] + shift_by for partition_id in partition_ids}
